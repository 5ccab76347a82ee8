"""Which skips go from which partition to which."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from torch import nn

from gpipe.skip import Namespace, Skippable

__all__ = ["SkipLayout", "inspect_skip_layout"]

Key = tuple[Optional[Namespace], str]


class SkipLayout:
    """skip_routes: (namespace, name) -> (the partition that stashes, the one that pops)."""

    def __init__(self, num_partitions: int, skip_routes: dict[Key, tuple[int, int]]) -> None:
        self.by_ns_name = skip_routes
        self.by_partition: list[list[tuple[int, Optional[Namespace], str]]] = [
            [] for _ in range(num_partitions)
        ]
        for (ns, name), (source, target) in skip_routes.items():
            self.by_partition[target].append((source, ns, name))
        for routes in self.by_partition:
            routes.sort(key=lambda route: (route[0], str(route[1] and route[1].id), route[2]))

    def copy_policy(self, next_j: int) -> Iterator[tuple[int, Optional[Namespace], str]]:
        """(source, namespace, name) of what comes to the partition from others, by source."""
        return (route for route in self.by_partition[next_j] if route[0] != next_j)

    def requires_copy(self, ns: Optional[Namespace], name: str) -> bool:
        """Whether the skip goes from one partition to another."""
        source, target = self.by_ns_name.get((ns, name), (-1, -1))
        return source != target


def inspect_skip_layout(partitions: Sequence[nn.Sequential]) -> SkipLayout:
    """The layout of the skips between the layers. Raises KeyError for a pop without a stash."""
    stashed: dict[Key, int] = {}
    routes: dict[Key, tuple[int, int]] = {}
    for number, partition in enumerate(partitions):
        for layer in partition:
            for module in layer.modules():
                if not isinstance(module, Skippable):
                    continue
                stashed.update((key, number) for key in module.stashable())
                routes.update((key, (stashed.pop(key), number)) for key in module.poppable())
    return SkipLayout(len(partitions), routes)
