"""torchgpipe 0.0.7's names, arguments, exceptions and state-dict keys, on this engine.

    import gpipe.torchgpipe as torchgpipe
    from gpipe.torchgpipe import GPipe

A program for torchgpipe runs with this import alone; docs/guide says what differs on purpose.
"""

from gpipe._arguments import unquote_annotations as _unquote_annotations
from gpipe.torchgpipe import balance, batchnorm, checkpoint, microbatch, skip
from gpipe.torchgpipe.checkpoint import is_checkpointing, is_recomputing
from gpipe.torchgpipe.gpipe import GPipe

__version__ = "0.0.7"  # of the torchgpipe whose names these are

__all__ = ["GPipe", "is_checkpointing", "is_recomputing"]

_unquote_annotations()
