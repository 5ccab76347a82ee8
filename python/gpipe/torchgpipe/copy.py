"""Nodes of autograd that copy tensors between the streams of two devices, or wait for one."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from gpipe.torchgpipe.stream import (
    AbstractStream, current_stream, get_device, record_stream, use_stream, wait_stream,
)

__all__ = ["Copy", "Wait", "copied"]


def copied(
    source: AbstractStream, target: AbstractStream, tensors: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """The tensors of `source`'s device on that of `target`."""
    device = get_device(target)
    used_on = current_stream(device)
    copies = []
    with use_stream(source), use_stream(target):
        for tensor in tensors:
            copies.append(tensor.to(device))
            record_stream(tensor, source)
            record_stream(copies[-1], used_on)
    return tuple(copies)


class Copy(torch.autograd.Function):
    """Copies tensors from `prev_stream` to `next_stream`, and their gradients back."""

    @staticmethod
    def forward(
        context: Any, prev_stream: AbstractStream, next_stream: AbstractStream, *input: Tensor
    ) -> tuple[Tensor, ...]:
        context.streams = prev_stream, next_stream
        return copied(prev_stream, next_stream, input)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Optional[Tensor], ...]:
        prev_stream, next_stream = context.streams
        return None, None, *copied(next_stream, prev_stream, gradients)


class Wait(torch.autograd.Function):
    """`next_stream` waits for `prev_stream`; in backward it is the other way round."""

    @staticmethod
    def forward(
        context: Any, prev_stream: AbstractStream, next_stream: AbstractStream, *input: Tensor
    ) -> tuple[Tensor, ...]:
        context.streams = prev_stream, next_stream
        wait_stream(next_stream, prev_stream)
        return tuple(tensor.detach() for tensor in input)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Optional[Tensor], ...]:
        wait_stream(*context.streams)
        return None, None, *gradients
