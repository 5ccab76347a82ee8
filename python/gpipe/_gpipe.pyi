from collections.abc import Callable
from typing import Any, Optional

from torch import Generator, Tensor, nn

built_for: str

def schedule_names() -> list[str]: ...
def is_checkpointing() -> bool: ...
def is_recomputing() -> bool: ...
def walk_number(graph_task: int) -> Optional[int]: ...
def draw_place(
    place: Optional[tuple[int, int, int]] = None,
) -> Optional[tuple[int, int, int]]: ...
def gil_acquisitions() -> int: ...
def shut_at_exit() -> None: ...
def in_layer() -> bool: ...
def stash(module: nn.Module, name: str, tensor: Optional[Tensor]) -> None: ...
def pop(module: nn.Module, name: str) -> Optional[Tensor]: ...

class World:
    @staticmethod
    def from_environment(
        rendezvous_limit: float, silence_limit: float, call_limit: float, announce: bool
    ) -> World: ...
    def grid(self, replicas: int, processes: int) -> World: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def replicas(self) -> int: ...
    @property
    def replica(self) -> int: ...
    @property
    def process(self) -> int: ...
    def rows(self, rows: int, chunks: int) -> tuple[int, int]: ...
    def any_rank(self, here: bool) -> bool: ...
    def from_rank_0(self, make: Callable[[], bytes]) -> bytes: ...
    def fail_call(self, text: str) -> None: ...

# The parameters of a group, its options, and the state of each parameter.
_Group = tuple[list[Tensor], dict[str, Any], list[Optional[dict[str, Any]]]]
_Progress = tuple[int, int, str]

def save_checkpoint(
    pipeline: Pipeline,
    path: str,
    type: str,
    groups: list[_Group],
    step: int,
    rows: int,
    settings: str,
    zero: Optional[ZeroOptimizer],
) -> None: ...
def load_checkpoint(
    pipeline: Pipeline, path: str, type: str, groups: list[_Group], zero: Optional[ZeroOptimizer]
) -> tuple[_Progress, list[tuple[dict[str, Any], list[Any]]]]: ...
def load_weights(pipeline: Pipeline, path: str) -> _Progress: ...
def read_progress(path: str) -> _Progress: ...
def has_checkpoint(path: str) -> bool: ...

class PipelineSettings:
    balance: list[int]
    devices: list[str]
    chunks: int
    checkpoints: list[str]
    deferred_batch_norm: bool
    shared_inputs: list[int]
    worker_of_stage: Optional[list[int]]
    process_of_worker: Optional[list[int]]
    groups: int
    cpu_threads_per_stage: int
    def set_world(self, world: World) -> None: ...

class StepSettings:
    def __init__(
        self,
        schedule: str,
        reduction: str,
        weight: Optional[Callable[..., float]],
        keep_outputs: bool,
        check_finite: bool,
        loss_scale: float = ...,
    ) -> None: ...

class Result:
    loss: float
    losses: list[float]
    outputs: Any

class Pipeline:
    def __init__(
        self, layers: list[tuple[str, nn.Module]], settings: PipelineSettings
    ) -> None: ...
    def update(self, training: bool) -> bool: ...
    def update_known(self) -> None: ...
    def forward(self, input: Any) -> Any: ...
    def step(self, input: Any, target: Any, loss_fn: Any, settings: StepSettings) -> Result: ...
    def evaluate(
        self, input: Any, target: Any, loss_fn: Any, settings: StepSettings
    ) -> Result: ...
    def devices(self) -> list[str]: ...
    def is_here(self, layer: int) -> bool: ...
    def local_named_parameters(self) -> list[tuple[str, nn.Parameter]]: ...
    def clip_grad_norm(
        self, max_norm: float, norm_type: float, error_if_nonfinite: bool
    ) -> float: ...
    def parameter_hash(self) -> str: ...
    def materialize(self, init: Callable[[str, Tensor, Generator], Any]) -> None: ...

class ZeroOptimizer:
    def __init__(
        self,
        pipeline: Pipeline,
        make: Callable[[list[Tensor]], tuple[str, list[_Group], Callable[[], Any]]],
    ) -> None: ...
    def step(self, rates: list[Optional[float]]) -> None: ...

class GradScaler:
    def __init__(
        self,
        pipeline: Pipeline,
        init_scale: float,
        growth_factor: float,
        backoff_factor: float,
        growth_interval: int,
        enabled: bool,
    ) -> None: ...
    def unscale(self) -> bool: ...
    def step(self, groups: list[_Group], step: Callable[[], Any]) -> bool: ...
    def update(self) -> None: ...
    def state(self) -> tuple[float, int]: ...
    def load(self, scale: float, growth_steps: int) -> None: ...

