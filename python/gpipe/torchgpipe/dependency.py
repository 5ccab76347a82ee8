"""Edges in the graph of autograd between tensors that have nothing else to do with each other.

    a, phony = fork(a)
    b = join(b, phony)      # the backward of b comes before that of a
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpipe.torchgpipe.phony import get_phony

__all__ = ["Fork", "Join", "fork", "join"]


class Fork(torch.autograd.Function):
    """The node of `fork`."""

    @staticmethod
    def forward(context: Any, input: Tensor) -> tuple[Tensor, Tensor]:
        return input.detach(), get_phony(input.device, requires_grad=False).detach()

    @staticmethod
    def backward(context: Any, gradient: Tensor, of_phony: Tensor) -> Tensor:
        return gradient


class Join(torch.autograd.Function):
    """The node of `join`."""

    @staticmethod
    def forward(context: Any, input: Tensor, phony: Tensor) -> Tensor:
        return input.detach()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def fork(input: Tensor) -> tuple[Tensor, Tensor]:
    """The same values, and a phony that depends on them."""
    if torch.is_grad_enabled() and input.requires_grad:
        return Fork.apply(input)
    return input, get_phony(input.device, requires_grad=False)


def join(input: Tensor, phony: Tensor) -> Tensor:
    """The same values, which depend on the phony, too."""
    if torch.is_grad_enabled() and (input.requires_grad or phony.requires_grad):
        return Join.apply(input, phony)
    return input
