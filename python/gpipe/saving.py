"""Checkpoints: the same folders that the C++ library writes."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch

from gpipe._arguments import named
from gpipe._load import extension
from gpipe.pipeline import Pipelined
from gpipe.world import Beginning
from gpipe.zero_optimizer import ZeroOptimizer

__all__ = [
    "Progress",
    "has_checkpoint",
    "load_checkpoint",
    "load_weights",
    "read_progress",
    "save_checkpoint",
]

Path = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    step: steps of the optimizer. rows: rows of the data that it was trained on. settings: the
    program's own words.
    """

    step: int = 0
    rows: int = 0
    settings: str = ""


class CheckpointNotFoundError(FileNotFoundError, RuntimeError):
    """There is no checkpoint in a folder."""


# In a checkpoint, the state dicts of other objects stand behind the settings, on a line that begins
# with this mark.
_MARK = "gpipe.python others: "
# The name that a checkpoint has instead of an optimizer's if there is no optimizer.
_NO_OPTIMIZER = "no optimizer"


def _to_json(value: Any, what: str) -> Any:
    """A plain value, so that _from_json gives it back with its types. JSON has lists and texts only."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_to_json(element, what) for element in value]
    if type(value) is tuple:
        return {"tuple": [_to_json(element, what) for element in value]}
    if type(value) in (dict, Counter):
        pairs = [[_to_json(key, what), _to_json(element, what)] for key, element in value.items()]
        return {"dict" if type(value) is dict else "Counter": pairs}
    raise NotImplementedError(
        f"the state_dict() of {what} has a {type(value).__name__}, which no checkpoint can hold "
        f"beside the model: it holds numbers, texts, None, and lists, tuples and dicts of these. "
        f"Save it by torch.save"
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(element) for element in value]
    if not isinstance(value, dict):
        return value
    ((kind, elements),) = value.items()
    if kind == "tuple":
        return tuple(_from_json(element) for element in elements)
    pairs = {_from_json(key): _from_json(element) for key, element in elements}
    return pairs if kind == "dict" else Counter(pairs)


def _split(settings: str) -> tuple[str, dict[str, Any]]:
    """The program's own settings, and the states of other objects behind them."""
    text, mark, others = settings.rpartition(_MARK)
    return (text.removesuffix("\n"), json.loads(others)) if mark else (settings, {})


