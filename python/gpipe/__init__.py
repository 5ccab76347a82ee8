"""Pipeline parallelism for torch.nn.Sequential.

    from gpipe import GPipe

    model = GPipe(nn.Sequential(a, b, c, d), balance=[2, 2], chunks=8)
    output = model(input)                         # or, with less memory and any schedule:
    loss = model.step(input, target, nn.functional.mse_loss, schedule="zb-h1").loss

GPipe           the pipeline
StepResult the result of a step
skip            layers that pass tensors to a much later layer
torchgpipe      the names, arguments and state-dict keys of torchgpipe 0.0.7
"""

from gpipe._load import extension as _extension
from gpipe import skip
from gpipe.pipeline import GPipe, StepResult

__all__ = ["GPipe", "StepResult", "is_checkpointing", "is_recomputing", "schedule_names", "skip"]


def is_checkpointing() -> bool:
    """Whether the calling layer runs in a forward whose activations will be computed again."""
    return _extension.is_checkpointing()


def is_recomputing() -> bool:
    """Whether the calling layer runs in a recompute, so it should not have side effects again."""
    return _extension.is_recomputing()


def schedule_names() -> list[str]:
    """The names that `GPipe.step(schedule=...)` takes, the plain ones first."""
    return _extension.schedule_names()
