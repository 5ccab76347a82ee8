"""torchgpipe's module of this name."""

from gpipe.skip import Namespace

__all__ = ["Namespace"]
