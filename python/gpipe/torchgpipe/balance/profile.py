"""What each layer costs, measured in copies of the layers."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import Any, Union

import torch
from torch import Tensor, nn

from gpipe.skip import SkipTracker, use_skip_tracker

__all__ = ["layerwise_sandbox", "profile_sizes", "profile_times"]

Value = Union[Tensor, tuple[Tensor, ...]]


def layerwise_sandbox(module: nn.Sequential, device: torch.device) -> Iterator[nn.Module]:
    """A copy of each layer, on the device and in training mode."""
    for layer in module:
        copied = copy.deepcopy(layer).to(device)
        yield copied.train()


def _tensors(value: Value) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def _leaf(tensor: Tensor, device: torch.device) -> Tensor:
    """The same values without history, with the same mark for gradients."""
    return tensor.detach().to(device).requires_grad_(tensor.requires_grad)


def _leaves(value: Value, device: torch.device) -> Value:
    if isinstance(value, tuple):
        return tuple(_leaf(tensor, device) for tensor in value)
    return _leaf(value, device)


class _LeafSkips(SkipTracker):
    """Cuts skips off from the layers that stash them, whose backward has been run before the pop."""

    def load(self, *arguments: Any) -> Any:
        tensor = super().load(*arguments)
        return None if tensor is None else _leaf(tensor, tensor.device)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def profile_times(
    module: nn.Sequential, sample: Value, timeout: float, device: torch.device
) -> list[int]:
    """Microseconds of each layer's forward and backward, over all passes within `timeout` s."""
    if any(parameter.grad is not None for parameter in module.parameters()):
        raise ValueError("some parameter already has gradient: call zero_grad() before")
    seconds = [0.0] * len(module)
    sample = _leaves(sample, device)
    begin = time.monotonic()
    while time.monotonic() - begin < timeout:
        value = sample
        skips = _LeafSkips()
        for k, layer in enumerate(layerwise_sandbox(module, device)):
            value = _leaves(value, device)
            _synchronize(device)
            started = time.perf_counter()
            with use_skip_tracker(skips):
                value = layer(value)
            trained = [tensor for tensor in _tensors(value) if tensor.requires_grad]
            if trained:
                torch.autograd.backward(trained, trained)
            _synchronize(device)
            seconds[k] += time.perf_counter() - started
    return [int(layer * 1e6) for layer in seconds]


def profile_sizes(
    module: nn.Sequential, input: Value, chunks: int, param_scale: float, device: torch.device
) -> list[int]:
    """Bytes of each layer's activations of one micro-batch, and of its parameters times
    `param_scale`."""
    if device.type != "cuda":
        raise ValueError(
            f"size profiler supports only CUDA device, not {device.type}: "
            f"gpipe.balance.balance_by_size counts bytes on any device, also without memory (meta)"
        )
    rows = _tensors(input)[0].size(0)
    value = tuple(tensor[:1] for tensor in input) if isinstance(input, tuple) else input[:1]
    sizes = []
    skips = _LeafSkips()
    for layer in layerwise_sandbox(module, device):
        value = _leaves(value, device)
        before = torch.cuda.memory_allocated(device)
        with use_skip_tracker(skips):
            value = layer(value)
        latent = (torch.cuda.memory_allocated(device) - before) * rows / chunks
        parameters = sum(p.element_size() * p.numel() for p in layer.parameters())
        sizes.append(int(latent + parameters * param_scale))
    return sizes
