"""GPipe: a torch.nn.Sequential that runs as a pipeline."""

from __future__ import annotations

import contextlib
import itertools
import operator
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch
from torch import Tensor, nn

from gpipe._arguments import checked, named
from gpipe._load import extension
from gpipe.schedule import Schedule, text_of
from gpipe.world import Beginning, World

__all__ = ["GPipe", "StepResult"]

Value = Union[Tensor, tuple[Tensor, ...]]
Device = Union[torch.device, int, str]
CHECKPOINTS = ("always", "except_last", "never")
# The hooks that calls and state dicts run, by the names of the attributes that keep them.
CALL_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
STATE_HOOKS = (
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


@dataclass(frozen=True)
class StepResult:
    """The result of `step` and `evaluate`.

    loss: of the mini-batch, a float.
    losses: of each micro-batch, as the loss function gave them.
    outputs: of the model, detached and joined; None unless `keep_outputs`, and over processes where
        the last stage is not.
    """

    loss: float
    losses: list[float]
    outputs: Optional[Value]


def balance_of(balance: Any) -> list[int]:
    """How many layers each partition has. Raises TypeError for anything else than ints."""
    return checked(
        "balance", balance, Sequence[int],
        "give the number of layers of each partition; gpipe.balance.balance_by_time(partitions, "
        "model, sample) finds a good one",
    )


def checkpoints_of(checkpoint: Any, partitions: int) -> list[str]:
    """One mode, or that of each partition.

    Raises TypeError for anything else than texts, ValueError for a list of another length.
    """
    modes = checked(
        "checkpoint", checkpoint, Union[str, Sequence[str]],
        "give 'always', 'except_last' or 'never', or one of them for each partition",
    )
    if isinstance(modes, str):
        return [modes]
    if len(modes) != partitions:
        raise ValueError(
            f"checkpoint has {len(modes)} modes, and the balance {partitions} partitions: give one "
            f"for each, or a single str for all"
        )
    return modes


def shared_inputs_of(numbers: Any) -> list[int]:
    """The numbers of the inputs that are not cut.

    Raises TypeError for anything else than ints, ValueError for one below 0 or given twice.
    """
    found = checked("shared_inputs", numbers, Sequence[int])
    if min(found, default=0) < 0 or len(set(found)) < len(found):
        raise ValueError(
            f"shared_inputs must be numbers of inputs, counted from 0, each once, got {found}"
        )
    return found


def options_of(
    balance: list[int],
    chunks: int,
    checkpoint: Union[str, list[str]],
    shared_inputs: list[int],
    deferred_batch_norm: bool,
) -> dict[str, Any]:
    """The arguments for GPipe of what was planned, fitted or advised.

    Has no defaults: whoever plans for a pipeline says all that changes what it computes. Without
    its shared inputs a mask of as many rows would be cut, and the loss another, without an error.
    The result leaves out the last two where they are GPipe's defaults, because programs that
    planned without them may give these beside it.
    """
    options: dict[str, Any] = {"balance": balance, "chunks": chunks, "checkpoint": checkpoint}
    if shared_inputs:
        options["shared_inputs"] = shared_inputs
    if deferred_batch_norm:
        options["deferred_batch_norm"] = True
    return options


def devices_of(devices: Any) -> list[torch.device]:
    """The given devices. Raises TypeError for anything else than a list of them."""
    hint = "give one for each partition"
    if isinstance(devices, (str, torch.device)):
        hint += f": ['{devices}', '{devices}']"
    return [torch.device(each) for each in checked("devices", devices, Sequence[Device], hint)]


def devices_for(partitions: int, devices: Optional[Sequence[Device]]) -> list[torch.device]:
    """The device of each partition. Throws IndexError where there are too few."""
    if devices is None:
        cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
        devices = range(cuda) if cuda else ["cpu"] * partitions
    found = devices_of(devices)
    if len(found) < partitions:
        raise IndexError(
            f"too few devices to hold given partitions (devices: {len(found)}, partitions: "
            f"{partitions}): give a device for each, which may be the same one several times"
        )
    return found[:partitions]


def _same(some: Collection[nn.Module], others: Collection[nn.Module]) -> bool:
    """Whether both have the same layers. A class of layers may define what `==` means."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _hooks_of(module: nn.Module, kinds: Sequence[str]) -> list[str]:
    """The kinds of hooks that the module itself has, in words."""
    return [kind.strip("_").replace("_", " ") for kind in kinds if getattr(module, kind)]


def verify_sequential(module: Any) -> None:
    """Raises TypeError unless it is an nn.Sequential of layers and nothing else.

    A pipeline is made of the layers, so what the Sequential itself has would be lost.
    """
    kind = type(module).__name__
    if not isinstance(module, nn.Sequential):
        raise TypeError(f"module must be nn.Sequential to be partitioned, not {kind}")
    if type(module).forward is not nn.Sequential.forward:
        raise TypeError(
            f"{kind} has a forward of its own, which a pipeline would not call: give an "
            f"nn.Sequential of the layers"
        )
    if any(isinstance(each, Pipelined) for each in module):
        raise TypeError(
            f"a layer of the {kind} is a pipeline itself: give its layers, as "
            f"nn.Sequential(*pipeline, ...)"
        )
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise TypeError(
                f"parameter '{name}' has no shape yet, which the micro-batches of a pipeline would "
                f"give it while others run: call the {kind} once, on some rows, before"
            )
    found = _hooks_of(module, (*CALL_HOOKS, *STATE_HOOKS))
    of_layers = {
        id(each) for layer in module for each in (*layer.parameters(), *layer.buffers())
    }
    for what, tensors in (("parameter", module._parameters), ("buffer", module._buffers)):
        found += [
            f"the {what} '{name}'"
            for name, each in tensors.items()
            if each is not None and id(each) not in of_layers
        ]
    if found:
        raise TypeError(
            f"the {kind} itself has {', '.join(found)}, and a pipeline takes over its layers "
            f"alone: register hooks on a layer, and make parameters and buffers attributes of the "
            f"layer that uses them"
        )


def loss_of(loss_fn: Callable[..., Tensor], target: Any) -> Callable[..., Tensor]:
    """`loss_fn`, with errors that say what to give or to return."""
    if isinstance(loss_fn, type):
        name = loss_fn.__name__
        raise TypeError(f"loss_fn is the class {name}: give an object of it, {name}()")
    if not callable(loss_fn):
        raise TypeError(
            f"loss_fn must be a function, not {type(loss_fn).__name__}: step and evaluate take "
            f"(input, target, loss_fn)"
        )

    def call(*values: Value) -> Tensor:
        try:
            loss = loss_fn(*values)
        except TypeError as error:
            if target is None or isinstance(target, tuple) and not target:
                error.add_note(
                    "GPipe: no target was given, so the loss function got the outputs alone"
                )
            raise
        if isinstance(loss, Tensor):
            return loss
        kind = type(loss).__name__
        hint = {
            "float": "return the tensor, without .item()",
            "tuple": "return the one tensor that is the loss",
            "NoneType": "it ends without `return`",
        }.get(kind, "return a tensor of one number")
        raise TypeError(f"expected a Tensor from the loss function, but got {kind}: {hint}")

    return call


def weight_of(weight: Any) -> Optional[Callable[[Value], float]]:
    """`weight`, with errors that say what it is for."""
    if weight is None:
        return None
    if not callable(weight):
        raise TypeError(
            f"weight must be a function of a micro-batch's target, not {type(weight).__name__}"
        )

    def call(target: Value) -> float:
        found = weight(target)
        try:
            return float(found)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"expected a number from weight, but got {type(found).__name__}: {found!r}"
            ) from None

    return call


def _refuse_surroundings() -> None:
    """Raises ValueError inside of a torch.utils.checkpoint that would end a recompute midway, and
    inside of torch.func's transforms."""
    if torch._C._functorch.maybe_current_level() is not None:
        raise ValueError(
            "a pipeline inside of torch.func (grad, vmap, jvp ...) or torch.autograd.functional's "
            "vectorize, whose tensors are known to this thread alone: call nn.Sequential(*pipe)"
        )
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks and getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint":
        raise ValueError(
            "a pipeline inside of torch.utils.checkpoint(use_reentrant=False), whose recompute "
            "would end in the middle of the pipeline: give GPipe checkpoint='always' instead, or "
            "use_reentrant=True"
        )


@contextlib.contextmanager
def _telling_of_dtypes(pipe: nn.Module, input: Optional[Value]) -> Iterator[None]:
    """Adds to an operator's error about dtypes that the input has another than the parameters."""
    try:
        yield
    except RuntimeError as error:
        first = next(iter(input), None) if isinstance(input, tuple) else input
        expected = next((parameter.dtype for parameter in pipe.parameters()), None)
        given = first.dtype if isinstance(first, Tensor) else expected
        if expected and given != expected and given.is_floating_point and "type" in str(error):
            error.add_note(
                f"GPipe: the input has {given}, and the first parameter {expected}: give "
                f"input.to({expected}), or cast the pipeline by model.to({given})"
            )
        raise


class Pipelined(nn.Module):
    """The common base of both interfaces of the pipeline (gpipe.GPipe, gpipe.torchgpipe.GPipe).

    A derived class registers the layers, sets what `_settings` needs, and says in `_holders` where
    the layers are.
    """

    _balance: list[int]
    _devices: list[torch.device]
    _chunks: int
    _checkpoints: list[str]
    _options: dict[str, Any]
    _world: Optional[World] = None

    def _holders(self) -> list[dict[str, nn.Module]]:
        """The dicts that have the layers by name, in order."""
        raise NotImplementedError

    def _named_layers(self) -> list[tuple[str, nn.Module]]:
        return [named for holder in self._holders() for named in holder.items()]

    def _units(self) -> tuple[list[tuple[str, nn.Module]], list[int]]:
        """What the pipeline is made of, and how many of these each partition has."""
        return self._named_layers(), self._balance

    def _settings(self, balance: list[int]) -> Any:
        settings = extension.PipelineSettings()
        settings.balance = balance
        settings.devices = [str(device) for device in self._devices]
        settings.chunks = self._chunks
        settings.checkpoints = self._checkpoints
        for name, value in self._options.items():
            setattr(settings, name, value)
        if self._world is not None:
            settings.set_world(self._world._made)
        return settings

    def _make(self) -> None:
        """Makes the pipeline, of the layers that there are now."""
        named, balance = self._units()
        # These are set in __dict__, so that they are neither registered submodules nor a part of
        # the state.
        self.__dict__["_pipeline"] = extension.Pipeline(named, self._settings(balance))
        self.__dict__["_made_of"] = [layer for _, layer in named]

    def _remember(self, module: nn.Sequential) -> None:
        """Keeps what the pipeline is made of, to notice changes that it would not follow."""
        self.__dict__["_given"] = (weakref.ref(module), list(module._modules.values()))

    def _check_given(self) -> None:
        """Raises ValueError if the nn.Sequential that was given is another one now."""
        given, layers = self._given or (lambda: None, [])
        module = given()
        if module is None:
            self.__dict__["_given"] = None  # lets go of layers that were replaced
            return
        if not _same(module._modules.values(), layers):
            raise ValueError(
                "layers of the nn.Sequential that this pipeline was made of were replaced, added "
                "or removed since then, which the pipeline does not follow: replace a layer of the "
                "pipeline (model[k] = layer), or make a new one"
            )
        found = _hooks_of(module, CALL_HOOKS)
        if found:
            raise ValueError(
                f"the nn.Sequential that this pipeline was made of has got {', '.join(found)}, "
                f"which the pipeline does not call: register hooks on a layer, or remove them"
            )

    def _make_again(self) -> None:
        """Has the next call make the pipeline again, because a setting has changed."""
        self.__dict__["_made_of"] = []

    def _current(self) -> Any:
        """The pipeline, with its layers as they are now. Made again if one, or a module with skips
        in one, was replaced, or a setting has changed."""
        if not self._known().update(self.training):
            self._make()
            self._pipeline.update(self.training)
        return self._pipeline

    def _known(self) -> Any:
        """The same without a look into the layers, which would wait for a run of another thread."""
        self._check_given()
        layers = [layer for _, layer in self._units()[0]]
        if not _same(layers, self._made_of):
            if len(self) != sum(self._balance):
                raise ValueError(
                    f"the pipeline was made of {sum(self._balance)} layers and has {len(self)} "
                    f"now: replace layers one for one, or make a new pipeline"
                )
            self._make()
        return self._pipeline

    def _check_hooks(self, call: str) -> None:
        """Raises ValueError if the pipeline itself has hooks, which see whole mini-batches."""
        found = _hooks_of(self, CALL_HOOKS)
        if found:
            raise ValueError(
                f"the pipeline itself has {', '.join(found)}, which only model(input) calls: inside "
                f"of {call} there is no output of a whole mini-batch; register hooks on layers, "
                f"which are called for each micro-batch, or remove them"
            )

    def _check_layers(self, call: str) -> None:
        """Raises ValueError if a partition runs as one layer, because it has hooks."""
        if not _same([layer for _, layer in self._units()[0]], list(self)):
            raise ValueError(
                f"{call} takes no pipeline with hooks on a partition, which then runs as one layer "
                f"whose tensors have other names: remove the hooks, or give a gpipe.GPipe of the "
                f"same layers"
            )

    def forward(
        self, input: Optional[Value], *others: Any, **named: Any
    ) -> Optional[Value]:
        """(N, ...) -> (N, ...), in micro-batches.

        The backward of what is made of the output runs the backward half of the pipeline.

        input: a tensor or a tuple of tensors, all with the same N, on the first device. Raises
        TypeError for anything else, and whatever a layer raises, with a note that says in which
        stage, micro-batch and layer.

        Over processes all call it, under torch.no_grad(): train with `step` there. The input may be
        None where the first stage is not, and the output is None where the last stage is not.
        """
        if others or named:
            raise TypeError(
                f"a pipeline takes one argument, and got "
                f"{', '.join([f'{1 + len(others)} by position', *map(repr, named)])}: give a tuple of "
                f"tensors, which layers take apart and hand on (shared_inputs names those that are "
                f"the same for all micro-batches); settings belong into the layers"
            )
        with Beginning(self._world):
            _refuse_surroundings()
            pipeline = self._current()
        with _telling_of_dtypes(self, input):
            output = pipeline.forward(input)
        for tensor in output if isinstance(output, tuple) else (output,):
            if tensor is None or tensor.grad_fn is None:
                continue
            # The backward begins in C++, and needs the layers' modes as they are then. The hook
            # also keeps the pipeline alive, which the backward needs even if nothing else refers
            # to it any more. The node behind the output's runs on the caller's thread on all
            # devices, so no thread of the engine waits there for another call.
            for node, _ in tensor.grad_fn.next_functions:
                if node is not None and node.name() == "GPipeBackward":
                    node.register_prehook(lambda gradients: pipeline.update_known())
                    return output
        return output

    @named
    def step(
        self,
        input: Optional[Value],
        target: Optional[Value],
        loss_fn: Callable[..., Tensor],
        *,
        schedule: Union[str, Schedule, None] = None,
        reduction: str = "mean",
        weight: Optional[Callable[[Value], float]] = None,
        keep_outputs: bool = False,
        check_finite: bool = False,
        loss_scale: float = 1.0,
    ) -> StepResult:
        """Runs forward, loss and backward inside the pipeline, and adds to the gradients.

        input, target: a tensor or a tuple of tensors with N rows, on the first and on the last
            device; target may be None.
        loss_fn: called as loss_fn(output, target) for each micro-batch, or loss_fn(output) without
            a target; gives a scalar tensor, the mean over the rows it is given. Runs on the last
            stage's worker.
        schedule: a name (`gpipe.schedule_names()`), or a gpipe.schedule.Schedule, or its text.
            Default: 1F1B.
        reduction: "mean" or "sum", what loss_fn computes.
        weight: what the mean of a micro-batch is taken over, from its target. Default: its rows.
        keep_outputs: whether the result has the model's outputs.
        check_finite: whether to look for the first NaN or infinity, which is raised as a ValueError
            that names the layer.
        loss_scale: what gradients are multiplied by, and the loss of the result is not, as float16
            needs it. gpipe.GradScaler chooses it.

        Over processes all call it, and the result is the same on all. The input may be None where
        the first stage is not, the target where the last stage is not.

        Raises TypeError for a loss_fn that cannot be called or gives no tensor, ValueError if
        inputs, targets, schedule or loss do not fit, and if the pipeline itself has hooks (those of
        its layers are called for each micro-batch), and whatever a layer or loss_fn raises; on the
        other ranks that is a DistributedFailure.
        """
        with Beginning(self._world):
            settings = extension.StepSettings(
                text_of(schedule), str(reduction), weight_of(weight), keep_outputs, check_finite,
                float(checked("loss_scale", loss_scale, float)),
            )
            self._check_hooks("step")
            pipeline, loss = self._current(), loss_of(loss_fn, target)
        with _telling_of_dtypes(self, input):
            result = pipeline.step(input, target, loss, settings)
        return StepResult(result.loss, result.losses, result.outputs)

    @named
    def evaluate(
        self,
        input: Optional[Value],
        target: Optional[Value],
        loss_fn: Callable[..., Tensor],
        *,
        schedule: Union[str, Schedule, None] = None,
        reduction: str = "mean",
        weight: Optional[Callable[[Value], float]] = None,
        keep_outputs: bool = False,
        check_finite: bool = False,
    ) -> StepResult:
        """As `step`, without gradients: a validation. Call `eval()` before, as for any module."""
        with Beginning(self._world):
            settings = extension.StepSettings(
                text_of(schedule), str(reduction), weight_of(weight), keep_outputs, check_finite
            )
            self._check_hooks("evaluate")
            pipeline, loss = self._current(), loss_of(loss_fn, target)
        with _telling_of_dtypes(self, input):
            result = pipeline.evaluate(input, target, loss, settings)
        return StepResult(result.loss, result.losses, result.outputs)

    @named
    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> float:
        """Scales the gradients so that their norm, as of one vector, is at most max_norm.

        As torch.nn.utils.clip_grad_norm_ of all parameters, on all devices; those without a
        gradient count as zero. Returns the norm before, a float.

        Raises ValueError for a max_norm or norm_type that is not valid, and for a norm that is not
        finite with error_if_nonfinite.
        """
        with Beginning(self._world):
            norms = [
                float(checked(name, norm, float))
                for name, norm in (("max_norm", max_norm), ("norm_type", norm_type))
            ]
            pipeline = self._current()
        return pipeline.clip_grad_norm(*norms, bool(error_if_nonfinite))

    def parameter_hash(self) -> str:
        """The bits of all parameters as 16 hexadecimal digits.

        Equal for equal parameters, whatever the balance: to compare two runs. Buffers and gradients
        do not count. Over processes all call it, and it is that of the whole model.
        """
        with Beginning(self._world):
            pipeline = self._current()
        return pipeline.parameter_hash()

    def materialize(self, init: Callable[[str, Tensor, torch.Generator], Any]) -> None:
        """Gives memory and first values to the parameters and buffers that are still on meta.

        For a model that is larger than one machine: each process fills what is its own.

            with torch.device("meta"):                 # shapes, and no memory
                layers = make_layers()
            model = GPipe(layers, balance=[2, 2], chunks=8, world=world)

            def init(name, tensor, generator):
                if tensor.dim() > 1:
                    tensor.normal_(0, 0.02, generator=generator)
                else:
                    tensor.fill_(1.0 if name.endswith("norm.weight") else 0.0)

            model.materialize(init)
            optimizer = torch.optim.AdamW(model.local_parameters())

        init: called as init(name, tensor, generator) for each parameter and then each buffer of a
            layer that is here and has no values yet, under torch.no_grad(). It writes into the
            tensor. name: the plain model's key, "0.weight". generator: the tensor's own, on the
            CPU; it follows torch.manual_seed (of rank 0), and does not depend on the cut. A layer's
            own reset_parameters() draws from torch's generator, and its values would.

        Over processes all call it. If `init` raises, all may call it again: it fills what has no
        values yet. Raises TypeError for an `init` that cannot be called, and ValueError if it puts
        another tensor into the place of the one that it was given.
        """
        with Beginning(self._world):
            if not callable(init):
                raise TypeError(
                    f"init must be a function of a name, a tensor and a generator, not "
                    f"{type(init).__name__}"
                )
            self._check_layers("materialize")
            pipeline = self._current()
        pipeline.materialize(init)

    @named
    def is_here(self, layer: int) -> bool:
        """Whether the layer is in this process. The others are on meta: shapes, and no memory.

        A negative number counts from the end. Raises IndexError beyond.
        """
        return self._known().is_here(layer)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As of any module. Over processes, layers of the others are on meta, and it warns once."""
        state = super().state_dict(*args, **kwargs)
        if self._world is None or self._world.size == 1 or "_has_warned" in self.__dict__:
            return state
        elsewhere = [k for k, each in state.items() if isinstance(each, Tensor) and each.is_meta]
        if elsewhere:
            self.__dict__["_has_warned"] = True
            warnings.warn(
                f"the state_dict() of a pipeline over processes has values for the layers of this "
                f"process alone, and none for '{elsewhere[0]}': to save the whole model, call "
                f"gpipe.save_checkpoint in all processes",
                stacklevel=2,
            )
        return state

    def local_parameters(self) -> list[nn.Parameter]:
        """The parameters that are in this process, each once: for this process's optimizer."""
        return [parameter for _, parameter in self.local_named_parameters()]

    def local_named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The same with their names in the plain model, each under its first one."""
        names: dict[Tensor, str] = {}  # those of a partition with hooks are others in the extension
        for layer_name, layer in self._named_layers():
            for name, parameter in layer.named_parameters():
                names.setdefault(parameter, f"{layer_name}.{name}")
        named = self._current().local_named_parameters()
        return [(names.get(parameter, name), parameter) for name, parameter in named]

    # A pipeline cannot be moved, because each partition has its own device.

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
        if self._world is not None and self._world.size > 1:
            raise TypeError(
                "a pipeline over processes cannot be copied or pickled, because each process has a "
                "part of its layers: call gpipe.save_checkpoint in all of them"
            )
        state = self.__dict__.copy()
        del state["_pipeline"], state["_made_of"]
        state["_given"] = None  # a copy has layers of its own
        state["_world"] = None  # of this process alone
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

    def __setitem__(self, index: int, layer: nn.Module) -> None:
        """Replaces a layer from the next call on, under its name, and moves it to its device.

        Optimizers keep the parameters that they were made of.
        """
        checked("layer", layer, nn.Module)
        places = [(holder, name) for holder in self._holders() for name in holder]
        holder, name = places[checked("index", index, int)]
        layers = list(self)
        if any(layer is each for each in layers) and layer is not holder[name]:
            raise ValueError(
                "module with duplicate children is not supported: a layer that is to run twice "
                "needs a module of its own, which may have the same parameters"
            )
        if self._world is None or self._world.size == 1:
            layers[index] = layer
            place(layers, self._balance, self._devices)
        holder[name] = layer

    def __iter__(self) -> Iterator[nn.Module]:
        """The layers, the user's own objects."""
        return iter([layer for _, layer in self._named_layers()])


def place(layers: Sequence[nn.Module], balance: Sequence[int], devices: Sequence[torch.device]) -> None:
    """Moves each layer to its partition's device; parameters stay the same objects.

    A layer with tensors on meta stays where it is until `materialize` gives it memory.
    """
    remaining = iter(layers)
    for count, device in zip(balance, devices):
        for layer in itertools.islice(remaining, count):
            tensors = itertools.chain(layer.parameters(), layer.buffers())
            if device.type == "meta" or not any(tensor.is_meta for tensor in tensors):
                layer.to(device)


class GPipe(Pipelined):
    """A torch.nn.Sequential that runs as a pipeline.

    model = GPipe(nn.Sequential(a, b, c, d), balance=[2, 2], chunks=8)

    module: its layers each take and give a tensor or a tuple of tensors. They stay the user's own
        objects, under the same state-dict keys, and are moved to their devices.
    balance: how many consecutive layers each partition has.
    devices: of each partition. Default: every CUDA device in order; without any, the CPU. Over
        processes, one for this process. Default there: the CPU, also where there are GPUs.
    chunks: into how many micro-batches a mini-batch is cut, along dimension 0.
    checkpoint: "always", "except_last" or "never", or one of them for each partition: which
        micro-batches compute their activations again in backward (in training mode only).
    deferred_batch_norm: whether batch norms update their running statistics once per mini-batch.
    shared_inputs: the numbers of inputs that are the same for all micro-batches, and not cut.
    placement: the worker of each stage. Default: one each.
    groups: into how many groups gradients are added up (docs/guide/31-replicas.md). Default: none.
    cpu_threads_per_stage: intra-op threads of each stage. Default: an equal share.
    world: the processes that the stages, or replicas of all of them, are spread over. All make the
        same pipeline of the whole model, and the same calls, in the same order. Layers of other
        processes then lose their memory (is_here). Default: this process alone.
    processes: the process of each worker. Default: worker k in process k.

    Raises TypeError for arguments of a wrong type and for a module that is not a Sequential, that
    has hooks, parameters, buffers or a forward besides its layers', or whose skips do not pair up,
    ValueError for a balance, chunks or checkpoint that do not fit, IndexError for too few devices.

    If layers or hooks of `module` are changed later, the next call raises ValueError: replace a
    layer by model[k] = layer.
    """

    @named
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
        world: Optional[World] = None,
        processes: Optional[Sequence[int]] = None,
    ) -> None:
        super().__init__()
        verify_sequential(module)
        self._balance = balance_of(balance)
        if world is not None and not isinstance(world, World):
            raise TypeError(f"world must be a gpipe.World, not {type(world).__name__}")
        self._world = world
        alone = world is None or world.size == 1
        if alone:
            self._devices = devices_for(len(self._balance), devices)
        else:
            self._devices = [] if devices is None else devices_of(devices)
        self._chunks = checked("chunks", chunks, int, "give the number of micro-batches")
        self._checkpoints = checkpoints_of(checkpoint, len(self._balance))
        self._options = {
            "deferred_batch_norm": bool(
                checked("deferred_batch_norm", deferred_batch_norm, bool)
            ),
            # Copies, since the pipeline may be made again from them.
            "shared_inputs": shared_inputs_of(shared_inputs),
            "worker_of_stage": checked("placement", placement, Optional[Sequence[int]]),
            "process_of_worker": checked("processes", processes, Optional[Sequence[int]]),
            "groups": groups,
            "cpu_threads_per_stage": cpu_threads_per_stage,
        }
        layers = dict(module.named_children())
        if len(layers) != len(module):
            raise ValueError(
                "module with duplicate children is not supported: a layer that is to run twice "
                "needs a module of its own, which may have the same parameters"
            )
        # Layers are not added by register_module(), because that refuses names that are attributes
        # of this class.
        self._modules.update(layers)
        # Over processes the extension places the layers. If the balance does not fit the layers,
        # _make() raises an error that says so.
        if alone and sum(self._balance) == len(layers) and min(self._balance, default=0) > 0:
            place(list(layers.values()), self._balance, self._devices)
        self.training = module.training
        self._remember(module)
        self._make()

    def _holders(self) -> list[dict[str, nn.Module]]:
        return [self._modules]

    @property
    def balance(self) -> list[int]:
        """How many layers each partition has."""
        return list(self._balance)

    @property
    def devices(self) -> list[torch.device]:
        """The device of each partition; over processes, of those that are here."""
        return [torch.device(device) for device in self._pipeline.devices()]

    @property
    def chunks(self) -> int:
        """Into how many micro-batches a mini-batch is cut."""
        return self._chunks

    @property
    def checkpoint(self) -> Union[str, list[str]]:
        """The checkpoint mode, or that of each partition."""
        return self._checkpoints[0] if len(self._checkpoints) == 1 else list(self._checkpoints)
