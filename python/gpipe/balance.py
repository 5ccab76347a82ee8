"""How to cut a model: measured, planned without a device, or chosen together with all else.

    from gpipe import GPipe, balance

    cut = balance.balance_by_time(2, model, micro_batch)
    measured = balance.profile(model, micro_batch)          # seconds and bytes of each layer
    measured.save("profile.json")                           # the file that the C++ commands take

    planned = balance.plan(model, mini_batch, devices=2, memory=22 * 2**30)
    print(planned)                                          # the choice, the next best, the proof
    pipe = GPipe(model, **planned.options)
    pipe.step(input, target, loss_fn, schedule=planned.schedule)

    found = balance.fit(meta_model, input, target, loss_fn, memory=[22 * 2**30] * 4)

Layers run as stages of a pipeline, in training mode; what they change is put back. Hooks are
called. Models are nn.Sequentials. Docs: chapters 4, 18 and 20a of docs/guide.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from torch import Tensor, nn

from gpipe._arguments import named
from gpipe._load import extension
from gpipe.pipeline import (
    Pipelined,
    balance_of,
    checkpoints_of,
    loss_of,
    options_of,
    shared_inputs_of,
)
from gpipe.schedule import Schedule, parse, text_of

__all__ = [
    "DeviceMemory", "Fit", "LayerProfile", "MemoryPlan", "Plan", "Profile", "balance_by_size",
    "balance_by_time", "fit", "memory_plan", "plan", "profile",
]

Value = Union[Tensor, tuple[Tensor, ...]]


def _layers(model: nn.Sequential) -> list[tuple[str, nn.Module]]:
    if not isinstance(model, nn.Sequential):
        hint = ": give nn.Sequential(*pipe), its layers" if isinstance(model, Pipelined) else ""
        raise TypeError(
            f"the model must be an nn.Sequential of layers, not {type(model).__name__}{hint}"
        )
    return list(model.named_children())


@contextlib.contextmanager
def in_training(model: nn.Module) -> Iterator[None]:
    """The model is in training mode meanwhile. Afterwards each module has its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.train()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@dataclass(frozen=True)
class LayerProfile:
    """What a layer costs for one micro-batch.

    forward, backward: seconds, medians; 0 on the meta device.
    parameters, buffers: bytes. Shared ones count at the first layer that has them.
    kept: bytes from its forward to its backward, without its input.
    workspace: bytes that its forward or its backward holds beside that, at most.
    output: bytes that it gives to the next layer.
    input_gradient, weight_gradient: seconds of the halves of a split backward; None if they were
        not measured. waiting: bytes from the first half to the second.
    """

    name: str
    forward: float
    backward: float
    parameters: int
    buffers: int
    kept: int
    workspace: int
    output: int
    input_gradient: Optional[float] = None
    weight_gradient: Optional[float] = None
    waiting: Optional[int] = None


