"""Checkpoints of functions outside of a pipeline, and which pass of one the caller is in.

A pipeline has checkpoints of its own (`GPipe(checkpoint=...)`), for which the flags hold as well.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Optional, Union

import torch
from torch import Tensor

import gpipe
from gpipe.torchgpipe.dependency import fork, join
from gpipe.torchgpipe.microbatch import Batch
from gpipe.torchgpipe.phony import get_phony

__all__ = ["Checkpointing", "checkpoint", "is_checkpointing", "is_recomputing"]

Value = Union[Tensor, tuple[Tensor, ...]]


class _Flags(threading.local):
    checkpointing = False
    recomputing = False


_flags = _Flags()


@contextlib.contextmanager
def _flagged(name: str) -> Iterator[None]:
    former = getattr(_flags, name)
    setattr(_flags, name, True)
    try:
        yield
    finally:
        setattr(_flags, name, former)


def enable_checkpointing() -> contextlib.AbstractContextManager[None]:
    """`is_checkpointing()` is true for the calling thread while the context lasts."""
    return _flagged("checkpointing")


def enable_recomputing() -> contextlib.AbstractContextManager[None]:
    """`is_recomputing()` is true for the calling thread while the context lasts."""
    return _flagged("recomputing")


def is_checkpointing() -> bool:
    """Whether the caller runs in a forward whose activations will be computed again."""
    return _flags.checkpointing or gpipe.is_checkpointing()


def is_recomputing() -> bool:
    """Whether the caller runs in a recompute, so it should not have side effects again."""
    return _flags.recomputing or gpipe.is_recomputing()


class _Pass:
    """What the two nodes of a checkpoint share."""

    def __init__(self, function: Callable[[Value], Value], input: Batch) -> None:
        self.function = function
        self.atomic = input.atomic
        self.cuda = [tensor.device for tensor in input if tensor.is_cuda]
        self.random: Optional[tuple[Tensor, list[Tensor]]] = None
        self.again: Optional[tuple[Batch, tuple[Tensor, ...]]] = None

    def call(self, tensors: tuple[Tensor, ...]) -> Value:
        return self.function(tensors[0] if self.atomic else tensors)


class Checkpoint(torch.autograd.Function):
    """Computes without saving; its backward is that of what Recompute has computed again."""

    @staticmethod
    def forward(context: Any, phony: Tensor, shared: _Pass, *input: Tensor) -> Value:
        context.shared = shared
        cuda = [torch.cuda.get_rng_state(device) for device in shared.cuda]
        shared.random = torch.get_rng_state(), cuda
        with torch.no_grad(), enable_checkpointing():
            return shared.call(input)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Optional[Tensor], ...]:
        output, leaves = context.shared.again
        context.shared.again = None
        pairs = [(y, gradient) for y, gradient in zip(output, gradients) if y.requires_grad]
        if pairs:
            torch.autograd.backward(*zip(*pairs))
        return None, None, *(leaf.grad for leaf in leaves)


class Recompute(torch.autograd.Function):
    """Its backward runs the function again, before the gradient arrives at Checkpoint."""

    @staticmethod
    def forward(context: Any, phony: Tensor, shared: _Pass, *input: Tensor) -> Tensor:
        context.shared = shared
        context.save_for_backward(*input)
        return phony.detach()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[None, ...]:
        shared = context.shared
        leaves = tuple(x.detach().requires_grad_(x.requires_grad) for x in context.saved_tensors)
        cpu, cuda = shared.random
        with torch.random.fork_rng(shared.cuda), torch.enable_grad(), enable_recomputing():
            torch.set_rng_state(cpu)
            for device, state in zip(shared.cuda, cuda):
                torch.cuda.set_rng_state(state, device)
            shared.again = Batch(shared.call(leaves)), leaves
        return (None,) * (2 + len(leaves))


class Checkpointing:
    """A checkpoint in two steps, between which other nodes may be put.

    function: takes and gives a tensor or a tuple of tensors, as the batch has them.
    """

    def __init__(self, function: Callable[[Value], Value], batch: Batch) -> None:
        self._shared = _Pass(function, batch)
        self._input = tuple(batch)

    def checkpoint(self) -> Batch:
        """Calls the function; nothing is saved."""
        # The output must have a node in the autograd graph even if no input requires a gradient,
        # because parameters may require one.
        phony = get_phony(self._input[0].device, requires_grad=True)
        return Batch(Checkpoint.apply(phony, self._shared, *self._input))

    def recompute(self, batch: Batch) -> None:
        """Adds to the output's first tensor the node that calls the function again."""
        batch[0], phony = fork(batch[0])
        batch[0] = join(batch[0], Recompute.apply(phony, self._shared, *self._input))


def checkpoint(function: Callable[[Value], Value], input: Value) -> Value:
    """function(input), which is computed again in backward instead of being saved."""
    checkpointing = Checkpointing(function, Batch(input))
    output = checkpointing.checkpoint()
    checkpointing.recompute(output)
    return output.tensor_or_tensors
