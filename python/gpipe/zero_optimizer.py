"""ZeroOptimizer: an optimizer over replicas, each of which keeps a part of the states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional, Union

import torch
from torch import Tensor, nn

from gpipe._load import extension
from gpipe.pipeline import Pipelined
from gpipe.world import Beginning

__all__ = ["ZeroOptimizer"]

Make = Union[type[torch.optim.Optimizer], Callable[..., torch.optim.Optimizer]]


def _check(made: Any) -> None:
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(
            f"`make` gave a {type(made).__name__}, not a torch.optim.Optimizer: give a class of "
            f"torch.optim, or a function that makes an optimizer of the parameters that it is given"
        )
    if isinstance(made, torch.optim.LBFGS):
        raise NotImplementedError(
            "ZeroOptimizer needs an optimizer that treats each parameter alone, which "
            "torch.optim.LBFGS does not: take another one, or LBFGS without replicas"
        )


def _drop(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> None:
    for group in optimizer.param_groups:
        group["params"] = [each for each in group["params"] if each is not parameter]
    optimizer.state.pop(parameter, None)


class ZeroOptimizer(torch.optim.Optimizer):
    """An optimizer for replicas of a pipeline (`World.grid`): stage 1 of ZeRO.

        world = gpipe.World.from_environment().grid(2, 2)     # two replicas over two processes each
        model = gpipe.GPipe(layers, balance=[2, 2], chunks=8, world=world)
        optimizer = gpipe.ZeroOptimizer(model, torch.optim.AdamW, lr=1e-3)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)

    Each parameter belongs to one replica, which keeps its state, updates it, and gives the new
    values to the others. Parameters are not split, so the bits are those of `make` over all
    parameters, for any optimizer that treats each parameter alone; not LBFGS. Without replicas it
    is the plain optimizer of model.local_parameters().

    model: the pipeline. What is frozen must be frozen before.
    make: a class of torch.optim, or a function; called as make(parameters, **options) with the list
        of this replica's own parameters. It makes the same groups on all ranks, also where one has
        no parameters. If this replica has none at all, it gets an empty placeholder.
    options: what `make` gets by name.

    It is a torch.optim.Optimizer: schedulers take it, and so does gpipe.GradScaler (torch's only
    where each replica is one process; otherwise its ranks would decide differently). Clip by
    model.clip_grad_norm_, which knows all processes. `param_groups` have all parameters of this
    process; set learning rates and other options there, alike on all ranks. Each step uses what
    they are then. `state` is empty: states are in `local`. state_dict() and load_state_dict() are
    those of `local`, this replica's part; gpipe.save_checkpoint writes the states of all replicas,
    and reads those of a plain optimizer, too.

    All processes make it together: if `make` raises on one rank, the others get DistributedFailure,
    and all may try again. Raises TypeError for a model that is not a pipeline and for what `make`
    may not be or give, ValueError for an optimizer of parameters that it was not given.
    """

    def __init__(self, model: Pipelined, make: Make, **options: Any) -> None:
        if not isinstance(model, Pipelined):
            raise TypeError(
                f"model must be a gpipe.GPipe, not {type(model).__name__}: a plain module has no "
                f"replicas, so give its parameters() to the optimizer itself"
            )
        if not callable(make):
            raise TypeError(
                f"`make` must be a class of torch.optim or a function that makes an optimizer, not "
                f"{type(make).__name__}"
            )
        found: list[torch.optim.Optimizer] = []
        own: set[Tensor] = set()

        def make_local(parameters: list[Tensor]) -> tuple[str, list[Any], Callable[[], Any]]:
            own.update(parameters)
            # torch.optim refuses an empty list.
            placeholder = nn.Parameter(torch.empty(0))
            local = make(parameters or [placeholder], **options)
            _check(local)
            _drop(local, placeholder)
            found.append(local)
            groups = [
                (group["params"], _rate_of(group), [None] * len(group["params"]))
                for group in local.param_groups
            ]
            name = f"{type(local).__module__}.{type(local).__qualname__}"
            return name, groups, lambda: local.step()

        self._made = extension.ZeroOptimizer(model._current(), make_local)
        self._model = model
        self._local = found[0]
        groups = [
            {name: value for name, value in group.items() if name not in ("params", "param_names")}
            | {"params": list(group["params"])}
            for group in self._local.param_groups
        ]
        groups[0]["params"] += [each for each in model.local_parameters() if each not in own]
        self._complete = False
        super().__init__(groups, dict(self._local.defaults))
        self._complete = True

    @property
    def local(self) -> torch.optim.Optimizer:
        """The optimizer of this replica's own parameters, with their states. Its options are those
        of this object's `param_groups` at the last step."""
        return self._local

    def step(self, closure: Optional[Callable[[], Any]] = None) -> None:
        """Updates this replica's own parameters, and gets the new values of the others.

        All processes call it. Raises ValueError for a closure (call the pipeline's step before it),
        and on all ranks, before anything changes, if learning rates that were the same on two ranks
        when this was made are not any more. Raises DistributedFailure if another rank fails, or
        makes another call.
        """
        with Beginning(self._model._world):
            if closure is not None:
                raise ValueError(
                    "ZeroOptimizer.step takes no closure: call the pipeline's step before it"
                )
            self._give_options()
            rates = [_rate_of(group).get("lr") for group in self.param_groups]
        self._made.step(rates)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all parameters of this process."""
        for parameter in self._model.local_parameters():
            if parameter.grad is None:
                continue
            if set_to_none:
                parameter.grad = None
            else:
                parameter.grad.detach_().zero_()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises ValueError: `make` makes the groups."""
        if getattr(self, "_complete", False):
            raise ValueError(
                "a ZeroOptimizer takes no further groups, because the replicas have shared out the "
                "parameters: let the function that it is made with make the groups"
            )
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """That of `local`: the states that this replica keeps."""
        self._give_options()
        return self._local.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what state_dict() gave on the same rank of as many replicas."""
        self._local.load_state_dict(state_dict)
        self._take_options()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "a ZeroOptimizer cannot be copied or pickled, because it belongs to its pipeline and "
            "its processes: save it by gpipe.save_checkpoint"
        )

    def _give_options(self) -> None:
        """Copies the options of the groups to those of `local`."""
        if len(self.param_groups) != len(self._local.param_groups):
            raise ValueError(
                f"the ZeroOptimizer has {len(self.param_groups)} groups, not the "
                f"{len(self._local.param_groups)} that `make` made: put them back, or make a new one"
            )
        for group, target in zip(self.param_groups, self._local.param_groups):
            target.update({name: value for name, value in group.items() if name != "params"})

    def _take_options(self) -> None:
        """Copies the options of the groups of `local` to this object's."""
        for group, source in zip(self.param_groups, self._local.param_groups):
            group.update({name: value for name, value in source.items() if name != "params"})


def _rate_of(group: dict[str, Any]) -> dict[str, float]:
    """The learning rate, which the replicas compare; empty for an optimizer without one."""
    return {"lr": float(group["lr"])} if "lr" in group else {}