class Profile:
    """The costs of each layer. `str(profile)` is the text of its file, `Profile(text)` the inverse.

    Raises ValueError for another text.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        try:
            self._fields = json.loads(text)
            known = LayerProfile.__dataclass_fields__
            self._layers = [
                LayerProfile(**{key: value for key, value in layer.items() if key in known})
                for layer in self._fields["layers"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is not the text of a profile: {error}") from error

    @classmethod
    def load(cls, path: Union[str, os.PathLike[str]]) -> Profile:
        """Reads the file, which may also be one of `tools/bazel run //balance`."""
        with open(path, encoding="utf-8") as file:
            return cls(file.read())

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self._text)

    @property
    def layers(self) -> list[LayerProfile]:
        """The layers, in order."""
        return list(self._layers)

    @property
    def rows(self) -> int:
        """The rows of the micro-batch."""
        return self._fields["batch_rows"]

    @property
    def device(self) -> str:
        """The name of what it was measured on."""
        return self._fields["device"]

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        seconds = sum(layer.forward + layer.backward for layer in self._layers)
        return (
            f"<Profile: {len(self._layers)} layers, {self.rows} rows, {seconds:.3g} s on "
            f"{self.device}>"
        )


@named
def profile(
    model: nn.Sequential,
    sample: Value,
    *,
    rows: int = 0,
    timeout: float = 1.0,
    split: bool = True,
    threads: int = 0,
    name: str = "",
    shared_inputs: Sequence[int] = (),
    deferred_batch_norm: bool = False,
) -> Profile:
    """Measures each layer, on the model's own device.

    sample: a micro-batch. rows: how many of its first rows to take. Default: all.
    timeout: seconds after which no pass over the model begins; at least three passes run.
    split: whether to measure the halves of a split backward, too.
    threads: intra-op threads on the CPU. Default: all.
    name: of the model, for people.
    shared_inputs, deferred_batch_norm: as for GPipe.

    Ctrl-C ends it. Raises ValueError for arguments out of range, and whatever a layer raises.
    """
    layers = _layers(model)
    with in_training(model):
        return Profile(
            extension.profile_layers(
                layers, sample, name, rows, timeout, split, threads, shared_inputs_of(shared_inputs),
                deferred_batch_norm,
            )
        )


@named
def balance_by_time(
    partitions: int,
    model: nn.Sequential,
    sample: Value,
    *,
    timeout: float = 1.0,
    threads: int = 0,
    recompute: bool = False,
    slowness: Sequence[float] = (),
    shared_inputs: Sequence[int] = (),
) -> list[int]:
    """The cut whose slowest partition is as fast as possible: how many layers each one has.

    sample, timeout: as for `profile`.
    threads: of a layer on the CPU. Default: an equal share for each partition.
    recompute: whether partitions will recompute (checkpoint="always", nearly so "except_last").
    slowness: of each partition's device, relative to this one. Default: 1.
    shared_inputs: as for GPipe.

    Raises ValueError for more partitions than layers, and as `profile`.
    """
    layers = _layers(model)
    with in_training(model):
        return extension.balance_layers_by_time(
            partitions, layers, sample, timeout, threads, recompute, list(slowness),
            shared_inputs_of(shared_inputs),
        )


@named
def balance_by_size(
    partitions: int,
    model: nn.Sequential,
    sample: Value,
    *,
    chunks: int = 1,
    param_scale: float = 2.0,
    shared_inputs: Sequence[int] = (),
) -> list[int]:
    """The cut whose largest partition has as few bytes as possible. On the CPU or the meta device.

    sample: a micro-batch. chunks: how many of them a stage keeps at once.
    param_scale: bytes that training needs for each byte of a parameter: 2 for SGD, 3 with momentum,
        4 for Adam.
    shared_inputs: as for GPipe.

    Raises ValueError as `balance_by_time`.
    """
    layers = _layers(model)
    with in_training(model):
        return extension.balance_layers_by_size(
            partitions, layers, sample, chunks, param_scale, shared_inputs_of(shared_inputs)
        )


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes on one device: after a step, and `peak` at the moment at which it holds most.

    reserved: the most that LibTorch's CUDA allocator would reserve.
    """

    parameters: int
    gradients: int
    optimizer_state: int
    buffers: int
    peak: int
    reserved: int


@dataclass(frozen=True, repr=False)
class MemoryPlan:
    """The memory of each device; str() is a table of it."""

    devices: list[DeviceMemory]
    text: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