def _type_of(optimizer: torch.optim.Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


# The parameters of a group, its options, and the state of each parameter.
_Group = tuple[list[torch.Tensor], dict[str, Any], list[Optional[dict[str, Any]]]]


def _record_of(optimizer: Optional[torch.optim.Optimizer]) -> tuple[str, list[_Group]]:
    if optimizer is None:
        return _NO_OPTIMIZER, []
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer or None, not {type(optimizer).__name__}; "
            f"schedulers and others with a state_dict() go into `others`"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise NotImplementedError(
            "torch.optim.LBFGS has states that belong to no parameter, and no checkpoint can hold "
            "them. Save its state_dict() by torch.save"
        )
    name, state = _type_of(optimizer), optimizer.state_dict()
    groups: list[_Group] = []
    number = 0
    for group, saved in zip(optimizer.param_groups, state["param_groups"]):
        options = {k: v for k, v in saved.items() if k not in ("params", "param_names")}
        for option, value in options.items():
            if isinstance(value, torch.Tensor):
                raise NotImplementedError(
                    f"option '{option}' of {name} is a tensor, which no checkpoint can hold: give "
                    f"the optimizer a number"
                )
        numbers = range(number, number + len(group["params"]))
        number = numbers.stop
        groups.append((group["params"], options, [state["state"].get(k) for k in numbers]))
    left = set(state) - {"state", "param_groups"} or set(state["state"]) - set(range(number))
    if left:
        raise NotImplementedError(
            f"the state_dict() of {name} has {sorted(map(repr, left))[0]}, which belongs to no "
            f"parameter, and no checkpoint can hold it. Save it by torch.save"
        )
    return name, groups


def _parts_of(
    optimizer: Optional[torch.optim.Optimizer], model: Pipelined
) -> tuple[Optional[torch.optim.Optimizer], Any]:
    """The optimizer that has the states, and what the extension needs of a ZeroOptimizer."""
    if not isinstance(optimizer, ZeroOptimizer):
        return optimizer, None
    if optimizer._model is not model:
        raise ValueError("the ZeroOptimizer was made for another pipeline: give it with its own")
    optimizer._give_options()
    return optimizer.local, optimizer._made


def _give(optimizer: torch.optim.Optimizer, groups: list[tuple[dict[str, Any], list[Any]]]) -> None:
    state: dict[int, Any] = {}
    saved, number = [], 0
    for options, states in groups:
        numbers = range(number, number + len(states))
        number = numbers.stop
        state.update({k: v for k, v in zip(numbers, states) if v is not None})
        saved.append({**options, "params": list(numbers)})
    optimizer.load_state_dict({"state": state, "param_groups": saved})


def _checked_path(path: Path) -> str:
    """Raises CheckpointNotFoundError if there is nothing to read."""
    text = os.fspath(path)
    if not extension.has_checkpoint(text):
        raise CheckpointNotFoundError(
            f"there is no checkpoint in '{text}': ask gpipe.has_checkpoint(path) before, if the "
            f"run may be the first"
        )
    return text


def _checked_others(others: Any) -> dict[str, Any]:
    """Raises TypeError if they are not objects with a state, by name."""
    if not isinstance(others, (Mapping, type(None))):
        raise TypeError(f"others must be a dict of objects by name, not {type(others).__name__}")
    for name, other in (others or {}).items():
        if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
            raise TypeError(
                f"others[{name!r}] must have state_dict() and load_state_dict(), as schedulers of "
                f"learning rates do, not {type(other).__name__}: texts of your own go into settings"
            )
    return dict(others or {})


def _pipeline_of(model: Any, call: str) -> Any:
    if not isinstance(model, Pipelined):
        raise TypeError(
            f"model must be a gpipe.GPipe, not {type(model).__name__}: other modules are saved by "
            f"torch.save(model.state_dict(), path)"
        )
    with Beginning(model._world):
        model._check_layers(call)
        return model._current()


@named
def save_checkpoint(
    path: Path,
    model: Pipelined,
    optimizer: Optional[torch.optim.Optimizer] = None,
    *,
    step: int = 0,
    rows: int = 0,
    settings: str = "",
    others: Optional[Mapping[str, Any]] = None,
) -> None:
    """Writes the folder `path`: all of it, or, after a crash, what was there before.

    It has parameters and buffers under the names that they have in the plain model
    (model.safetensors, which safetensors.torch.load_file reads), the optimizer's state, how far the
    run is, and the state of torch's generator on the CPU. The C++ library reads the same folder.
    Over several processes all of them call it with one path on one file system, each with an
    optimizer of its model.local_parameters(), or with a ZeroOptimizer.

    optimizer: one whose state_dict() has tensors, numbers, texts, None, and tuples, for each
        parameter: all of torch.optim but LBFGS.
    step, rows: steps that were made, and rows of the data that were trained on.
    settings: the program's own words, which load_checkpoint gives back.
    others: objects with state_dict() of plain values, by names of your own: learning-rate
        schedulers, GradScaler. Over processes their states must be the same on all.

    Raises ValueError for a path that holds anything else than a checkpoint, for parameters that the
    model does not have and for negative numbers, NotImplementedError for states that no checkpoint
    can hold, RuntimeError if it cannot be written.
    """
    pipeline = _pipeline_of(model, "save_checkpoint")
    if _MARK in settings:
        raise ValueError(f"settings must not have the text {_MARK!r}, which stands before `others`")
    states = {
        name: _to_json(other.state_dict(), name) for name, other in _checked_others(others).items()
    }
    if states:
        settings = f"{settings}\n{_MARK}{json.dumps(states)}"
    own, zero = _parts_of(optimizer, model)
    name, groups = _record_of(own)
    extension.save_checkpoint(pipeline, os.fspath(path), name, groups, step, rows, settings, zero)


def load_checkpoint(
    path: Path,
    model: Pipelined,
    optimizer: Optional[torch.optim.Optimizer] = None,
    *,
    others: Optional[Mapping[str, Any]] = None,
) -> Progress:
    """Resumes a run: gives model, optimizer, others and torch's generator what `path` has of them.

    The balance, devices, and numbers of processes and replicas may be others than of the run that
    wrote it. The optimizer needs the same class and the same parameters in each group; its options
    come from the checkpoint. Make schedulers before this call, as for any load_state_dict().

    Raises ValueError for another model, optimizer or other names in `others`, RuntimeError for files
    that cannot be read or are damaged; if there is no checkpoint, that is a FileNotFoundError, too.
    Nothing is changed then.
    """
    pipeline = _pipeline_of(model, "load_checkpoint")
    wanted = _checked_others(others)
    saved = _split(extension.read_progress(_checked_path(path))[2])[1]
    if saved.keys() != wanted.keys():
        raise ValueError(
            f"'{os.fspath(path)}' has the states of others {sorted(saved)}, and load_checkpoint was "
            f"given {sorted(wanted)}: give the same names in `others`"
        )
    own, zero = _parts_of(optimizer, model)
    name, groups = _record_of(own)
    (step, rows, settings), loaded = extension.load_checkpoint(
        pipeline, os.fspath(path), name, groups, zero
    )
    if own is not None:
        _give(own, loaded)
    if isinstance(optimizer, ZeroOptimizer):
        optimizer._take_options()
    settings, saved = _split(settings)
    for key, other in wanted.items():
        other.load_state_dict(_from_json(saved[key]))
    return Progress(step, rows, settings)


def load_weights(path: Path, model: Pipelined) -> Progress:
    """Takes parameters and buffers alone, of a checkpoint of any optimizer, Python's or C++'s.

    torch's generator stays as it is. Raises as load_checkpoint.
    """
    pipeline = _pipeline_of(model, "load_weights")
    return _progress(extension.load_weights(pipeline, _checked_path(path)))


def read_progress(path: Path) -> Progress:
    """How far the run of a checkpoint was. Changes nothing, and reads none of its large files.

    Raises RuntimeError if there is no checkpoint (which is a FileNotFoundError, too), or it is
    damaged; ValueError for an empty path.
    """
    return _progress(extension.read_progress(_checked_path(path)))


def has_checkpoint(path: Path) -> bool:
    """Whether there is a folder to resume from. load_checkpoint checks whether it is complete."""
    return extension.has_checkpoint(os.fspath(path))


def _progress(read: tuple[int, int, str]) -> Progress:
    step, rows, settings = read
    return Progress(step, rows, _split(settings)[0])
