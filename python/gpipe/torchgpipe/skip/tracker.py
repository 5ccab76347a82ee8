"""Where skips are kept outside of GPipe: by thread, or through portals."""

from __future__ import annotations

from typing import Optional

from torch import Tensor

from gpipe.skip import Namespace, SkipTracker, current_skip_tracker, use_skip_tracker
from gpipe.torchgpipe.checkpoint import is_checkpointing
from gpipe.torchgpipe.dependency import fork, join
from gpipe.torchgpipe.microbatch import Batch
from gpipe.torchgpipe.skip.layout import SkipLayout
from gpipe.torchgpipe.skip.portal import Portal
from gpipe.torchgpipe.stream import AbstractStream

__all__ = ["SkipTracker", "SkipTrackerThroughPotals", "current_skip_tracker", "use_skip_tracker"]


class SkipTrackerThroughPotals(SkipTracker):
    """The skips of one micro-batch; those from one partition to another have portals.

    The name is torchgpipe's.
    """

    def __init__(self, skip_layout: SkipLayout) -> None:
        super().__init__()
        self.skip_layout = skip_layout
        self.portals: dict[tuple[Optional[Namespace], str], Portal] = {}

    def save(
        self, batch: Batch, ns: Optional[Namespace], name: str, tensor: Optional[Tensor]
    ) -> None:
        """Puts the tensor into its portal, and makes batch[0] depend on that."""
        if not self.skip_layout.requires_copy(ns, name):
            super().save(batch, ns, name, tensor)
            return
        portal = self.portals.get((ns, name))
        if portal is None:
            # The uses are this one, the pop, and the pop of a recompute.
            portal = self.portals[ns, name] = Portal(tensor, 3 if is_checkpointing() else 2)
        else:  # a recompute, whose pop came before
            portal.put_tensor(tensor, 1)
        batch[0] = join(batch[0], portal.blue())

    def load(self, batch: Batch, ns: Optional[Namespace], name: str) -> Optional[Tensor]:
        """Takes the tensor out of its portal, and makes it depend on batch[0]."""
        if not self.skip_layout.requires_copy(ns, name):
            return super().load(batch, ns, name)
        batch[0], phony = fork(batch[0])
        return self.portals[ns, name].orange(phony)

    def copy(
        self,
        batch: Batch,
        prev_stream: AbstractStream,
        next_stream: AbstractStream,
        ns: Optional[Namespace],
        name: str,
    ) -> None:
        """Moves the tensor in its portal to the device of `next_stream`."""
        batch[0], phony = fork(batch[0])
        batch[0] = join(batch[0], self.portals[ns, name].copy(prev_stream, next_stream, phony))