@named
def memory_plan(
    model: nn.Sequential,
    input: Value,
    target: Optional[Value] = None,
    loss_fn: Optional[Callable[..., Tensor]] = None,
    *,
    balance: Sequence[int],
    chunks: int = 1,
    checkpoint: Union[str, Sequence[str]] = "except_last",
    schedule: Union[str, Schedule, None] = None,
    optimizer: str = "",
    device_type: str = "cuda",
    shared_inputs: Sequence[int] = (),
    deferred_batch_norm: bool = False,
) -> MemoryPlan:
    """The memory of training steps, planned without a device.

    model: on the meta device (`with torch.device("meta"): model = ...`); so may input and target
        be, which are a mini-batch.
    loss_fn: as for GPipe.step. Default: the sum of the first output.
    balance, chunks, checkpoint, schedule, shared_inputs, deferred_batch_norm: as for GPipe and its
        step.
    optimizer: "sgd", "momentum" or "adam" (AdamW takes as much). Default: none.
    device_type: "cuda" or "cpu".

    Ctrl-C ends it. Raises ValueError if a tensor of the model is not on meta, and
    NotImplementedError for an operator that cannot run there.
    """
    layers = _layers(model)
    loss = None if loss_fn is None else loss_of(loss_fn, target)
    counts = balance_of(balance)
    modes = checkpoints_of(checkpoint, len(counts))
    with in_training(model):
        planned = extension.plan_memory(
            layers, input, target, loss, counts, chunks, modes, text_of(schedule), optimizer,
            _is_cuda(device_type), shared_inputs_of(shared_inputs), deferred_batch_norm,
        )
    return _memory_plan_of(planned)


def _memory_plan_of(planned: tuple[str, list[tuple[int, ...]]]) -> MemoryPlan:
    text, devices = planned
    return MemoryPlan([DeviceMemory(*device) for device in devices], text)


@dataclass(frozen=True, repr=False)
class Fit:
    """How to train a model on given devices, one partition on each. str() is a report.

    fits: whether it does. If not, the rest is about the way that exceeds the devices least.
    balance, chunks, checkpoint, shared_inputs, deferred_batch_norm: for GPipe; `options` has them
        together.
    step: predicted seconds of a training step, without the optimizer, on nominal GPUs: good for
        comparing, not for a clock.
    plan: the memory of that step.
    room, needed: of each device, its bytes less the margin, and the bytes that it needs.
    limit: which device lacks how much, and what takes it; "" if the model fits.
    """

    fits: bool
    balance: list[int]
    chunks: int
    checkpoint: str
    step: float
    plan: MemoryPlan
    room: list[int]
    needed: list[int]
    limit: str
    shared_inputs: list[int]
    deferred_batch_norm: bool

    @property
    def options(self) -> dict[str, Any]:
        """The arguments for GPipe, all that the fit is for."""
        return options_of(
            self.balance, self.chunks, self.checkpoint, self.shared_inputs, self.deferred_batch_norm
        )

    def __str__(self) -> str:
        how = f"balance {self.balance}, chunks {self.chunks}, checkpoint '{self.checkpoint}'"
        if self.fits:
            return f"The model fits: {how}; {self.step:.3g} s for a step.\n\n{self.plan}"
        return f"The model does not fit. Nearest is {how}: {self.limit}\n\n{self.plan}"

    __repr__ = __str__


@named
def fit(
    model: nn.Sequential,
    input: Value,
    target: Optional[Value] = None,
    loss_fn: Optional[Callable[..., Tensor]] = None,
    *,
    memory: Sequence[int],
    chunks: Sequence[int] = (),
    checkpoints: Sequence[str] = (),
    schedule: Union[str, Schedule, None] = None,
    optimizer: str = "",
    margin: int = 0,
    shared_inputs: Sequence[int] = (),
    deferred_batch_norm: bool = False,
) -> Fit:
    """How a model must be cut to fit on given GPUs, planned without one.

    Finds the balance, the number of micro-batches and the checkpoint mode with which it fits, what
    CUDA's allocator reserves included, and with which the predicted step is shortest.

    model: on the meta device (`with torch.device("meta"): model = ...`); so may input and target
        be, which are a mini-batch.
    loss_fn: as for GPipe.step. Default: the sum of the first output.
    memory: the bytes of each device.
    chunks, checkpoints: what to choose from. Default: all that make sense.
    schedule, shared_inputs, deferred_batch_norm: as for GPipe and its step.
    optimizer: as for `memory_plan`.
    margin: bytes to leave free on each device, for workspaces of kernels and the driver.

    Where the devices are CPUs, or differ in more than memory, see `plan` and `memory_plan`. Ctrl-C
    ends it. Raises ValueError for no devices, more devices than layers, a margin that leaves
    nothing, chunks out of range and a schedule with several stages on a device; and as
    `memory_plan`. A model that does not fit is a result, not an error.
    """
    layers = _layers(model)
    loss = None if loss_fn is None else loss_of(loss_fn, target)
    shared = shared_inputs_of(shared_inputs)
    with in_training(model):
        fits, cut, found, checkpoint, step, planned, room, needed, limit = extension.fit(
            layers, input, target, loss, list(memory), list(chunks), list(checkpoints),
            text_of(schedule), optimizer, margin, deferred_batch_norm, shared,
        )
    return Fit(
        fits, cut, found, checkpoint, step, _memory_plan_of(planned), room, needed, limit, shared,
        deferred_batch_norm,
    )


