"""A thread for each device, which computes what is put into its queue."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from queue import Queue
from typing import Any, Optional

import torch

from gpipe.torchgpipe.microbatch import Batch
from gpipe.torchgpipe.stream import AbstractStream, use_device, use_stream

__all__ = ["Task", "spawn_workers", "worker"]


class Task:
    """`compute` is for the worker, and `finalize` for the caller, who gives it the result."""

    def __init__(
        self,
        stream: AbstractStream,
        *,
        compute: Callable[[], Batch],
        finalize: Optional[Callable[[Batch], None]],
    ) -> None:
        self.stream = stream
        self._compute = compute
        self._finalize = finalize

    def compute(self) -> Batch:
        """Runs on the stream."""
        with use_stream(self.stream):
            return self._compute()

    def finalize(self, batch: Batch) -> None:
        """Runs on the stream."""
        if self._finalize is not None:
            with use_stream(self.stream):
                self._finalize(batch)


def worker(in_queue: Queue, out_queue: Queue, device: torch.device, grad_mode: bool) -> None:
    """Answers each task with (True, (task, batch)), or with (False, sys.exc_info()) if it fails.

    None ends it; the answer is (False, None).
    """
    torch.set_grad_enabled(grad_mode)
    with use_device(device):
        while (task := in_queue.get()) is not None:
            try:
                answer: Any = True, (task, task.compute())
            except Exception:
                answer = False, sys.exc_info()
            out_queue.put(answer)
            del task, answer  # A worker that waits keeps nothing alive.
    out_queue.put((False, None))


def _one_of_its_kind(device: torch.device) -> torch.device:
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu") if device.type == "cpu" else device


@contextlib.contextmanager
def spawn_workers(devices: Iterable[torch.device]) -> Iterator[tuple[list[Queue], list[Queue]]]:
    """Gives the queues for tasks and those for answers, one of each for each device.

    Equal devices have the same worker. When the context ends, all workers finish what they have
    been given.
    """
    queues: dict[torch.device, tuple[Queue, Queue]] = {}
    threads = []
    places = [_one_of_its_kind(device) for device in devices]
    for place in places:
        if place in queues:
            continue
        queues[place] = Queue(), Queue()
        arguments = *queues[place], place, torch.is_grad_enabled()
        threads.append(threading.Thread(target=worker, args=arguments, daemon=True))
        threads[-1].start()
    try:
        yield [queues[place][0] for place in places], [queues[place][1] for place in places]
    finally:
        for in_queue, _ in queues.values():
            in_queue.put(None)
        for thread in threads:
            thread.join()
