"""Lets torch.utils.checkpoint(use_reentrant=False) recompute once in a backward of a pipeline.

At the first saved tensor that a backward asks for, it computes all of them again, and it tells
backwards apart by the number of the engine's graph task. A pipeline's stages walk through their
graphs without the engine, so there is no such number, and every saved tensor would be a backward of
its own.
"""

from __future__ import annotations

from typing import Any

import torch
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
