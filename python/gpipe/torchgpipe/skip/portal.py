"""Portals: where a skip tensor goes around the layers between, hidden from autograd.

    portal = Portal(tensor, tensor_life=2)
    main = join(main, portal.blue())        # at the layer that stashes
    main, phony = fork(main)
    tensor = portal.orange(phony)           # at the layer that pops

In backward the gradient goes back through the portal.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from gpipe.torchgpipe.copy import copied
from gpipe.torchgpipe.phony import get_phony
from gpipe.torchgpipe.stream import AbstractStream, get_device

__all__ = ["Portal", "PortalBlue", "PortalCopy", "PortalOrange"]


class Portal:
    """Keeps a tensor until it has been used `tensor_life` times."""

    def __init__(self, tensor: Optional[Tensor], tensor_life: int) -> None:
        self.put_tensor(tensor, tensor_life)
        self.grad: Optional[Tensor] = None

    def put_tensor(self, tensor: Optional[Tensor], tensor_life: int) -> None:
        """Keeps another tensor."""
        self.tensor_life = tensor_life
        self.tensor = tensor if tensor_life > 0 else None

    def check_tensor_life(self) -> None:
        """Raises RuntimeError if the tensor has been used as often as it may."""
        if self.tensor_life <= 0:
            raise RuntimeError("the tensor in the portal has been removed")

    def use_tensor(self) -> Optional[Tensor]:
        """The tensor, which is removed at its last use."""
        self.check_tensor_life()
        tensor = self.tensor
        self.put_tensor(tensor, self.tensor_life - 1)
        return tensor

    def put_grad(self, grad: Tensor) -> None:
        """Keeps a gradient."""
        self.grad = grad

    def use_grad(self) -> Tensor:
        """Removes and returns the gradient. Raises RuntimeError if there is none."""
        if self.grad is None:
            raise RuntimeError("the gradient in the portal has been removed, or was never there")
        grad, self.grad = self.grad, None
        return grad

    def blue(self) -> Tensor:
        """Uses the tensor; returns a phony whose backward takes the gradient."""
        tensor = self.use_tensor()
        if tensor is None:
            return get_phony(torch.device("cpu"), requires_grad=False)
        return PortalBlue.apply(self, tensor)

    def orange(self, phony: Tensor) -> Optional[Tensor]:
        """Uses the tensor, and returns it as if it were made of the phony."""
        self.check_tensor_life()
        return self.use_tensor() if self.tensor is None else PortalOrange.apply(self, phony)

    def copy(
        self, prev_stream: AbstractStream, next_stream: AbstractStream, phony: Tensor
    ) -> Tensor:
        """Moves the tensor to the device of `next_stream`; returns a phony there."""
        if self.tensor is None:
            return get_phony(torch.device("cpu"), requires_grad=False)
        return PortalCopy.apply(self, prev_stream, next_stream, phony)


class PortalBlue(torch.autograd.Function):
    """The node of `blue`."""

    @staticmethod
    def forward(context: Any, portal: Portal, tensor: Tensor) -> Tensor:
        context.portal = portal
        return get_phony(tensor.device, requires_grad=False).detach()

    @staticmethod
    def backward(context: Any, of_phony: Tensor) -> tuple[None, Tensor]:
        return None, context.portal.use_grad()


class PortalOrange(torch.autograd.Function):
    """The node of `orange`."""

    @staticmethod
    def forward(context: Any, portal: Portal, phony: Tensor) -> Tensor:
        context.portal = portal
        return portal.use_tensor().detach()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[None, None]:
        context.portal.put_grad(gradient)
        return None, None


class PortalCopy(torch.autograd.Function):
    """The node of `copy`."""

    @staticmethod
    def forward(
        context: Any,
        portal: Portal,
        prev_stream: AbstractStream,
        next_stream: AbstractStream,
        phony: Tensor,
    ) -> Tensor:
        context.portal, context.streams = portal, (prev_stream, next_stream)
        (portal.tensor,) = copied(prev_stream, next_stream, (portal.tensor,))
        return get_phony(get_device(next_stream), requires_grad=False).detach()

    @staticmethod
    def backward(context: Any, of_phony: Tensor) -> tuple[None, None, None, None]:
        prev_stream, next_stream = context.streams
        (grad,) = copied(next_stream, prev_stream, (context.portal.use_grad(),))
        context.portal.put_grad(grad)
        return None, None, None, None
