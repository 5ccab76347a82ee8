"""The order of torchgpipe's schedule, and its engine, which GPipe does not use here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

import torch
from torch import nn

from gpipe.torchgpipe.checkpoint import Checkpointing, Value
from gpipe.torchgpipe.copy import Copy, Wait
from gpipe.torchgpipe.dependency import fork, join
from gpipe.torchgpipe.microbatch import Batch
from gpipe.torchgpipe.skip.layout import SkipLayout, inspect_skip_layout
from gpipe.torchgpipe.skip.tracker import SkipTrackerThroughPotals, use_skip_tracker
from gpipe.torchgpipe.stream import AbstractStream, current_stream, use_device
from gpipe.torchgpipe.worker import Task, spawn_workers

__all__ = ["Pipeline", "clock_cycles"]


def clock_cycles(m: int, n: int) -> Iterator[list[tuple[int, int]]]:
    """For each clock tick the pairs (micro-batch, partition) of `m` and `n` that run in it."""
    for tick in range(m + n - 1):
        yield [(tick - j, j) for j in range(max(0, tick - m + 1), min(tick + 1, n))]


class Pipeline:
    """Takes micro-batches through partitions in plain torch, a clock tick after the other.

    For programs that drive it by hand, as torchgpipe's own GPipe does. Results are those of
    gpipe.torchgpipe.GPipe, which has an engine without ticks.

    batches: the micro-batches; `run` puts what the last partition gives in their place.
    devices: of each partition. Default: the CPU.
    copy_streams: for each partition a stream for each micro-batch. Default: the current ones.
    skip_layout: of the partitions' skips. Default: found by inspection.
    checkpoint_stop: how many micro-batches, the first ones, are checkpointed.
    """

    def __init__(
        self,
        batches: list[Batch],
        partitions: Sequence[nn.Sequential],
        devices: Optional[Sequence[torch.device]] = None,
        copy_streams: Optional[Sequence[Sequence[AbstractStream]]] = None,
        skip_layout: Optional[SkipLayout] = None,
        checkpoint_stop: int = 0,
    ) -> None:
        self.batches = batches
        self.partitions = partitions
        self.devices = devices or [torch.device("cpu")] * len(partitions)
        self.copy_streams = copy_streams or [
            [current_stream(device)] * len(batches) for device in self.devices
        ]
        self.skip_layout = skip_layout or inspect_skip_layout(partitions)
        self.checkpoint_stop = checkpoint_stop

    def run(self) -> None:
        """Runs the forward. Raises the first exception of a layer, after the tick it belongs to."""
        trackers = [SkipTrackerThroughPotals(self.skip_layout) for _ in self.batches]
        with spawn_workers(self.devices) as (in_queues, out_queues):
            for tick in clock_cycles(len(self.batches), len(self.partitions)):
                for i, j in tick:
                    self._bring(i, j, trackers[i])
                for i, j in tick:
                    in_queues[j].put(self._task(i, j, trackers[i]))
                answers = [out_queues[j].get() for _, j in tick]
                for (i, j), (done, answer) in zip(tick, answers):
                    if not done:
                        raise answer[1]
                    self._finish(i, j, *answer)

    def _bring(self, i: int, j: int, tracker: SkipTrackerThroughPotals) -> None:
        """Copies the micro-batch and the skips that it needs to the partition's device."""
        batch = self.batches[i]
        if i != 0:
            # The backward of a micro-batch comes after that of the next one.
            former = self.batches[i - 1]
            former[0], phony = fork(former[0])
            batch[0] = join(batch[0], phony)
        for source, ns, name in self.skip_layout.copy_policy(j):
            tracker.copy(batch, self.copy_streams[source][i], self.copy_streams[j][i], ns, name)
        if j != 0:
            batch[:] = Copy.apply(self.copy_streams[j - 1][i], self.copy_streams[j][i], *batch)
            batch[:] = Wait.apply(self.copy_streams[j][i], self._stream(j), *batch)

    def _task(self, i: int, j: int, tracker: SkipTrackerThroughPotals) -> Task:
        batch, partition = self.batches[i], self.partitions[j]

        def function(input: Value) -> Value:
            with use_skip_tracker(tracker):
                return partition(input)

        if i < self.checkpoint_stop:
            checkpointing = Checkpointing(function, batch)
            return Task(
                self._stream(j), compute=checkpointing.checkpoint, finalize=checkpointing.recompute
            )
        return Task(self._stream(j), compute=lambda: batch.call(function), finalize=None)

    def _finish(self, i: int, j: int, task: Task, batch: Batch) -> None:
        if j != len(self.partitions) - 1:
            batch[:] = Wait.apply(self._stream(j), self.copy_streams[j][i], *batch)
        # The node that recomputes comes after the wait, so that it need not wait for gradients.
        with use_device(self.devices[j]):
            task.finalize(batch)
        self.batches[i] = batch

    def _stream(self, j: int) -> AbstractStream:
        return current_stream(self.devices[j])
