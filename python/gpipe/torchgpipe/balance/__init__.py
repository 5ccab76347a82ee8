"""Balances for GPipe, from profiles."""

from __future__ import annotations

from typing import Union

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


def balance_by_time(
    partitions: int,
    module: nn.Sequential,
    sample: Value,
    *,
    timeout: float = 1.0,
    device: Device = torch.device("cuda"),
) -> list[int]:
    """A balance by the time that forward and backward of each layer take.

    sample: a mini-batch, or better a micro-batch.
    timeout: seconds; no pass over the layers begins after it.

    The module is not changed. Raises ValueError if a parameter has a gradient already.
    """
    return balance_cost(profile_times(module, sample, timeout, torch.device(device)), partitions)


def balance_by_size(
    partitions: int,
    module: nn.Sequential,
    input: Value,
    *,
    chunks: int = 1,
    param_scale: float = 2.0,
    device: Device = torch.device("cuda"),
) -> list[int]:
    """A balance by the bytes of each layer's activations and parameters. On CUDA devices only.

    param_scale: how often the parameters count: 2 for plain SGD (weights, gradients), 3 with
        momentum, 4 for Adam.

    Raises ValueError for another device.
    """
    sizes = profile_sizes(module, input, chunks, param_scale, torch.device(device))
    return balance_cost(sizes, partitions)
