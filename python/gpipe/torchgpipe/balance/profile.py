"""What each layer costs, measured in copies of the layers."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import Union

import torch
from torch import Tensor, nn

__all__ = ["layerwise_sandbox", "profile_sizes", "profile_times"]

Value = Union[Tensor, tuple[Tensor, ...]]


def layerwise_sandbox(module: nn.Sequential, device: torch.device) -> Iterator[nn.Module]:
    """A copy of each layer, on the device and in training mode."""
    for layer in module:
        copied = copy.deepcopy(layer).to(device)
        yield copied.train()


def _tensors(value: Value) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def _leaves(value: Value, device: torch.device) -> Value:
    """The same values without history, with the same marks for gradients."""

    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device).requires_grad_(tensor.requires_grad)

    return tuple(map(leaf, value)) if isinstance(value, tuple) else leaf(value)


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
        for k, layer in enumerate(layerwise_sandbox(module, device)):
            value = _leaves(value, device)
            _synchronize(device)
            started = time.perf_counter()
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
        raise ValueError("size profiler supports only CUDA device")
    rows = _tensors(input)[0].size(0)
    value = tuple(tensor[:1] for tensor in input) if isinstance(input, tuple) else input[:1]
    sizes = []
    for layer in layerwise_sandbox(module, device):
        value = _leaves(value, device)
        before = torch.cuda.memory_allocated(device)
        value = layer(value)
        latent = (torch.cuda.memory_allocated(device) - before) * rows / chunks
        parameters = sum(p.element_size() * p.numel() for p in layer.parameters())
        sizes.append(int(latent + parameters * param_scale))
    return sizes
