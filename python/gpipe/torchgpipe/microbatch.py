"""Micro-batches as torchgpipe has them: a mini-batch cut along dimension 0, and joined again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Union

import torch
from torch import Tensor

__all__ = ["Batch", "check", "gather", "scatter"]

Value = Union[Tensor, tuple[Tensor, ...]]


class Batch:
    """A tensor (`atomic`), or a tuple of tensors, to be used as a sequence of tensors."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self.atomic = isinstance(value, Tensor)

    @property
    def tensor(self) -> Tensor:
        """The tensor. Raises AttributeError for a tuple."""
        if not self.atomic:
            raise AttributeError("not atomic batch: use tensors")
        return self.value

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tuple. Raises AttributeError for a tensor."""
        if self.atomic:
            raise AttributeError("batch is atomic: use tensor")
        return self.value

    @property
    def tensor_or_tensors(self) -> Value:
        """The tensor or the tuple."""
        return self.value

    def call(self, function: Callable[[Value], Value]) -> Batch:
        """What the function gives for the value, as a batch."""
        return Batch(function(self.value))

    def __repr__(self) -> str:
        return f"Batch[atomic={self.atomic!r}]({self.value!r})"

    def _all(self) -> tuple[Tensor, ...]:
        return (self.value,) if self.atomic else self.value

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __getitem__(self, index: int) -> Tensor:
        if self.atomic and index != 0:
            raise IndexError("atomic batch allows index 0 only")
        return self._all()[index]

    def __setitem__(self, index: Union[int, slice], value: Value) -> None:
        """Replaces one tensor, or with [:] all of them. A tensor stays a tensor."""
        if isinstance(index, int):
            self[index]  # raises IndexError if there is no such tensor
            tensors = list(self._all())
            tensors[index] = value
            value = tuple(tensors)
        elif index != slice(None):
            raise NotImplementedError("only slice [:] supported")
        if self.atomic and len(value) != 1:
            raise IndexError("atomic batch cannot be replaced with multiple tensors")
        self.value = value[0] if self.atomic else tuple(value)


def check(input: Any) -> None:
    """Raises TypeError unless the input is a tensor or a tuple of tensors."""
    for value in input if isinstance(input, tuple) else (input,):
        if not isinstance(value, Tensor):
            raise TypeError(f"expected Tensor, but got {type(value).__name__}")


def scatter(input: Value, chunks: int) -> list[Batch]:
    """At most `chunks` micro-batches of nearly equal size, as Tensor.chunk cuts them."""
    if isinstance(input, Tensor):
        return [Batch(tensor) for tensor in input.chunk(chunks)]
    return [Batch(tensors) for tensors in zip(*(tensor.chunk(chunks) for tensor in input))]


def gather(outputs: list[Batch]) -> Value:
    """The mini-batch of which these are the micro-batches."""
    if outputs[0].atomic:
        return torch.cat([batch.tensor for batch in outputs])
    return tuple(map(torch.cat, zip(*(batch.tensors for batch in outputs))))
