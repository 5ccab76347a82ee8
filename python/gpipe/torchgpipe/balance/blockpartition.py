"""Cuts a sequence into blocks whose heaviest sum is as small as possible."""

from __future__ import annotations

__all__ = ["solve"]


def solve(sequence: list[int], partitions: int = 1) -> list[list[int]]:
    """`partitions` consecutive blocks, none of them empty.

    The heaviest one is as light as possible, which torchgpipe's is not always; among such cuts, the
    one with the least sum of squares. Raises ValueError for fewer than one partition, or a sequence
    that is shorter.
    """
    if partitions < 1:
        raise ValueError(f"partitions must be a positive integer ({partitions} < 1)")
    count = len(sequence)
    if count < partitions:
        raise ValueError(f"sequence is shorter than intended partitions ({count} < {partitions})")
    before = [0]
    for cost in sequence:
        before.append(before[-1] + cost)
    # best[end]: (heaviest, sum of squares, begin of the last block) of the first `end` costs.
    best = [(0, 0, 0)] + [None] * count
    chosen = []
    for blocks in range(1, partitions + 1):
        now = [None] * (count + 1)
        for end in range(blocks, count - (partitions - blocks) + 1):
            now[end] = min(
                (
                    max(best[begin][0], before[end] - before[begin]),
                    best[begin][1] + (before[end] - before[begin]) ** 2,
                    begin,
                )
                for begin in range(blocks - 1, end)
                if best[begin] is not None
            )
        best = now
        chosen.append(now)
    cut = []
    end = count
    for now in reversed(chosen):
        begin = now[end][2]
        cut.append(sequence[begin:end])
        end = begin
    return cut[::-1]
