"""Which pass of a checkpointed micro-batch the calling layer is in."""

from gpipe import is_checkpointing, is_recomputing

__all__ = ["is_checkpointing", "is_recomputing"]
