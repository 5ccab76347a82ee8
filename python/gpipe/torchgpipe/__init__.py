"""torchgpipe 0.0.7's names, arguments, exceptions and state-dict keys, on this engine.

    import gpipe.torchgpipe as torchgpipe
    from gpipe.torchgpipe import GPipe

A program for torchgpipe runs with this import alone; docs/guide says what differs on purpose.
"""

from gpipe import is_checkpointing, is_recomputing
from gpipe.torchgpipe import balance, batchnorm, checkpoint, skip
from gpipe.torchgpipe.gpipe import GPipe

__all__ = ["GPipe", "is_checkpointing", "is_recomputing"]
