"""Why a pipeline is slow, and what to change: diagnose()."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from torch import Tensor

from gpipe._arguments import named
from gpipe._load import extension
from gpipe.balance import in_training
from gpipe.pipeline import Pipelined, Value, loss_of, options_of, weight_of
from gpipe.schedule import Schedule, text_of

__all__ = ["Advice", "Diagnosis", "diagnose"]


@dataclass(frozen=True)
class Advice:
    """A change of the setup.

    change: "chunks", "balance", "checkpoints", "schedule" or "several".
    options: for GPipe: balance, chunks and checkpoint, what does not change included, and
        shared_inputs and deferred_batch_norm where the pipeline has them.
    schedule: for its step.
    step: predicted seconds. speed_up: the present step / the predicted one.
    memory: predicted bytes of each worker.
    """

    change: str
    options: dict[str, Any]
    schedule: Optional[str]
    step: float
    speed_up: float
    memory: list[int]


class Diagnosis:
    """Where the time of a pipeline's step goes, and what to change. str() is a report for people.

    report: all of it, as a dict.
    """

    def __init__(
        self, text: str, report: str, schedule: Optional[str], deferred_batch_norm: bool = False
    ) -> None:
        self._text = text
        self._schedule = schedule
        # The report does not have this setting, which no advice changes.
        self._deferred_batch_norm = deferred_batch_norm
        self.report: dict[str, Any] = json.loads(report)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    @property
    def step(self) -> float:
        """The measured seconds of a step: the median."""
        return self.report["step"]

    @property
    def plain(self) -> float:
        """The measured seconds of the plain model on one device, the whole mini-batch at once."""
        return self.report["plain"]

    @property
    def ideal(self) -> float:
        """plain / workers, in seconds: no step can be much shorter."""
        return self.report["ideal"]

    @property
    def parts(self) -> dict[str, float]:
        """The seconds that each cause costs; together step - ideal. Negative: it saves time."""
        return {part["cause"]: part["seconds"] for part in self.report["parts"]}

    @property
    def warning(self) -> str:
        """Why the figures mean nothing (the machine did other work, say), or ""."""
        return self.report["warning"]

    @property
    def advice(self) -> list[Advice]:
        """What to change, the largest gain first. Empty with a warning, or if nothing gains 2 %."""
        return [
            Advice(
                each["change"],
                options_of(
                    each["setup"]["balance"], each["setup"]["chunks"],
                    each["setup"]["checkpoints"], each["setup"]["shared_inputs"],
                    self._deferred_batch_norm,
                ),
                self._schedule_of(each["setup"]["schedule"]),
                each["step"],
                each["speed_up"],
                each["memory"],
            )
            for each in self.report["advice"]
        ]

    def _schedule_of(self, name: str) -> Optional[str]:
        return self._schedule if name == "as given" else name


@named
def diagnose(
    model: Pipelined,
    input: Value,
    target: Optional[Value],
    loss_fn: Callable[..., Tensor],
    *,
    schedule: Union[str, Schedule, None] = None,
    reduction: str = "mean",
    weight: Optional[Callable[[Value], float]] = None,
    seconds: float = 1.0,
    chunks: Sequence[int] = (),
    schedules: Sequence[str] = (),
    keep_together: Sequence[tuple[int, int]] = (),
    memory_limit: int = 0,
    param_scale: float = 2.0,
    cores: int = 0,
    run_plain_model: bool = True,
    progress: Optional[Callable[[str, int, int], Any]] = None,
) -> Diagnosis:
    """Runs a pipeline for some steps, the plain model, and the layers one by one, and compares.

        diagnosis = gpipe.diagnose(model, input, target, loss_fn)
        print(diagnosis)
        if diagnosis.advice:
            best = diagnosis.advice[0]
            faster = GPipe(nn.Sequential(*model), **best.options)
            faster.step(input, target, loss_fn, schedule=best.schedule)

    Parameters, gradients, buffers, modes and torch's generators are afterwards as before. The steps
    run in training mode. Nothing else should compute on the machine.

    input, target, loss_fn, schedule, reduction, weight: a step's, as for GPipe.step.
    seconds: of each measurement; there are about ten.
    chunks, schedules: numbers of micro-batches, and names of schedules, to choose from. Default:
        those that make sense.
    keep_together: (first, last) layer of ranges within which no cut is allowed.
    memory_limit: the most bytes of each worker. Default: no limit.
    param_scale: bytes that training needs for each byte of a parameter: 2 for SGD, 4 for Adam.
    cores: the CPU's cores for partitions there. Default: those that this process may use; other
        load is only looked for then.
    run_plain_model: whether the whole mini-batch runs at once on the first device, which needs
        enough memory.
    progress: called as progress(what, done, all) before each part.

    Ctrl-C ends it. Raises TypeError for a model that is not a pipeline, ValueError for a pipeline
    over processes or on meta, for arguments out of range, and for all that `step` refuses; and
    whatever a layer raises.
    """
    if not isinstance(model, Pipelined):
        raise TypeError(
            f"diagnose takes a gpipe.GPipe, not {type(model).__name__}: give the pipeline whose "
            f"steps are to be faster"
        )
    if model._world is not None and model._world.size > 1:
        raise ValueError(
            f"diagnose is for a pipeline in one process, and this one is over "
            f"{model._world.size}: diagnose the same model and balance in one (without `world`)"
        )
    model._check_layers("diagnose")
    settings = extension.StepSettings(text_of(schedule), reduction, weight_of(weight), False, False)
    with in_training(model):
        text, report = extension.diagnose(
            model._current(), input, target, loss_of(loss_fn, target), settings, seconds,
            list(chunks), list(schedules), [tuple(each) for each in keep_together], memory_limit,
            param_scale, cores, run_plain_model, progress,
        )
    return Diagnosis(
        text, report, None if schedule is None else str(schedule),
        model._options.get("deferred_batch_norm", False),
    )
