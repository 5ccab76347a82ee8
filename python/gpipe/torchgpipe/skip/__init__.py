"""torchgpipe.skip: what gpipe.skip has, under torchgpipe's names."""

from gpipe.torchgpipe.skip.namespace import Namespace
from gpipe.torchgpipe.skip.skippable import pop, skippable, stash, verify_skippables

__all__ = ["Namespace", "pop", "skippable", "stash", "verify_skippables"]
