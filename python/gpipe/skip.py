"""Layers that pass tensors to a much later layer, around those between.

    @skippable(stash=["skip"])
    class Down(nn.Module):
        def forward(self, input):
            yield stash("skip", input)
            return self.conv(input)

    @skippable(pop=["skip"])
    class Up(nn.Module):
        def forward(self, input):
            skip = yield pop("skip")
            return self.conv(input) + skip

The same layers work in a plain nn.Sequential. In a pipeline a tensor goes straight from the stage
that stashes it to the one that pops it. Skippable modules may also be inside of other modules.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from typing import Any, ClassVar, Optional

from torch import Tensor, nn

from gpipe._load import extension

__all__ = ["Namespace", "Skippable", "pop", "skippable", "stash", "verify_skippables"]


_numbers: dict[uuid.UUID, int] = {}  # of the namespaces that were asked for theirs
_next_numbers = itertools.count(1)


@functools.total_ordering
class Namespace:
    """Keeps equal names apart: isolate each pair of layers in a namespace of its own.

    A copy, also one that was unpickled in another process, equals its original; two that are made
    separately are never equal. Their order has no meaning. None stands for the namespace of
    whatever was not isolated.
    """

    __slots__ = ("id",)

    def __init__(self) -> None:
        self.id = uuid.uuid4()

    @property
    def number(self) -> int:
        """What the extension knows it by, in this process."""
        return _numbers.setdefault(self.id, next(_next_numbers))

    def __repr__(self) -> str:
        return f"<Namespace '{self.id}'>"

    def __hash__(self) -> int:
        return hash(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespace) and self.id == other.id

    def __lt__(self, other: object) -> bool:
        # None, the default namespace, comes before all others.
        return isinstance(other, Namespace) and self.id < other.id


class stash:
    """Yielded by a layer that declares the name: passes the tensor, or None, to the other layer."""

    __slots__ = ("name", "tensor")

    def __init__(self, name: str, tensor: Optional[Tensor]) -> None:
        self.name = name
        self.tensor = tensor


class pop:
    """Yielded by a layer that declares the name: gives what was stashed."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class SkipTracker:
    """Where skips are kept outside of all pipelines. Each thread has one, until it uses another."""

    def __init__(self) -> None:
        self.tensors: dict[tuple[Optional[Namespace], str], Optional[Tensor]] = {}

    def save(
        self,
        batch: MutableSequence[Tensor],
        ns: Optional[Namespace],
        name: str,
        tensor: Optional[Tensor],
    ) -> None:
        """Keeps what a layer stashes. `batch` has the layer's output tensors, which a derived
        class may replace.
        """
        self.tensors[ns, name] = tensor

    def load(
        self, batch: MutableSequence[Tensor], ns: Optional[Namespace], name: str
    ) -> Optional[Tensor]:
        """Takes out what a layer pops; `batch` has its input tensors. Raises KeyError if it is not
        there.
        """
        return self.tensors.pop((ns, name))


_thread = threading.local()


def current_skip_tracker() -> SkipTracker:
    """The tracker of the calling thread."""
    if not hasattr(_thread, "tracker"):
        _thread.tracker = SkipTracker()
    return _thread.tracker


@contextlib.contextmanager
def use_skip_tracker(tracker: SkipTracker) -> Iterator[None]:
    """Skips of the calling thread are kept in `tracker` for as long as the context lasts."""
    former = current_skip_tracker()
    _thread.tracker = tracker
    try:
        yield
    finally:
        _thread.tracker = former


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