def diagnose(
    pipeline: Pipeline,
    input: Any,
    target: Any,
    loss_fn: Any,
    step: StepSettings,
    seconds: float,
    chunks: list[int],
    schedules: list[str],
    keep_together: list[tuple[int, int]],
    memory_limit: int,
    param_scale: float,
    cores: int,
    run_plain_model: bool,
    progress: Optional[Callable[[str, int, int], Any]],
) -> tuple[str, str]: ...

Costs = tuple[float, ...]

class ScheduleTable:
    @staticmethod
    def create(
        stages: int, micro_batches: int, workers: list[list[str]]
    ) -> ScheduleTable: ...
    @staticmethod
    def by_name(
        name: str,
        stages: int,
        micro_batches: int,
        stages_per_worker: int,
        costs: Costs,
        transfer: float,
    ) -> ScheduleTable: ...
    @staticmethod
    def from_text(text: str) -> ScheduleTable: ...
    @staticmethod
    def from_csv(text: str) -> ScheduleTable: ...
    def stages(self) -> int: ...
    def micro_batches(self) -> int: ...
    def worker_of_stage(self) -> list[int]: ...
    def to_text(self) -> str: ...
    def table(self) -> list[list[tuple[str, int, int]]]: ...
    def verify(self, sends: str) -> dict[str, Any]: ...
    def simulate(self, costs: list[Costs], transfer: float) -> dict[str, Any]: ...
    def draw(self, columns: tuple[int, int, int, int]) -> str: ...
    def svg(self, costs: list[Costs], transfer: float, title: str) -> str: ...
    def relabeled(self) -> Optional[ScheduleTable]: ...
    def equals(self, other: ScheduleTable) -> bool: ...

class Comparison:
    def rows(self) -> list[tuple[Any, ...]]: ...
    def text(self) -> str: ...
    def svg(self) -> str: ...

def compare_schedules(
    workers: int,
    micro_batches: int,
    worker_cost: Costs,
    transfer: float,
    slowness: list[float],
    memory: float,
    tolerance: float,
    search: bool,
    budget: int,
) -> Comparison: ...
def search_schedule(
    worker_of_stage: list[int],
    micro_batches: int,
    costs: list[Costs],
    activation_transfer: list[float],
    gradient_transfer: list[float],
    activation_bytes: list[float],
    waiting_bytes: list[float],
    memory_limit: list[float],
    split: bool,
    slack: bool,
    tolerance: float,
    budget: int,
) -> dict[str, Any]: ...

Layers = list[tuple[str, nn.Module]]

def profile_layers(
    layers: Layers,
    sample: Any,
    name: str,
    rows: int,
    timeout: float,
    split: bool,
    cpu_threads: int,
    shared_inputs: list[int],
    deferred_batch_norm: bool,
) -> str: ...
def balance_layers_by_time(
    partitions: int,
    layers: Layers,
    sample: Any,
    timeout: float,
    cpu_threads: int,
    recompute: bool,
    slowness: list[float],
    shared_inputs: list[int],
) -> list[int]: ...
def balance_layers_by_size(
    partitions: int,
    layers: Layers,
    sample: Any,
    chunks: int,
    param_scale: float,
    shared_inputs: list[int],
) -> list[int]: ...
def fit(
    layers: Layers,
    input: Any,
    target: Any,
    loss_fn: Any,
    memory: list[int],
    chunks: list[int],
    checkpoints: list[str],
    schedule: str,
    optimizer: str,
    margin: int,
    deferred_batch_norm: bool,
    shared_inputs: list[int],
) -> tuple[
    bool, list[int], int, str, float, tuple[str, list[tuple[int, ...]]], list[int], list[int], str
]: ...
def plan_memory(
    layers: Layers,
    input: Any,
    target: Any,
    loss_fn: Any,
    balance: list[int],
    chunks: int,
    checkpoints: list[str],
    schedule: str,
    optimizer: str,
    cuda: bool,
    shared_inputs: list[int],
    deferred_batch_norm: bool,
) -> tuple[str, list[tuple[int, ...]]]: ...
def plan_training(
    layers: Layers,
    sample: Any,
    devices: int,
    memory: int,
    chunks: list[int],
    checkpoints: list[str],
    schedules: list[str],
    profiles: list[str],
    timeout: float,
    cpu_threads: int,
    cores: int,
    optimizer: str,
    cuda: bool,
    shared_inputs: list[int],
    deferred_batch_norm: bool,
) -> tuple[str, str, str, list[str], list[str]]: ...
