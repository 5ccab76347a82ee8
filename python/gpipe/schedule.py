"""Schedules as values: made, read, checked, drawn, timed, compared, searched for.

    from gpipe import schedule

    table = schedule.by_name("zb-h1", stages=4, micro_batches=8)
    print(table.draw())                       # F0 F1 ..., a row for each worker
    print(table.verify())                     # what it costs; ValueError if it cannot run
    table.simulate(schedule.Costs(1.0, 1.7, 1.1, 0.7), transfer=0.1).makespan
    model.step(input, target, loss_fn, schedule=table)

    print(schedule.compare(workers=8, micro_batches=32, memory=16))

Times may be in any unit, the same for all of them; so may amounts of memory. Docs: chapters 20, 20a
and 23 of docs/guide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Union

from gpipe._arguments import checked, named
from gpipe._load import extension

__all__ = [
    "Action", "Comparison", "Costs", "Facts", "Row", "Schedule", "SearchResult", "Simulation",
    "TimedAction", "by_name", "compare", "from_csv", "loop", "names", "one_each", "parse", "search",
    "v_shape",
]


class Action(NamedTuple):
    """One piece of work. As text "F0.3": the forward of stage 0, micro-batch 3.

    kind: "F" forward, "B" backward, "I" input gradient, "W" weight gradient: I and W are the halves
        of a split backward.
    """

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.micro_batch}"


class TimedAction(NamedTuple):
    """An action of a simulation, and when it runs."""

    action: Action
    start: float
    end: float


class Costs(NamedTuple):
    """The times of a stage's actions for one micro-batch.

    backward: of a whole one, which usually takes less than its two halves together.
    """

    forward: float = 1.0
    backward: float = 2.0
    input_gradient: float = 1.0
    weight_gradient: float = 1.0


CostsOfStages = Union[Costs, Sequence[Costs]]


def _costs(costs: CostsOfStages) -> list[tuple[float, ...]]:
    return [tuple(each) for each in ([costs] if isinstance(costs, Costs) else costs)]


def _values(value: Union[float, Sequence[float], None]) -> list[float]:
    if value is None:
        return []
    return [float(value)] if isinstance(value, (int, float)) else list(value)


@dataclass(frozen=True)
class Facts:
    """What a schedule costs, where every action takes one unit of time and transfers take none.

    makespan: the time from the first start to the last end.
    bubble: the share of the workers' time in which they are idle, 0 .. 1.
    peak_live: for each stage, the most micro-batches between their forward and the end of their
        backward.
    alive, idle: for each stage, the time from its first start to its last end, and how much of that
        no action of the stage runs.
    worker_peak_live, worker_alive, worker_idle: the same for each worker, over its stages.
    ascending: whether gradients are added in ascending order of micro-batches. All such schedules
        give the same bits.
    receives_ahead: with sends="posted ahead", for each (sender, receiver) how many actions before
        its own a receive must be posted.
    """

    makespan: int
    bubble: float
    peak_live: list[int]
    alive: list[int]
    idle: list[int]
    worker_peak_live: list[int]
    worker_alive: list[int]
    worker_idle: list[int]
    ascending: bool
    receives_ahead: Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class Simulation:
    """A run of a schedule with times.

    makespan: the last end; the first start is 0.
    bubble: the mean share of the makespan in which a worker is idle, 0 .. 1.
    busy: for each worker, the time spent in actions.
    workers: for each worker, its actions with their times.
    """

    makespan: float
    bubble: float
    busy: list[float]
    workers: list[list[TimedAction]]

    def __repr__(self) -> str:
        return f"Simulation(makespan={self.makespan:g}, bubble={self.bubble:.3f}, busy={self.busy})"


class Schedule:
    """The actions of each worker, in their order. It never changes.

    Schedule(stages=2, micro_batches=1, workers=[["F0.0", "B0.0"], ["F1.0", "B1.0"]])

    workers: for each worker its actions, as text or as Action. All of a stage's are on one worker.

    Raises ValueError for a stage or a micro-batch that does not exist. `verify` says whether the
    table makes sense.
    """

    __slots__ = ("_table",)

    def __init__(
        self, stages: int, micro_batches: int, workers: Sequence[Sequence[Union[str, Action]]]
    ) -> None:
        table = [[str(action) for action in worker] for worker in workers]
        self._table = extension.ScheduleTable.create(stages, micro_batches, table)

    @classmethod
    def _of(cls, table: Any) -> Schedule:
        schedule = cls.__new__(cls)
        schedule._table = table
        return schedule

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return self._table.stages()

    @property
    def micro_batches(self) -> int:
        """How many micro-batches a mini-batch has."""
        return self._table.micro_batches()

    @property
    def workers(self) -> list[list[Action]]:
        """For each worker its actions."""
        return [[Action(*action) for action in worker] for worker in self._table.table()]

    @property
    def worker_of_stage(self) -> list[int]:
        """The worker of each stage, as GPipe(placement=...) takes it. Raises ValueError if a stage
        or a worker has no actions."""
        return self._table.worker_of_stage()

    def __str__(self) -> str:
        """The text that `parse` reads, and `GPipe.step(schedule=...)`."""
        return self._table.to_text()

    def __repr__(self) -> str:
        return (
            f"<Schedule: {self.stages} stages, {self.micro_batches} micro-batches, "
            f"{len(self._table.table())} workers>"
        )

    def _repr_svg_(self) -> str:
        """For notebooks."""
        return self.svg()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self._table.equals(other._table)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> Any:
        return parse, (str(self),)

    @named
    def verify(self, sends: str = "buffered") -> Facts:
        """What it costs. Raises ValueError that lists what is wrong with it, deadlocks included.

        sends: what the transport promises. "buffered": a send ends at once, as in one process;
            "rendezvous": it may wait for its receiver; "posted ahead": as that, but receives may be
            posted earlier.
        """
        return Facts(**self._table.verify(sends))

    @named
    def draw(
        self, forward: int = 1, backward: int = 1, input_gradient: int = 1, weight_gradient: int = 1
    ) -> str:
        """The timeline as text: a row for each worker, dots where it is idle.

        The arguments are how many columns each kind of action takes. Raises ValueError for a number
        below 1, and as `verify`.
        """
        return self._table.draw((forward, backward, input_gradient, weight_gradient))

    @named
    def svg(self, costs: CostsOfStages = Costs(), transfer: float = 0.0, title: str = "") -> str:
        """The timeline as a picture, an SVG. Arguments and errors as for `simulate`."""
        return self._table.svg(_costs(costs), transfer, title or "schedule")

    @named
    def simulate(self, costs: CostsOfStages = Costs(), transfer: float = 0.0) -> Simulation:
        """When each action would start and end.

        costs: of each stage, or one for all of them.
        transfer: the time of a transfer between two workers.

        Raises ValueError for times that are negative or not finite, for a wrong number of costs,
        and as `verify`.
        """
        run = self._table.simulate(_costs(costs), transfer)
        run["workers"] = [
            [TimedAction(Action(*timed[:3]), *timed[3:]) for timed in worker]
            for worker in run["workers"]
        ]
        return Simulation(**run)

    def relabeled(self) -> Optional[Schedule]:
        """The schedule with micro-batches numbered as the stages take them, so that it gives the
        same bits as the others; None if something else would change by that."""
        table = self._table.relabeled()
        return None if table is None else Schedule._of(table)


def text_of(schedule: Union[str, Schedule, None]) -> str:
    """The schedule as the extension takes it, for which "" is the default of the placement."""
    if not isinstance(schedule, (str, Schedule)):
        checked("schedule", schedule, Union[str, Schedule, None])
    if schedule == "":
        raise ValueError(
            "schedule is empty: give one of gpipe.schedule_names(), or None for the default, 1F1B"
        )
    return "" if schedule is None else str(schedule)


def names() -> list[str]:
    """The names of the known schedules, the plain ones first."""
    return extension.schedule_names()


@named
def by_name(
    name: str,
    stages: int,
    micro_batches: int,
    *,
    stages_per_worker: int = 0,
    costs: Costs = Costs(),
    transfer: float = 0.0,
) -> Schedule:
    """A known schedule.

    stages: of all workers together.
    stages_per_worker: for loops ("interleaved" and others). Default: 2 for loops and Vs, else 1.
    costs, transfer: for which it is made, if it depends on them ("zb-h2", "zb-v", ...).

    Raises ValueError for an unknown name, and for numbers that do not fit.
    """
    return Schedule._of(
        extension.ScheduleTable.by_name(
            name, stages, micro_batches, stages_per_worker, tuple(costs), transfer
        )
    )


@named
def parse(text: str) -> Schedule:
    """The inverse of str(schedule); comments begin with '#'.

        stages 2
        micro_batches 1
        worker 0: F0.0 B0.0
        worker 1: F1.0 B1.0

    Raises ValueError that names the line and what was expected there.
    """
    return Schedule._of(extension.ScheduleTable.from_text(text))


@named
def from_csv(text: str) -> Schedule:
    """A schedule from the CSV of torch.distributed.pipelining (`_dump_csv`).

    Raises ValueError, with row and cell, for anything else.
    """
    return Schedule._of(extension.ScheduleTable.from_csv(text))


@dataclass(frozen=True)
class Row:
    """One schedule of a comparison.

    name: as for `by_name`, with " x4" for four stages on each worker; or "search", " in a V".
    bubble: the share of idle time, 0 .. 1.
    peak: what the worst worker holds, in micro-batches of all its layers.
    splits: split backwards of a worker, on average.
    transfers: what a worker sends, on average.
    slack: how much longer each transfer over one link may take until the step is longer by the
        tolerance; infinite if there are none.
    fits: whether the peak is within the memory.
    """

    name: str
    schedule: Schedule
    makespan: float
    bubble: float
    peak: float
    splits: int
    transfers: int
    slack: float
    fits: bool


class Comparison(Sequence[Row]):
    """The rows of `compare`, the best one first; str() is a table, `svg` a picture."""

    def __init__(self, compared: Any) -> None:
        self._compared = compared
        self._rows = [
            Row(name, Schedule._of(table), *rest) for name, table, *rest in compared.rows()
        ]

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __str__(self) -> str:
        return self._compared.text()

    __repr__ = __str__

    def svg(self) -> str:
        """All timelines as one picture, on one scale."""
        return self._compared.svg()

    _repr_svg_ = svg


@named
def compare(
    workers: int,
    micro_batches: int,
    costs: Costs = Costs(),
    *,
    transfer: float = 0.0,
    slowness: Sequence[float] = (),
    memory: float = math.inf,
    tolerance: float = 0.05,
    search: bool = True,
    budget: int = 0,
) -> Comparison:
    """Compares the known schedules, and what searches find, for one pipeline.

    costs: of all layers of a worker, for one micro-batch. Schedules with v stages on a worker cut
        these into v stages.
    transfer: the time of a transfer between two workers.
    slowness: how many times as long each worker takes. Default: all the same.
    memory: how many micro-batches of all its layers a worker may hold.
    tolerance: the part by which the makespan may grow, for Row.slack.
    search: whether to search, too. budget: simulated actions of each search; 0: about a second.

    Ctrl-C ends it. Raises ValueError for numbers that make no sense.
    """
    limit = 0.0 if math.isinf(memory) and memory > 0 else float(memory)
    if limit == 0.0 and memory == 0:
        raise ValueError("memory is 0: give a number of micro-batches above 0")
    return Comparison(
        extension.compare_schedules(
            workers, micro_batches, tuple(costs), transfer, list(slowness), limit, tolerance,
            search, budget,
        )
    )


def one_each(stages: int) -> list[int]:
    """The placement of one stage on each worker."""
    return list(range(stages))


def loop(workers: int, stages_per_worker: int) -> list[int]:
    """The placement of stage s on worker s % workers."""
    return list(range(workers)) * stages_per_worker


def v_shape(workers: int) -> list[int]:
    """The placement of two stages on each worker: forth, and back."""
    return [*range(workers), *reversed(range(workers))]


@dataclass(frozen=True)
class SearchResult:
    """What a search has found.

    origin: the known schedule that it is, or "search".
    lower_bound: no schedule of this placement within the limits has a shorter makespan.
    slack: as in Row.
    peak: the most memory that each worker holds, in the unit of the memory that was given.
    """

    schedule: Schedule
    origin: str
    makespan: float
    lower_bound: float
    slack: float
    peak: list[float]

    @property
    def gap(self) -> float:
        """By which part the makespan may be above the best possible: 0.02 is at most 2 %."""
        return max(self.makespan / self.lower_bound - 1.0, 0.0) if self.lower_bound > 0 else 0.0


@named
def search(
    placement: Sequence[int],
    micro_batches: int,
    costs: CostsOfStages = Costs(),
    *,
    activation_transfer: Union[float, Sequence[float]] = 0.0,
    gradient_transfer: Union[float, Sequence[float], None] = None,
    activation_memory: Union[float, Sequence[float]] = 1.0,
    waiting_memory: Union[float, Sequence[float]] = 1.0,
    memory_limit: Union[float, Sequence[float], None] = None,
    split: bool = True,
    objective: str = "makespan",
    tolerance: float = 0.05,
    budget: int = 0,
) -> SearchResult:
    """Looks for the best order for costs and memory that you know. The same result each time.

    placement: the worker of each stage: `one_each(4)`, `loop(2, 2)`, `v_shape(4)`, or a list.
    costs: of each stage, or one for all.
    activation_transfer, gradient_transfer: the times of the transfers over each boundary between
        two stages, or one for all. Default of the second: as the first.
    activation_memory: what a micro-batch holds in each stage from its forward to its backward;
        waiting_memory: from its input gradient to its weight gradient. Default: 1, so that memory
        is counted in micro-batches of a stage.
    memory_limit: of each worker, or one for all. Default: none.
    split: whether backwards may be split.
    objective: "makespan", or "slack": it may be longer by `tolerance`, and then bears the slowest
        transfers.
    budget: in simulated actions, about 10 ns each. Default, 0: some seconds.

    Ctrl-C ends it. Raises ValueError for options that make no sense, and for limits that no
    schedule keeps.
    """
    if objective not in ("makespan", "slack"):
        raise ValueError(f"objective is not one of 'makespan' or 'slack': '{objective}'")
    forth = _values(activation_transfer)
    found = extension.search_schedule(
        list(placement), micro_batches, _costs(costs), forth,
        forth if gradient_transfer is None else _values(gradient_transfer),
        _values(activation_memory), _values(waiting_memory), _values(memory_limit), split,
        objective == "slack", tolerance, budget,
    )
    return SearchResult(
        Schedule._of(found["schedule"]), found["origin"], found["makespan"], found["lower_bound"],
        found["slack"], found["peak_bytes"],
    )