def _listed_tensors(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


def _as_given(value: Any, tensors: list[Any]) -> Any:
    """The tensors in the form of the value: a tuple, or one."""
    if not isinstance(value, tuple):
        return tensors[0]
    return value if all(a is b for a, b in zip(value, tensors)) else tuple(tensors)


class Skippable(nn.Module):
    """A module with skips. Made by `skippable`; not to be derived from by hand."""

    module_cls: ClassVar[type[nn.Module]]
    stashable_names: ClassVar[frozenset[str]] = frozenset()
    poppable_names: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = self.module_cls(*args, **kwargs)
        self.namespaces: dict[str, Namespace] = {}

    def __repr__(self) -> str:
        return f"@skippable({self.module})"

    def namespaced(self, name: str) -> tuple[Optional[Namespace], str]:
        """The name with its namespace."""
        return self.namespaces.get(name), name

    def stashable(self) -> Iterator[tuple[Optional[Namespace], str]]:
        """What it stashes, with namespaces."""
        return (self.namespaced(name) for name in self.stashable_names)

    def poppable(self) -> Iterator[tuple[Optional[Namespace], str]]:
        """What it pops, with namespaces."""
        return (self.namespaced(name) for name in self.poppable_names)

    def isolate(self, ns: Namespace, *, only: Optional[Iterable[str]] = None) -> Skippable:
        """Puts all names of this module, or those of `only`, into the namespace; returns itself.

        Do it before the module goes into a pipeline, which reads the namespaces when it is made.
        Raises ValueError for a name that the module does not declare.
        """
        declared = self.stashable_names | self.poppable_names
        names = declared if only is None else set(only)
        if names - declared:
            raise ValueError(
                f"a {self.module_cls.__name__} has no skip {_listed(names - declared)}: it "
                f"declares {_listed(declared) or 'none'}"
            )
        self.namespaces.update(dict.fromkeys(names, ns))
        return self

    def forward(self, input: Any) -> Any:
        """Calls the module's forward. Raises RuntimeError unless it uses exactly the names that it declares."""
        stashed: dict[str, Optional[Tensor]] = {}
        popped: set[str] = set()
        available, input = self._take(input)

        def handle_stash(name: str, tensor: Optional[Tensor]) -> None:
            if name not in self.stashable_names:
                raise RuntimeError(f"'{name}' has not been declared as stashable")
            stashed[name] = tensor

        def handle_pop(name: str) -> Optional[Tensor]:
            if name not in self.poppable_names:
                raise RuntimeError(f"'{name}' has not been declared as poppable")
            popped.add(name)
            return available[name]

        output = self.dispatch(input, handle_stash, handle_pop)
        for left, what, call in (
            (sorted(self.stashable_names - set(stashed)), "stashed", "stash({!r}, tensor)"),
            (sorted(self.poppable_names - popped), "popped", "pop({!r})"),
        ):
            if left:
                raise RuntimeError(
                    f"{_listed(left)} must be {what} but have not: write `yield "
                    f"{call.format(left[0])}` in forward"
                )
        return self._give(stashed, output)

    def dispatch(
        self,
        input: Any,
        handle_stash: Callable[[str, Optional[Tensor]], None],
        handle_pop: Callable[[str], Optional[Tensor]],
    ) -> Any:
        """Calls the module, and a handler for whatever it yields; returns its output."""
        result = self.module(input)
        if not hasattr(result, "send"):
            return result
        answer: Optional[Tensor] = None
        while True:
            try:
                command = result.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = None
            if isinstance(command, stash):
                handle_stash(command.name, command.tensor)
            elif isinstance(command, pop):
                answer = handle_pop(command.name)
            else:
                raise TypeError(f"{command!r} is neither a stash nor a pop: yield one of these")

    def _take(self, input: Any) -> tuple[dict[str, Optional[Tensor]], Any]:
        """What it may pop, and the input, which a tracker may have given dependencies."""
        names = sorted(self.poppable_names)
        if extension.in_layer():
            return {name: extension.pop(self, name) for name in names}, input
        tracker, batch, available = current_skip_tracker(), _listed_tensors(input), {}
        for name in names:
            try:
                available[name] = tracker.load(batch, *self.namespaced(name))
            except KeyError:
                raise RuntimeError(f"'{name}' has not been stashed") from None
        return available, _as_given(input, batch)

    def _give(self, stashed: dict[str, Optional[Tensor]], output: Any) -> Any:
        """Passes on what it stashed; returns the output as `_take` returns the input."""
        if extension.in_layer():
            for name in sorted(stashed):
                extension.stash(self, name, stashed[name])
            return output
        tracker, batch = current_skip_tracker(), _listed_tensors(output)
        for name in sorted(stashed):
            tracker.save(batch, *self.namespaced(name), stashed[name])
        return _as_given(output, batch)

    def _gpipe_skips_(self) -> dict[str, int]:
        """For the extension: the names that are isolated, and the numbers of their namespaces."""
        declared = self.stashable_names | self.poppable_names
        return {name: ns.number for name, ns in self.namespaces.items() if name in declared}


def skippable(
    stash: Iterable[str] = (), pop: Iterable[str] = ()
) -> Callable[[type[nn.Module]], type[Skippable]]:
    """Declares which names the instances of a module class stash and pop.

    The class's forward yields stash(name, tensor) and pop(name). What is made of the decorated
    class is a Skippable, whose attribute `module` is the instance.
    """
    if isinstance(stash, type):
        raise TypeError(
            f"@skippable of {stash.__name__} needs the names of skips: write "
            f"@skippable(stash=['name']), or pop=['name']"
        )
    stashes, pops = frozenset(stash), frozenset(pop)

    def decorate(module_cls: type[nn.Module]) -> type[Skippable]:
        body = {
            "module_cls": module_cls,
            "stashable_names": stashes,
            "poppable_names": pops,
            "__doc__": module_cls.__doc__,
            "__module__": module_cls.__module__,
            "__qualname__": module_cls.__qualname__,
        }
        return type(module_cls.__name__, (Skippable,), body)

    return decorate


def verify_skippables(module: nn.Sequential) -> None:
    """Checks that each name is stashed by one layer and popped by one later layer.

    Raises one TypeError that lists every mismatch.
    """
    problems = []
    stashed: set[tuple[Optional[Namespace], str]] = set()
    popped: set[tuple[Optional[Namespace], str]] = set()
    for child, layer in module.named_children():
        for within in layer.modules():
            if not isinstance(within, Skippable):
                continue
            both = within.stashable_names & within.poppable_names
            for name in sorted(both):
                problems.append(f"'{child}' declared '{name}' both as stashable and as poppable")
            for name in sorted(within.stashable_names - both):
                if within.namespaced(name) in stashed:
                    problems.append(f"'{child}' redeclared '{name}' as stashable but not isolated")
                stashed.add(within.namespaced(name))
            for name in sorted(within.poppable_names - both):
                if within.namespaced(name) in popped:
                    problems.append(f"'{child}' redeclared '{name}' as poppable but not isolated")
                elif within.namespaced(name) not in stashed:
                    problems.append(f"'{child}' declared '{name}' as poppable but it was not stashed")
                popped.add(within.namespaced(name))
    for _, name in sorted(stashed - popped, key=lambda key: key[1]):
        problems.append(f"no module declared '{name}' as poppable but stashed")
    if problems:
        raise TypeError(
            "one or more pairs of stash and pop do not match:\n\n"
            + "\n".join(f"* {problem}" for problem in problems)
        )
