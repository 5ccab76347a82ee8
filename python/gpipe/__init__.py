"""Pipeline parallelism for torch.nn.Sequential.

    from gpipe import GPipe

    model = GPipe(nn.Sequential(a, b, c, d), balance=[2, 2], chunks=8)
    output = model(input)                         # or, with less memory and any schedule:
    loss = model.step(input, target, nn.functional.mse_loss, schedule="zb-h1").loss

GPipe           the pipeline
StepResult      the result of a step
World           the processes that a pipeline runs over
ZeroOptimizer   an optimizer over replicas, each of which keeps a part of the states
GradScaler      the factor of the loss that float16 needs
save_checkpoint, load_checkpoint, load_weights
                a run on the disk, in the C++ library's files
diagnose        why a step is slow, and what to change
balance         cuts, fits and plans: measured, or planned without a device
hugging_face    models of transformers as layers
schedule        schedules as values: made, checked, drawn, timed, compared, searched for
skip            layers that pass tensors to a much later layer
torchgpipe      the names, arguments and state-dict keys of torchgpipe 0.0.7
"""

from gpipe._load import extension as _extension
from gpipe._arguments import unquote_annotations as _unquote_annotations
from gpipe import _checkpoints as _checkpoints
from gpipe import balance, hugging_face, schedule, skip
from gpipe.diagnosis import Advice, Diagnosis, diagnose
from gpipe.grad_scaler import GradScaler
from gpipe.pipeline import GPipe, StepResult
from gpipe.saving import (
    Progress,
    has_checkpoint,
    load_checkpoint,
    load_weights,
    read_progress,
    save_checkpoint,
)
from gpipe.world import DistributedFailure, Fault, World, any_rank, from_rank_0
from gpipe.zero_optimizer import ZeroOptimizer

__all__ = [
    "Advice",
    "Diagnosis",
    "DistributedFailure",
    "Fault",
    "GPipe",
    "GradScaler",
    "Progress",
    "StepResult",
    "World",
    "ZeroOptimizer",
    "any_rank",
    "balance",
    "diagnose",
    "from_rank_0",
    "has_checkpoint",
    "hugging_face",
    "is_checkpointing",
    "is_recomputing",
    "load_checkpoint",
    "load_weights",
    "read_progress",
    "save_checkpoint",
    "schedule",
    "schedule_names",
    "skip",
]


def is_checkpointing() -> bool:
    """Whether the calling layer runs in a forward whose activations will be computed again."""
    return _extension.is_checkpointing()


def is_recomputing() -> bool:
    """Whether the calling layer runs in a recompute, so it should not have side effects again."""
    return _extension.is_recomputing()


def schedule_names() -> list[str]:
    """The names that `GPipe.step(schedule=...)` takes, the plain ones first."""
    return _extension.schedule_names()


_unquote_annotations()
