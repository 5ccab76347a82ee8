"""Lets torch.utils.checkpoint compute a layer's forward again in a backward of a pipeline.

- Without reentrance, it recomputes at the first saved tensor that a backward asks for, and tells
  backwards apart by the number of the engine's graph task. A pipeline's stages walk through their
  graphs without the engine, so there is no such number, and every saved tensor would be a backward
  of its own.
- It repeats random numbers by the state of torch's generator, from which layers do not draw. So a
  state that is taken in a layer has the place of the layer's next draw with it. Other functions
  that compute again, such as DeepSpeed's and Megatron's, use these states, too.
- A selective one gives each tensor that it has kept to one recompute only, but a backward in two
  halves has two.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch.utils.checkpoint import GraphExecGroup, _CachedTorchDispatchMode

from gpipe._load import extension

_given_group = GraphExecGroup._get_current_group
_get_state, _set_state = torch.get_rng_state, torch.set_rng_state
_enter = _CachedTorchDispatchMode.__enter__


def _current_group(cls: type[GraphExecGroup]) -> Any:
    """The group that the user has entered. Else, in a pipeline's backward, what stands for it."""
    group = _given_group()
    if group is None:
        number = extension.walk_number(torch._C._current_graph_task_id())
        group = None if number is None else ("gpipe", number)
    return group


@functools.wraps(_get_state)
def _state_with_place() -> torch.Tensor:
    state = _get_state()
    place = extension.draw_place()
    if place is not None:
        state._gpipe_place = place
    return state


@functools.wraps(_set_state)
def _set_state_and_place(new_state: torch.Tensor) -> None:
    _set_state(new_state)
    place = getattr(new_state, "_gpipe_place", None)
    if place is not None:
        extension.draw_place(place)


def _enter_with_all(self: Any) -> Any:
    """Enters a recompute with all that the forward has kept, also what another one has taken."""
    if extension.draw_place() is not None:
        if not hasattr(self, "_gpipe_kept"):
            self._gpipe_kept = {key: copy.copy(kept) for key, kept in self.storage.items()}
        self.storage.update((key, copy.copy(kept)) for key, kept in self._gpipe_kept.items())
    return _enter(self)


GraphExecGroup._get_current_group = classmethod(_current_group)
_CachedTorchDispatchMode.__enter__ = _enter_with_all
for _module in torch, torch.random:
    _module.get_rng_state, _module.set_rng_state = _state_with_place, _set_state_and_place
