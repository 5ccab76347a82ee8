"""DeferredBatchNorm: a batch norm whose running statistics are those of whole mini-batches."""

from __future__ import annotations

from typing import Optional, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from gpipe.torchgpipe.checkpoint import is_recomputing

__all__ = ["DeferredBatchNorm"]

_Module = TypeVar("_Module", bound=nn.Module)


class DeferredBatchNorm(_BatchNorm):
    """Normalizes each micro-batch, (N, C, ...), by its own statistics, and adds these up.

    After every `chunks` micro-batches the running statistics are updated once. `sum` and
    `sum_squares`, of shape (C), are what has been added up since; they are part of the state.
    """

    sum: Tensor
    sum_squares: Tensor
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: Optional[float] = 0.1,
        affine: bool = True,
        chunks: int = 1,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats=True)
        self.register_buffer("sum", torch.zeros_like(self.running_mean))
        self.register_buffer("sum_squares", torch.zeros_like(self.running_var))
        self.counter = 0  # elements per channel in the sums
        self.tracked = 0  # micro-batches in the sums
        self.chunks = chunks

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() <= 2:
            raise ValueError(f"expected at least 3D input (got {input.dim()}D input)")

    @torch.no_grad()
    def _track(self, input: Tensor) -> bool:
        """Adds a micro-batch; returns whether it was the last one of its mini-batch."""
        others = [d for d in range(input.dim()) if d != 1]
        self.sum.add_(input.sum(dim=others))
        self.sum_squares.add_(input.square().sum(dim=others))
        self.counter += input.numel() // input.size(1)
        self.tracked += 1
        return self.tracked == self.chunks

    @torch.no_grad()
    def _commit(self) -> None:
        """Updates the running statistics and begins anew."""
        self.num_batches_tracked.add_(1)
        if self.momentum is None:
            factor = 1.0 / float(self.num_batches_tracked)
        else:
            factor = self.momentum
        mean = self.sum / self.counter
        variance = self.sum_squares / self.counter - mean.square()
        self.running_mean.mul_(1 - factor).add_(mean, alpha=factor)
        self.running_var.mul_(1 - factor).add_(variance, alpha=factor)
        self.sum.zero_()
        self.sum_squares.zero_()
        self.counter = 0
        self.tracked = 0

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0,
                self.eps,
            )
        if not is_recomputing() and self._track(input):
            self._commit()
        return batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)

    @classmethod
    def convert_deferred_batch_norm(cls, module: _Module, chunks: int = 1) -> _Module:
        """Replaces the batch norms within by deferred ones, which keep their parameters and
        running statistics as they are; returns the module, or what replaces it.
        """
        if isinstance(module, cls) and module.chunks == chunks:
            return cast(_Module, module)
        converted: nn.Module = module
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            converted = cls(
                module.num_features, module.eps, module.momentum, module.affine, chunks
            )
            converted.training = module.training
            converted.to(module.running_mean.device, module.running_mean.dtype)
            if module.affine:
                converted.register_parameter("weight", module.weight)
                converted.register_parameter("bias", module.bias)
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                converted.register_buffer(name, getattr(module, name))
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_deferred_batch_norm(child, chunks))
        return cast(_Module, converted)
