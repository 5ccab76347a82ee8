"""Tensors without elements, which carry dependencies in a graph of autograd."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

__all__ = ["get_phony"]


@functools.lru_cache(maxsize=None)
def _made(device: torch.device, requires_grad: bool) -> Tensor:
    return torch.empty(0, device=device, requires_grad=requires_grad)


def get_phony(device: torch.device, *, requires_grad: bool) -> Tensor:
    """A tensor of shape (0,), the same one for equal arguments.

    A forward of a torch.autograd.Function that returns it must detach() it before.
    """
    return _made(device, requires_grad)
