"""Balances for GPipe, from profiles."""

from __future__ import annotations

from typing import Optional, Union

import torch
from torch import Tensor, nn

from gpipe.torchgpipe.balance import blockpartition
from gpipe.torchgpipe.balance.profile import profile_sizes, profile_times

__all__ = ["balance_by_size", "balance_by_time"]

Device = Union[torch.device, int, str]
Value = Union[Tensor, tuple[Tensor, ...]]


def balance_cost(cost: list[int], partitions: int) -> list[int]:
    """How many consecutive costs each partition has."""
    return [len(block) for block in blockpartition.solve(cost, partitions)]


def _device(given: Optional[Device]) -> torch.device:
    """GPipe's first device if none is given."""
    if given is None:
        given = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(given)


def balance_by_time(
    partitions: int,
    module: nn.Sequential,
    sample: Value,
    *,
    timeout: float = 1.0,
    device: Optional[Device] = None,
) -> list[int]:
    """A balance by the time that forward and backward of each layer take.

    sample: a mini-batch, or better a micro-batch.
    timeout: seconds; no pass over the layers begins after it.
    device: where layers are measured. Default: the current CUDA device, or the CPU.

    The module is not changed. Raises ValueError if a parameter has a gradient already.
    """
    return balance_cost(profile_times(module, sample, timeout, _device(device)), partitions)


def balance_by_size(
    partitions: int,
    module: nn.Sequential,
    input: Value,
    *,
    chunks: int = 1,
    param_scale: float = 2.0,
    device: Optional[Device] = None,
) -> list[int]:
    """A balance by the bytes of each layer's activations and parameters, on a CUDA device.

    param_scale: how often the parameters count: 2 for plain SGD (weights, gradients), 3 with
        momentum, 4 for Adam.

    Raises ValueError for another device, where gpipe.balance.balance_by_size counts bytes.
    """
    sizes = profile_sizes(module, input, chunks, param_scale, _device(device))
    return balance_cost(sizes, partitions)
