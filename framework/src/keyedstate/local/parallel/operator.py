"""An operator of a run whose subtasks are processes, as the process of the run sees it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import pyarrow as pa

from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement
from keyedstate.local.channels.elements import Barrier, Watermark
from keyedstate.local.parallel.feed import Feed
from keyedstate.local.parallel.fork_server import ForkServer
from keyedstate.local.parallel.messages import (
    Begin,
    BroadcastEnd,
    EndEpoch,
    Finished,
    Opened,
    Positions,
    Published,
)
from keyedstate.local.parallel.process import SubtaskProcess
from keyedstate.local.run.input_channels import InputChannels, upstream_channel
from keyedstate.local.run.operator_task import RunIdentity, new_operator_id
from keyedstate.local.run.plan import OperatorPlan
from keyedstate.local.sources.source import SourceChannel
from keyedstate.options import (
    AT_LEAST_ONCE,
    CHECKPOINT_ALIGNMENT_TIMEOUT,
    CHECKPOINT_MODE,
    UNALIGNED,
)
from keyedstate.runtime.timers import AtEnd
from keyedstate.state.clock import END_OF_TIME, system_clock


class ParallelOperator:
    """The subtasks of an operator, and the channels that lead to them.

    First `start`, then `open`. The caller ends the processes in any case.
    """

    def __init__(self, plan: OperatorPlan) -> None:
        self.plan = plan
        self.subtasks: list[SubtaskProcess] = []
        #: Those that have not finished the epoch.
        self.unfinished: list[SubtaskProcess] = []
        #: Of those that have written it.
        self.acknowledgements: list[Acknowledgement] = []
        #: The checkpoint from which the state was restored.
        self.restored: CheckpointMetadata | None = None
        self.inputs = InputChannels(plan, system_clock)
        self._watermark: int | None = None
        self._sources: list[tuple[SourceChannel, Feed]] = []
        self._upstream: dict[tuple[int, str], Feed] = {}
        #: Channels whose next rows are not the last ones of an answer.
        self._continuing: set[Feed] = set()
        #: The end of the current epoch, from the moment when its first barrier is sent, and the positions of
        #: the channels of sources there.
        self._end: EndEpoch | None = None
        self._positions: Mapping[str, Any] = {}
        #: The channels of other operators' subtasks that its barrier has passed; nothing is behind it.
        self._passed: set[Feed] = set()

    def start(self, server: ForkServer, identity: RunIdentity, epoch: int) -> None:
        """Start the processes; an error may leave some of them running."""
        partitions, operator_id = self.plan.partitions, new_operator_id()
        channels = len(self.inputs.reading) + len(self.inputs.upstream)
        aligns = self.plan.config[CHECKPOINT_MODE] != AT_LEAST_ONCE
        for number in range(partitions.parallelism):
            subtask = SubtaskProcess(server, self.plan.name, number, channels)
            self.subtasks.append(subtask)
            subtask.control.put(Begin(partitions, number, identity, operator_id, epoch, aligns))

    def open(self) -> None:
        """Wait until all subtasks have restored their state, and move the sources to their positions."""
        opened = [subtask.next(Opened) for subtask in self.subtasks]
        self.restored = opened[0].restored
        marks = [each.watermark for each in opened if each.watermark is not None]
        self.inputs.restore(self.restored, max(marks, default=None))
        self.unfinished = list(self.subtasks)
        reading = list(self.inputs.reading)
        self._sources = [
            (channel, self._feed(place, number, channel.name))
            for place, (number, channel) in enumerate(reading)
        ]
        self._upstream = {
            (number, name): self._feed(place, number, name)
            for place, (number, name) in enumerate(self.inputs.upstream, len(reading))
        }

    def _feed(self, place: int, number: int, name: str) -> Feed:
        connections = [subtask.channels[place] for subtask in self.subtasks]
        return Feed(number, name, connections, self.plan.partitions.max_parallelism)

    def from_subtask(self, number: int, subtask: int) -> Feed:
        """Return the channel, of one of the inputs, whose rows a subtask of another operator yields."""
        return self._upstream[number, upstream_channel(subtask)]

    def expects_rows(self, feed: Feed) -> bool:
        """Return whether another operator's subtask may still yield rows of the epoch into a channel."""
        return feed not in self._passed

    # -- to the subtasks ------------------------------------------------------------------------------------

    def send_broadcast(self) -> None:
        """Send the rows of the broadcast side to every subtask."""
        for message in chain(self.plan.read.broadcast_rows(), [BroadcastEnd()]):
            for subtask in self.subtasks:
                subtask.control.put(message)

    def read(self) -> bool:
        """Read a batch of each source's channel whose subtasks have room; return whether there was one."""
        found = False
        readable = self.inputs.readable()
        for channel, feed in self._sources:
            if feed.waits or (feed.number, channel) not in readable:
                continue
            batch = channel.read()
            if batch is None:
                found = True
                self._end_channel(feed)
            elif batch.num_rows:
                found = True
                self.send_rows(feed, batch)
        return found

    def send_rows(self, feed: Feed, rows: pa.RecordBatch) -> None:
        """Send rows of one of the channels to the subtasks."""
        more_follow = feed in self._continuing
        self._continuing.discard(feed)
        feed.send_rows(self.inputs.keyed(feed.number, feed.name, rows, more_follow=more_follow))

    def expect_more(self, feed: Feed) -> None:
        """Note that more rows belong to the next ones of a channel."""
        self._continuing.add(feed)

    def count_turn(self) -> None:
        """Count the time of a turn of the run, in which the channels had no rows or were not read."""
        self.inputs.count_turn()
        for feed in self._feeds():
            if feed.waits or feed in self._passed:
                # It has no rows in this process, but may have some in another one.
                self.inputs.time.paused(feed.number, feed.name)

    def send_watermark(self) -> None:
        """Send the watermark of all channels into each of them, if it has grown.

        It also grows without rows: an idle channel holds nothing back.
        """
        watermark = self.inputs.time.watermark()
        if watermark is not None and (self._watermark is None or watermark > self._watermark):
            self._watermark = watermark
            for feed in self._feeds():
                feed.send(Watermark(watermark))

    def _feeds(self) -> list[Feed]:
        return [*(feed for _, feed in self._sources), *self._upstream.values()]

    def _end_channel(self, feed: Feed) -> None:
        self.inputs.end(feed.number, feed.name)
        self.send_watermark()
        feed.send(Watermark(END_OF_TIME))

    # -- the end of an epoch --------------------------------------------------------------------------------

    def end_epoch(self, epoch: int, at_end: AtEnd, *, is_last: bool) -> None:
        """Send the barrier of the epoch into the channels of sources, behind the rows that were read."""
        timeout_ms = None
        if self.plan.config[CHECKPOINT_MODE] == UNALIGNED and not is_last:
            # The last one has no rows in flight, so that anything may continue from it.
            timeout_ms = self.plan.config[CHECKPOINT_ALIGNMENT_TIMEOUT]
        barrier = Barrier(epoch, system_clock(), alignment_timeout_ms=timeout_ms)
        self._end = EndEpoch(barrier, at_end, is_last)
        self._positions = self.inputs.positions()
        for _, feed in self._sources:
            feed.send(barrier)
        if not self._upstream or timeout_ms is not None:
            # A barrier that overtakes rows also overtakes those that other subtasks yield before theirs.
            self._send(self._end)
        if not self._upstream:
            self._send(Positions(self._positions))

    def pass_barrier(self, feed: Feed, *, sender_has_ended: bool) -> None:
        """Send the barrier of the epoch behind the rows of another operator's subtask.

        The sender has ended if all channels of that operator have.
        """
        assert self._end is not None, "all operators end an epoch together"
        self.send_watermark()
        if self._end.is_last and sender_has_ended:
            # Only now: until its barrier it may yield rows, of timers for instance.
            self._end_channel(feed)
        feed.send(self._end.barrier)
        self._passed.add(feed)
        if len(self._passed) == len(self._upstream):
            if self._end.barrier.alignment_timeout_ms is None:
                self._send(self._end)
            # The rows that a barrier has overtaken belong to the checkpoint, and so do their event times.
            self._send(Positions(self.inputs.with_upstream_positions(self._positions)))

    def _send(self, message: EndEpoch | Positions) -> None:
        for subtask in self.subtasks:
            subtask.control.put(message)

    def finish(self, subtask: SubtaskProcess, finished: Finished) -> None:
        """Note that a subtask has finished the epoch."""
        self.unfinished.remove(subtask)
        if finished.acknowledgement is not None:
            self.acknowledgements.append(finished.acknowledgement)

    def begin_epoch(self, published: int) -> None:
        """Let the subtasks begin the next epoch, when the checkpoint of the last one is published."""
        for subtask in self.subtasks:
            subtask.control.put(Published(published))
        self._end = None
        self._passed.clear()
        self.acknowledgements = []
        self.unfinished = list(self.subtasks)
