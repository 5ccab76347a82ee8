"""The processes that a pipeline runs over."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Optional, TypeVar

import torch

from gpipe._arguments import named
from gpipe._load import extension

__all__ = ["DistributedFailure", "Fault", "World", "any_rank", "from_rank_0"]

T = TypeVar("T")


@dataclass(frozen=True)
class Fault:
    """What went wrong on one rank.

    kind: "exception"; "death" (its connections closed), "left" (it ended its part while others
        needed it) or "silence".
    rank, host: where.
    stage, micro_batch, layer: where an exception was thrown; -1 and "" if that is not known.
    text: the exception's message, or what was noticed.
    """

    kind: str
    rank: int
    host: str
    stage: int
    micro_batch: int
    layer: str
    text: str


class DistributedFailure(RuntimeError):
    """A call failed because of another rank. It is raised on every rank that is still connected.

    faults: all that went wrong, the first cause first; the same on all ranks.
    """

    def __init__(self, text: str, faults: list[Fault]) -> None:
        super().__init__(text)
        self.faults = faults

    def __reduce__(self) -> tuple[Any, ...]:
        return DistributedFailure, (str(self), self.faults)


def _free_port() -> int:
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _default_store() -> Optional[Any]:
    """The store of torch.distributed, if that is initialized."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.distributed_c10d._get_default_store()


_worlds = 0  # how many worlds this process has made


@contextlib.contextmanager
def _own_port() -> Iterator[None]:
    """If torch.distributed has the port MASTER_PORT, rank 0 tells the others another one by its store."""
    global _worlds
    _worlds += 1
    store = _default_store()
    kept = os.environ.get("MASTER_PORT")
    if store is None or kept is None or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        yield
        return
    key = f"gpipe/port/{_worlds}"
    if torch.distributed.get_rank() == 0:
        store.set(key, str(_free_port()))
    os.environ["MASTER_PORT"] = store.get(key).decode()
    try:
        yield
    finally:
        os.environ["MASTER_PORT"] = kept


class World:
    """The processes of a run. Made by `World.from_environment()`.

    world = gpipe.World.from_environment()
    model = gpipe.GPipe(layers, balance=[2, 2], chunks=8, world=world)
    loss = model.step(input, target, loss_fn).loss           # the same on all ranks

    A process leaves the run when its last World and the pipelines that have it are gone.
    """

    def __init__(self, made: Any) -> None:
        self._made = made

    @staticmethod
    @named
    def from_environment(
        *,
        rendezvous_limit: float = 300.0,
        silence_limit: float = 30.0,
        call_limit: float = 300.0,
        announce: bool = True,
    ) -> World:
        """Connects the processes that torchrun, our `launch`, mpirun or srun has started.

        Without a launcher, this process alone. All processes must call it equally often.
        `torch.distributed` may be initialized before or after; it is not needed.

        rendezvous_limit: seconds to wait for processes that have not come.
        silence_limit: seconds after which a process of which nothing is heard is given up. One that
            computes is not silent.
        call_limit: seconds to wait in a call for a process that does not reach it.
        announce: whether rank 0 writes a line to stderr about what it has found.

        Raises RuntimeError that names processes which did not come, ValueError for variables of the
        environment that do not fit together and for processes with other builds, and
        DistributedFailure.
        """
        for name, limit in (
            ("rendezvous_limit", rendezvous_limit),
            ("silence_limit", silence_limit),
            ("call_limit", call_limit),
        ):
            if not 0 < limit <= 1e9:
                raise ValueError(f"{name} is in seconds, above 0 and at most 1e9, not {limit}")
        with _own_port():
            world = World(
                extension.World.from_environment(
                    rendezvous_limit, silence_limit, call_limit, announce
                )
            )
        if _default_store() is not None and torch.distributed.get_world_size() != world.size:
            raise ValueError(
                f"the launcher's variables tell of {world.size} processes, and torch.distributed of "
                f"{torch.distributed.get_world_size()}: start as many as both are told of"
            )
        world._leave_port()
        return world

    def _leave_port(self) -> None:
        """Where this run's store has the port MASTER_PORT, names another one for torch.distributed."""
        served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        if self.size > 1 and served and "MASTER_PORT" in os.environ and _default_store() is None:
            os.environ["MASTER_PORT"] = str(from_rank_0(self, _free_port))

    @named
    def grid(self, replicas: int, processes: int) -> World:
        """The same processes as `replicas` pipelines over `processes` processes each.

        Each replica gets its own rows of a mini-batch (`rows`); gradients are added up over all.
        Raises ValueError unless there are replicas * processes of them.
        """
        return World(self._made.grid(replicas, processes))

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return self._made.rank

    @property
    def size(self) -> int:
        """How many processes there are."""
        return self._made.size

    @property
    def local_rank(self) -> int:
        """The number of this process on its machine: for its device, f"cuda:{world.local_rank}"."""
        return self._made.local_rank

    @property
    def replicas(self) -> int:
        """How many replicas of the pipeline there are."""
        return self._made.replicas

    @property
    def replica(self) -> int:
        """The replica that this process belongs to."""
        return self._made.replica

    @property
    def process(self) -> int:
        """The number of this process in its replica."""
        return self._made.process

    @named
    def rows(self, global_rows: int, chunks: int) -> slice:
        """The rows of a mini-batch that this replica must be given: batch[world.rows(n, chunks)].

        chunks: of all replicas together. Raises ValueError if it is not a multiple of the replicas.
        """
        return slice(*self._made.rows(global_rows, chunks))

    def __repr__(self) -> str:
        each = self.size // self.replicas
        return f"World(rank={self.rank}, size={self.size}, replicas={self.replicas} of {each})"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a World cannot be copied or pickled, because its connections belong to this process: "
            "call World.from_environment() in each process"
        )


class Beginning:
    """The beginning of a call that all processes make: what is raised in it fails the call on all.

    world: None for this process alone.
    """

    def __init__(self, world: Optional[World]) -> None:
        self._world = world

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        if error is not None and self._world is not None:
            text = "".join(traceback.format_exception_only(error))
            self._world._made.fail_call(text.strip().replace("\n", "; "))


def any_rank(world: World, here: bool) -> bool:
    """Whether `here` is true on any rank; the same on all.

    All ranks call it, in the same order as steps: after each step, say, to save and end when one
    of them has got a signal. Raises DistributedFailure.
    """
    return world._made.any_rank(bool(here))


def from_rank_0(world: World, make: Callable[[], T]) -> T:
    """What `make()` gives on rank 0, where alone it is called; the same on all ranks.

    All ranks call it, in the same order as steps. The result is pickled. If `make` raises, rank 0
    raises that, the others RuntimeError with its text, and all may go on.
    """
    return pickle.loads(world._made.from_rank_0(lambda: pickle.dumps(make())))
