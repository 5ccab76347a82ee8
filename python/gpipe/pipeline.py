"""GPipe: a torch.nn.Sequential that runs as a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch
from torch import Tensor, nn

from gpipe._load import extension

__all__ = ["GPipe", "StepResult"]

Value = Union[Tensor, tuple[Tensor, ...]]
Device = Union[torch.device, int, str]
CHECKPOINTS = ("always", "except_last", "never")


@dataclass(frozen=True)
class StepResult:
    """The result of `step` and `evaluate`.

    loss: of the mini-batch, a float.
    losses: of each micro-batch, as the loss function gave them.
    outputs: of the model, detached and joined; None unless `keep_outputs`.
    """

    loss: float
    losses: list[float]
    outputs: Optional[Value]


def devices_for(partitions: int, devices: Optional[Sequence[Device]]) -> list[torch.device]:
    """The device of each partition. Throws IndexError where there are too few."""
    if devices is None:
        cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
        devices = range(cuda) if cuda else ["cpu"] * partitions
    found = [torch.device(device) for device in devices]
    if len(found) < partitions:
        raise IndexError(
            f"too few devices to hold given partitions (devices: {len(found)}, partitions: "
            f"{partitions}): give a device for each, which may be the same one several times"
        )
    return found[:partitions]


class Pipelined(nn.Module):
    """The common base of both interfaces of the pipeline (gpipe.GPipe, gpipe.torchgpipe.GPipe).

    A derived class registers the layers, sets what `_settings` needs, and says in `_named_layers`
    which layers there are.
    """

    _balance: list[int]
    _devices: list[torch.device]
    _chunks: int
    _checkpoints: list[str]
    _options: dict[str, Any]

    def _named_layers(self) -> list[tuple[str, nn.Module]]:
        raise NotImplementedError

    def _settings(self) -> Any:
        settings = extension.PipelineSettings()
        settings.balance = self._balance
        settings.devices = [str(device) for device in self._devices]
        settings.chunks = self._chunks
        settings.checkpoints = self._checkpoints
        for name, value in self._options.items():
            setattr(settings, name, value)
        return settings

    def _make(self) -> None:
        """Makes the pipeline, of the layers that there are now."""
        named = self._named_layers()
        # Not a registered submodule, nor a part of the state.
        self.__dict__["_pipeline"] = extension.Pipeline(named, self._settings())
        self.__dict__["_made_of"] = [layer for _, layer in named]

    def _make_again(self) -> None:
        """Has the next call make the pipeline again, because a setting has changed."""
        self.__dict__["_made_of"] = None

    def _current(self) -> Any:
        """The pipeline, made again if a layer was replaced, or a setting has changed."""
        layers = [layer for _, layer in self._named_layers()]
        if layers != self._made_of:
            if len(layers) != sum(self._balance):
                raise ValueError(
                    f"the pipeline was made of {sum(self._balance)} layers and has {len(layers)} "
                    f"now: replace layers one for one, or make a new pipeline"
                )
            self._make()
        return self._pipeline

    def forward(self, input: Value) -> Value:
        """(N, ...) -> (N, ...), in micro-batches.

        The backward of what is made of the output runs the backward half of the pipeline.

        input: a tensor or a tuple of tensors, all with the same N, on the first device. Raises
        TypeError for anything else, and whatever a layer raises, with a note that says in which
        stage, micro-batch and layer.
        """
        pipeline = self._current()
        output = pipeline.forward(input, self.training)
        for tensor in output if isinstance(output, tuple) else (output,):
            if tensor.grad_fn is not None:
                # The backward needs the pipeline, even if nothing else refers to it any more.
                tensor.grad_fn.metadata["gpipe"] = pipeline
                break
        return output

    def step(
        self,
        input: Value,
        target: Optional[Value],
        loss_fn: Callable[..., Tensor],
        *,
        schedule: str = "",
        reduction: str = "mean",
        weight: Optional[Callable[[Value], float]] = None,
        keep_outputs: bool = False,
        check_finite: bool = False,
    ) -> StepResult:
        """Runs forward, loss and backward inside the pipeline, and adds to the gradients.

        input, target: a tensor or a tuple of tensors with N rows, on the first and on the last
            device; target may be None.
        loss_fn: called as loss_fn(output, target) for each micro-batch, or loss_fn(output) without
            a target; gives a scalar tensor, the mean over the rows it is given. Runs on the last
            stage's worker.
        schedule: a name (`gpipe.schedule_names()`), or the text of a schedule. Default: 1F1B.
        reduction: "mean" or "sum", what loss_fn computes.
        weight: what the mean of a micro-batch is taken over, from its target. Default: its rows.
        keep_outputs: whether the result has the model's outputs.
        check_finite: whether to look for the first NaN or infinity, which is raised as a ValueError
            that names the layer.

        Raises ValueError if inputs, targets, schedule or loss do not fit, and whatever a layer or
        loss_fn raises.
        """
        settings = extension.StepSettings(schedule, reduction, weight, keep_outputs, check_finite)
        result = self._current().step(input, target, loss_fn, settings, self.training)
        return StepResult(result.loss, result.losses, result.outputs)

    def evaluate(
        self,
        input: Value,
        target: Optional[Value],
        loss_fn: Callable[..., Tensor],
        *,
        schedule: str = "",
        reduction: str = "mean",
        weight: Optional[Callable[[Value], float]] = None,
        keep_outputs: bool = False,
        check_finite: bool = False,
    ) -> StepResult:
        """As `step`, without gradients: a validation. Call `eval()` before, as for any module."""
        settings = extension.StepSettings(schedule, reduction, weight, keep_outputs, check_finite)
        result = self._current().evaluate(input, target, loss_fn, settings, self.training)
        return StepResult(result.loss, result.losses, result.outputs)

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> float:
        """Scales the gradients so that their norm, as of one vector, is at most max_norm.

        As torch.nn.utils.clip_grad_norm_ of all parameters, on all devices; those without a
        gradient count as zero. Returns the norm before, a float.

        Raises ValueError for a max_norm or norm_type that is not valid, and for a norm that is not
        finite with error_if_nonfinite.
        """
        return self._current().clip_grad_norm(max_norm, norm_type, error_if_nonfinite)

    def parameter_hash(self) -> str:
        """The bits of all parameters as 16 hexadecimal digits.

        Equal for equal parameters, whatever the balance: to compare two runs. Buffers and gradients
        do not count.
        """
        return self._current().parameter_hash()

    # Each partition has its own device.

    def _refuse_to_move(self) -> None:
        raise TypeError(
            "denied to move parameters and buffers, because a pipeline places its partitions: "
            "give it the devices when it is made"
        )

    def to(self, *args: Any, **kwargs: Any) -> Pipelined:
        """Casts to a dtype, as any module. A device, or a tensor, is refused with TypeError."""
        if "tensor" in kwargs or any(isinstance(value, Tensor) for value in args):
            self._refuse_to_move()
        device, *_ = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None:
            self._refuse_to_move()
        return super().to(*args, **kwargs)

    def cuda(self, device: Optional[Device] = None) -> Pipelined:
        self._refuse_to_move()

    def cpu(self) -> Pipelined:
        self._refuse_to_move()

    # A copy, or an unpickled pipeline, is made again from its layers.

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_pipeline"], state["_made_of"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._make()

    def __len__(self) -> int:
        """How many layers there are."""
        return len(self._named_layers())

    def __getitem__(self, index: int) -> nn.Module:
        """The layer, the user's own object; a negative index counts from the end."""
        return [layer for _, layer in self._named_layers()][index]

    def __iter__(self) -> Iterator[nn.Module]:
        """The layers, the user's own objects."""
        return iter([layer for _, layer in self._named_layers()])


