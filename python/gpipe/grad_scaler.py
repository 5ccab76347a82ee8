"""GradScaler: chooses the factor of the loss that float16 needs, for all processes together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import torch

from gpipe._arguments import named
from gpipe._load import extension
from gpipe.pipeline import Pipelined
from gpipe.world import Beginning

__all__ = ["GradScaler"]


class GradScaler:
    """torch.amp.GradScaler for a pipeline, over any number of processes.

        scaler = gpipe.GradScaler(model)
        for input, target in batches:
            optimizer.zero_grad()
            loss = model.step(input, target, loss_fn, loss_scale=scaler.get_scale()).loss
            scaler.unscale_()                  # only before what reads gradients, such as clipping
            model.clip_grad_norm_(1.0)
            scaler.step(optimizer)             # left out if a gradient is not finite
            scaler.update()                    # then halved; doubled after 2,000 steps without

    The factors are those of torch.amp.GradScaler, the loss of a step is the loss itself, and
    without `step`, multiply: (loss * scaler.get_scale()).backward(). All processes make the same
    calls, in the same order. Before any of them changes a parameter, they agree on whether all
    gradients, on all of them, are finite: those of all the pipeline's parameters, and not only of
    the optimizer's. So freeze what is not trained, and clear all by model.zero_grad().

    model: the pipeline.
    init_scale: the first factor. growth_factor, growth_interval: what it is multiplied by after so
        many steps in a row with finite gradients. backoff_factor: after a step without.
    enabled: if not, the factor is 1 and every step is made.

    gpipe.save_checkpoint takes it in `others`. Raises TypeError for a model that is not a pipeline,
    ValueError for options that are out of their bounds.
    """

    @named
    def __init__(
        self,
        model: Pipelined,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if not isinstance(model, Pipelined):
            raise TypeError(
                f"model must be a gpipe.GPipe, not {type(model).__name__}: for a plain module take "
                f"torch.amp.GradScaler"
            )
        self._model = model
        self._options = (init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self._made: Optional[Any] = None
        self._state: tuple[float, int] = self._make().state()

    def _make(self) -> Any:
        return extension.GradScaler(self._model._current(), *self._options)

    def _of_this_step(self) -> Any:
        """The extension's scaler, one for each step: the pipeline may be made again between them."""
        if self._made is None:
            self._made = self._make()
            self._made.load(*self._state)
        return self._made

    def get_scale(self) -> float:
        """The factor of the next step, for GPipe.step(loss_scale=...)."""
        return self._state[0] if self._options[-1] else 1.0

    def unscale_(self) -> bool:
        """Divides all gradients by the factor. Returns whether all are finite, on all processes.

        Call it between the pipeline's step and whatever reads gradients; `step` does it otherwise.
        Raises ValueError the second time before `update`.
        """
        with Beginning(self._model._world):
            made = self._of_this_step()
        return made.unscale()

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Calls optimizer.step(), unless a gradient is not finite. Returns whether it did.

        optimizer: of torch.optim, a gpipe.ZeroOptimizer, or your own. It may also have parameters
            of the loss function, whose gradients are divided and checked, too.

        Raises ValueError the second time before `update`, and whatever the optimizer raises; then
        the factor stays, and the next step may begin.
        """
        with Beginning(self._model._world):
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise TypeError(
                    f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}"
                )
            groups: list[Any] = [
                (group["params"], {}, [None] * len(group["params"]))
                for group in optimizer.param_groups
            ]
            made = self._of_this_step()

        def own_step() -> None:
            try:
                optimizer.step()
            except BaseException:
                self._made = None  # the extension's begins anew, too
                raise

        return made.step(groups, own_step)

    def update(self) -> None:
        """Adapts the factor. Call it once after each `step`.

        Raises ValueError without a `step` or `unscale_` before it, and where the factor has become
        so small that no float32 divides by it: then gradients are not finite whatever it is.
        """
        made, self._made = self._of_this_step(), None
        made.update()
        self._state = made.state()

    def state_dict(self) -> dict[str, Any]:
        """What load_state_dict takes. The names are those of torch.amp.GradScaler."""
        scale, steps = self._state
        return {"scale": scale, "_growth_tracker": steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from what state_dict() gave, also of an enabled torch.amp.GradScaler.

        Options stay those of this object. Raises ValueError for a scale that cannot be one.
        """
        made = self._make()
        made.load(state_dict["scale"], state_dict["_growth_tracker"])
        self._state, self._made = made.state(), None
