"""CUDA streams, and the placeholder CPUStream where a device has none."""

from __future__ import annotations

import contextlib
from typing import Any, Union, cast

import torch
from torch import Tensor

__all__ = [
    "AbstractStream", "CPUStream", "CPUStreamType", "as_cuda", "current_stream", "default_stream",
    "get_device", "is_cuda", "new_stream", "record_stream", "use_device", "use_stream",
    "wait_stream",
]


class CPUStreamType:
    """The type of CPUStream."""


CPUStream = CPUStreamType()
AbstractStream = Union[torch.cuda.Stream, CPUStreamType]


def is_cuda(stream: AbstractStream) -> bool:
    """Whether it is a stream of CUDA."""
    return stream is not CPUStream


def as_cuda(stream: AbstractStream) -> torch.cuda.Stream:
    """The same, for type checkers."""
    return cast(torch.cuda.Stream, stream)


def new_stream(device: torch.device) -> AbstractStream:
    """A stream of its own."""
    return torch.cuda.Stream(device) if device.type == "cuda" else CPUStream


def current_stream(device: torch.device) -> AbstractStream:
    """The stream that this thread uses on the device."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else CPUStream


def default_stream(device: torch.device) -> AbstractStream:
    """The stream of the device that all threads begin with."""
    return torch.cuda.default_stream(device) if device.type == "cuda" else CPUStream


def use_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The device is this thread's current one while the context lasts."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def use_stream(stream: AbstractStream) -> contextlib.AbstractContextManager[Any]:
    """The stream is this thread's current one while the context lasts."""
    return torch.cuda.stream(as_cuda(stream)) if is_cuda(stream) else contextlib.nullcontext()


def get_device(stream: AbstractStream) -> torch.device:
    """The stream's device."""
    return as_cuda(stream).device if is_cuda(stream) else torch.device("cpu")


def wait_stream(source: AbstractStream, target: AbstractStream) -> None:
    """Has `source` wait for what `target` has queued; the CPU's stream waits at once."""
    if not is_cuda(target):
        return
    if is_cuda(source):
        as_cuda(source).wait_stream(as_cuda(target))
    else:
        as_cuda(target).synchronize()


def record_stream(tensor: Tensor, stream: AbstractStream) -> None:
    """Keeps the tensor's memory from being taken again before `stream` has used it."""
    if is_cuda(stream):
        tensor.record_stream(as_cuda(stream))
