"""torchgpipe's module of this name."""

from gpipe.skip import SkipTracker, current_skip_tracker, use_skip_tracker

__all__ = ["SkipTracker", "current_skip_tracker", "use_skip_tracker"]
