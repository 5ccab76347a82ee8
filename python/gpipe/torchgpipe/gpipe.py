"""torchgpipe's GPipe."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Optional

import torch
from torch import nn

from gpipe._arguments import checked
from gpipe.pipeline import (
    CALL_HOOKS,
    CHECKPOINTS,
    Device,
    Pipelined,
    balance_of,
    devices_for,
    place,
    verify_sequential,
)
from gpipe.skip import verify_skippables
from gpipe.torchgpipe.batchnorm import DeferredBatchNorm

__all__ = ["BalanceError", "GPipe", "verify_module"]

_HOW_TO_BALANCE = """

If your model is still under development, its cost per layer changes often. torchgpipe.balance finds
a balance by profiling:

    from gpipe.torchgpipe import GPipe
    from gpipe.torchgpipe.balance import balance_by_time

    balance = balance_by_time(partitions, model, sample, device="cpu")
    model = GPipe(model, balance, chunks=8)
"""


def _whole(value: Any) -> Any:
    """An int for a float that is one, which torchgpipe takes as well."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class BalanceError(ValueError):
    """A balance that does not fit the model."""


def verify_module(module: nn.Sequential) -> None:
    """Raises TypeError or ValueError for what cannot be partitioned."""
    verify_sequential(module)
    children = list(module.named_children())
    if len(children) != len(module):
        raise ValueError("module with duplicate children is not supported")
    if len(list(module.parameters())) != sum(len(list(c.parameters())) for _, c in children):
        raise ValueError("module with duplicate parameters in distinct children is not supported")


class GPipe(Pipelined):
    """A torch.nn.Sequential that runs as a pipeline, with torchgpipe's arguments and keys.

    It also has `step`, `evaluate` and all else of gpipe.GPipe.

    module: the layers stay the user's own objects. With deferred_batch_norm its batch norms are
        replaced by DeferredBatchNorm, in place.
    balance: how many consecutive layers each partition has; sums up to their number.
    devices: of each partition; surplus ones are dropped. Default: every CUDA device, or the CPU.
    chunks: into how many micro-batches a mini-batch is cut.
    checkpoint: "always", "except_last" or "never".
    deferred_batch_norm: whether running statistics are updated once per mini-batch.

    Raises TypeError, ValueError and IndexError as torchgpipe does, and TypeError for hooks, buffers
    and a forward that the Sequential itself has, which torchgpipe drops.
    """

    def __init__(
        self,
        module: nn.Sequential,
        balance: Optional[Iterable[int]] = None,
        *,
        devices: Optional[Iterable[Device]] = None,
        chunks: int = 1,
        checkpoint: str = "except_last",
        deferred_batch_norm: bool = False,
    ) -> None:
        super().__init__()
        if balance is None:
            raise ValueError("balance is required" + _HOW_TO_BALANCE)
        self.chunks = chunks
        self.checkpoint = checkpoint
        verify_module(module)
        verify_skippables(module)
        if deferred_batch_norm:
            module = DeferredBatchNorm.convert_deferred_batch_norm(module, self.chunks)
        if isinstance(balance, Iterable) and not isinstance(balance, str):
            balance = [_whole(count) for count in balance]
        self._balance = balance_of(balance)
        if len(module) != sum(self._balance):
            raise BalanceError(
                f"module and sum of balance have different length (module: {len(module)}, "
                f"sum of balance: {sum(self._balance)})" + _HOW_TO_BALANCE
            )
        if any(count <= 0 for count in self._balance):
            raise BalanceError(
                f"all balance numbers must be positive integer (balance: {self._balance})"
                + _HOW_TO_BALANCE
            )
        self._devices = devices_for(len(self._balance), devices)
        # DeferredBatchNorm keeps the statistics, so the pipeline's own option stays off.
        self._options = {}
        layers = iter(module.named_children())
        self.partitions = nn.ModuleList(
            nn.Sequential(OrderedDict(next(layers) for _ in range(count)))
            for count in self._balance
        )
        place(list(self), self._balance, self._devices)
        self._remember(module)
        self._make()

    @property
    def chunks(self) -> int:
        """Into how many micro-batches a mini-batch is cut. May be set; counts from the next call."""
        return self._chunks

    @chunks.setter
    def chunks(self, chunks: int) -> None:
        chunks = checked("chunks", _whole(chunks), int, "give the number of micro-batches")
        if chunks <= 0:
            raise ValueError(f"number of chunks must be positive integer, not {chunks}")
        self._chunks = chunks
        for module in self.modules():
            if isinstance(module, DeferredBatchNorm):
                module.chunks = chunks
        self._make_again()

    @property
    def checkpoint(self) -> str:
        """Either "always", "except_last" or "never". May be set; counts from the next call."""
        return self._checkpoints[0]

    @checkpoint.setter
    def checkpoint(self, checkpoint: str) -> None:
        checkpoint = str(checkpoint)
        if checkpoint not in CHECKPOINTS:
            raise ValueError(
                f"checkpoint is not one of 'always', 'except_last', or 'never': '{checkpoint}'"
            )
        self._checkpoints = [checkpoint]
        self._make_again()

    def _holders(self) -> list[dict[str, nn.Module]]:
        # Every call runs this, so `partitions` is read without nn.Module's slow look-up of
        # attributes.
        return [each._modules for each in self._modules["partitions"]._modules.values()]

    def _check_given(self) -> None:
        super()._check_given()
        if len(self._modules) == 1:
            return
        for name, _ in self._named_layers():
            if name in self._modules:
                raise ValueError(
                    f"the pipeline has got a module '{name}' beside its layer '{name}', and would "
                    f"not call it: replace the layer by model[k] = layer, and take the module back "
                    f"by delattr(model, '{name}')"
                )

    def _units(self) -> tuple[list[tuple[str, nn.Module]], list[int]]:
        # A partition with hooks runs as one layer, so that its hooks are called. It gets the name
        # of its first layer, because no other layer has that name.
        units, balance = [], []
        for partition in self._modules["partitions"]._modules.values():
            layers = list(partition._modules.items())
            if any(getattr(partition, hooks) for hooks in CALL_HOOKS):
                layers = [(layers[0][0], partition)]
            units += layers
            balance.append(len(layers))
        return units, balance

    @property
    def balance(self) -> list[int]:
        """How many layers each partition has."""
        return self._balance

    @property
    def devices(self) -> list[torch.device]:
        """The device of each partition."""
        return self._devices
