"""torchgpipe's module of this name."""

from gpipe.skip import Skippable, pop, skippable, stash, verify_skippables

__all__ = ["Skippable", "pop", "skippable", "stash", "verify_skippables"]