def _is_cuda(device_type: str) -> bool:
    if device_type not in ("cuda", "cpu"):
        raise ValueError(f"device_type is not one of 'cuda' or 'cpu': '{device_type}'")
    return device_type == "cuda"


class Plan:
    """How to train a model on given devices. str() is a report for people, with its proof."""

    def __init__(
        self, text: str, report: str, plan: str, problems: list[str], not_checked: list[str]
    ) -> None:
        self._text = text
        self._fields = json.loads(plan)
        self.report = json.loads(report)
        self.plan = plan
        self.problems = problems
        self.not_checked = not_checked

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    @property
    def options(self) -> dict[str, Any]:
        """The arguments for GPipe, all that the plan is for. Give `devices`, too, if the plan has
        several stages on a device."""
        options = options_of(
            self._fields["balance"], self._fields["chunks"], self._fields["checkpoints"],
            # The text of a plan has these two only where they are not the default.
            self._fields.get("shared_inputs", []), self._fields.get("deferred_batch_norm", False),
        )
        return {**options, "placement": self._fields["placement"]}

    @property
    def schedule(self) -> Schedule:
        """For GPipe.step."""
        return parse(self._fields["schedule"])

    @property
    def step(self) -> float:
        """The predicted seconds of a step, without the optimizer."""
        return self._fields["step"]

    @property
    def lower_bound(self) -> float:
        """No step of these rows on as many such devices is predicted to be shorter; seconds."""
        return self._fields["lower_bound"]

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the plan as the file that the C++ `load_plan` reads."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.plan)


@named
def plan(
    model: nn.Sequential,
    sample: Value,
    *,
    devices: int,
    memory: int = 0,
    chunks: Sequence[int] = (),
    checkpoints: Sequence[str] = (),
    schedules: Sequence[str] = (),
    profiles: Sequence[Profile] = (),
    timeout: float = 1.0,
    threads: int = 0,
    cores: int = 0,
    optimizer: str = "",
    device_type: str = "cpu",
    shared_inputs: Sequence[int] = (),
    deferred_batch_norm: bool = False,
) -> Plan:
    """Chooses balance, placement, micro-batches, checkpoints and schedule together.

    sample: a mini-batch, on the model's device. On meta, times are counted, not measured.
    devices: how many there are, all alike. memory: the bytes of each; 0: no limit.
    chunks, checkpoints, schedules: what to choose from. Default: all that make sense.
    profiles: for micro-batches of their rows; missing ones are measured, for `timeout` seconds
        each, with `threads` intra-op threads.
    cores: how many devices can compute at once, for several on one CPU. Default: all.
    optimizer, device_type: as for `memory_plan`.
    shared_inputs, deferred_batch_norm: as for GPipe. Profiles must have the same.

    The plan was derived a second time by other code: Plan.problems is empty, and Plan.not_checked
    lists what cannot be derived. Ctrl-C ends it. Raises ValueError if nothing fits, and names what
    comes nearest; and as `profile`.
    """
    layers = _layers(model)
    with in_training(model):
        return Plan(
            *extension.plan_training(
                layers, sample, devices, memory, list(chunks), list(checkpoints), list(schedules),
                [str(each) for each in profiles], timeout, threads, cores, optimizer,
                _is_cuda(device_type), shared_inputs_of(shared_inputs), deferred_batch_norm,
            )
        )
