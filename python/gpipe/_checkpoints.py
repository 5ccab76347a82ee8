"""Lets torch.utils.checkpoint(use_reentrant=False) recompute in a backward of a pipeline, once and
with the random numbers of its forward.

At the first saved tensor that a backward asks for, it computes all of them again, and it tells
backwards apart by the number of the engine's graph task. A pipeline's stages walk through their
graphs without the engine, so there is no such number, and every saved tensor would be a backward of
its own.

It repeats its forward's random numbers by the state of torch's own generator, from which a layer of
a pipeline does not draw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch.utils.checkpoint import GraphExecGroup

from gpipe._load import extension

_of_torch = GraphExecGroup._get_current_group.__func__


def _current_group(cls: type[GraphExecGroup]) -> Any:
    """The group that torch was told of, or else the walk of a pipeline that runs on this thread."""
    group = _of_torch(cls)
    if group is not None:
        return group
    number = extension.walk_number(torch._C._current_graph_task_id())
    return None if number is None else ("gpipe", number)  # never equal to a graph task's number


GraphExecGroup._get_current_group = classmethod(_current_group)


class _Frame(torch.utils.checkpoint._CheckpointFrame):
    """What torch makes before each forward, to compute it again."""

    def __init__(self, recompute: Callable[..., None], *others: Any, **named: Any) -> None:
        place = extension.draw_place()
        super().__init__(recompute if place is None else _drawing_from(place, recompute), *others, **named)


def _drawing_from(place: Any, recompute: Callable[..., None]) -> Callable[..., None]:
    def call(*given: Any) -> None:
        former = extension.draw_place(place)
        try:
            recompute(*given)
        finally:
            extension.draw_place(former)

    return call


torch.utils.checkpoint._CheckpointFrame = _Frame