def place(layers: Sequence[nn.Module], balance: Sequence[int], devices: Sequence[torch.device]) -> None:
    """Moves each layer to its partition's device; parameters stay the same objects."""
    layer = iter(layers)
    for count, device in zip(balance, devices):
        for _ in range(count):
            next(layer).to(device)


class GPipe(Pipelined):
    """A torch.nn.Sequential that runs as a pipeline.

    model = GPipe(nn.Sequential(a, b, c, d), balance=[2, 2], chunks=8)

    module: its layers each take and give a tensor or a tuple of tensors. They stay the user's own
        objects, under the same state-dict keys, and are moved to their devices.
    balance: how many consecutive layers each partition has.
    devices: of each partition. Default: every CUDA device in order; without any, the CPU.
    chunks: into how many micro-batches a mini-batch is cut, along dimension 0.
    checkpoint: "always", "except_last" or "never", or one of them for each partition: which
        micro-batches compute their activations again in backward (in training mode only).
    deferred_batch_norm: whether batch norms update their running statistics once per mini-batch.
    shared_inputs: the numbers of inputs that are the same for all micro-batches, and not cut.
    placement: the worker of each stage. Default: one each.
    groups: into how many groups gradients are added up (docs/guide/31-replicas.md). Default: none.
    cpu_threads_per_stage: intra-op threads of each stage. Default: an equal share.

    Raises TypeError for a module that is not a Sequential or whose skips do not pair up, ValueError
    for a balance, chunks or checkpoint that do not fit, IndexError for too few devices.
    """

    def __init__(
        self,
        module: nn.Sequential,
        balance: Sequence[int],
        *,
        devices: Optional[Sequence[Device]] = None,
        chunks: int = 1,
        checkpoint: Union[str, Sequence[str]] = "except_last",
        deferred_batch_norm: bool = False,
        shared_inputs: Sequence[int] = (),
        placement: Optional[Sequence[int]] = None,
        groups: int = 0,
        cpu_threads_per_stage: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Sequential):
            raise TypeError(
                f"module must be nn.Sequential to be partitioned, not {type(module).__name__}"
            )
        if type(module).forward is not nn.Sequential.forward:
            raise TypeError(
                f"{type(module).__name__} has a forward of its own, which a pipeline would not "
                f"call: give an nn.Sequential of the layers"
            )
        self._balance = [int(count) for count in balance]
        self._devices = devices_for(len(self._balance), devices)
        self._chunks = int(chunks)
        self._checkpoints = [checkpoint] if isinstance(checkpoint, str) else list(checkpoint)
        self._options = {
            "deferred_batch_norm": bool(deferred_batch_norm),
            "shared_inputs": list(shared_inputs),
            "worker_of_stage": None if placement is None else list(placement),
            "groups": groups,
            "cpu_threads_per_stage": cpu_threads_per_stage,
        }
        layers = dict(module.named_children())
        if len(layers) != len(module):
            raise ValueError(
                "module with duplicate children is not supported: a layer that is to run twice "
                "needs a module of its own, which may have the same parameters"
            )
        # Without register_module, which refuses names that this class has attributes of.
        self._modules.update(layers)
        if sum(self._balance) == len(layers):  # otherwise _make says what is wrong
            place(list(layers.values()), self._balance, self._devices)
        self.training = module.training
        self._make()

    def _named_layers(self) -> list[tuple[str, nn.Module]]:
        return list(self._modules.items())

    @property
    def balance(self) -> list[int]:
        """How many layers each partition has."""
        return list(self._balance)

    @property
    def devices(self) -> list[torch.device]:
        """The device of each partition."""
        return list(self._devices)

    @property
    def chunks(self) -> int:
        """Into how many micro-batches a mini-batch is cut."""
        return self._chunks

    @property
    def checkpoint(self) -> Union[str, list[str]]:
        """The checkpoint mode, or that of each partition."""
        return self._checkpoints[0] if len(self._checkpoints) == 1 else list(self._checkpoints)
