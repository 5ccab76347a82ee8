from collections.abc import Callable
from typing import Any, Optional

from torch import Tensor, nn

built_for: str

def schedule_names() -> list[str]: ...
def is_checkpointing() -> bool: ...
def is_recomputing() -> bool: ...
def gil_acquisitions() -> int: ...
def shut_at_exit() -> None: ...
def in_layer() -> bool: ...
def stash(module: nn.Module, name: str, tensor: Optional[Tensor]) -> None: ...
def pop(module: nn.Module, name: str) -> Optional[Tensor]: ...

class PipelineSettings:
    balance: list[int]
    devices: list[str]
    chunks: int
    checkpoints: list[str]
    deferred_batch_norm: bool
    shared_inputs: list[int]
    worker_of_stage: Optional[list[int]]
    groups: int
    cpu_threads_per_stage: int

class StepSettings:
    def __init__(
        self,
        schedule: str,
        reduction: str,
        weight: Optional[Callable[..., float]],
        keep_outputs: bool,
        check_finite: bool,
    ) -> None: ...

class Result:
    loss: float
    losses: list[float]
    outputs: Any

class Pipeline:
    def __init__(
        self, layers: list[tuple[str, nn.Module]], settings: PipelineSettings
    ) -> None: ...
    def forward(self, input: Any, training: bool) -> Any: ...
    def step(
        self, input: Any, target: Any, loss_fn: Any, settings: StepSettings, training: bool
    ) -> Result: ...
    def evaluate(
        self, input: Any, target: Any, loss_fn: Any, settings: StepSettings, training: bool
    ) -> Result: ...
    def devices(self) -> list[str]: ...
    def clip_grad_norm(
        self, max_norm: float, norm_type: float, error_if_nonfinite: bool
    ) -> float: ...
    def parameter_hash(self) -> str: ...
