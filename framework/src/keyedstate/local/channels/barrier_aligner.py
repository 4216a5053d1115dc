"""The input gate of exactly-once tasks: a checkpoint contains exactly what came before its barriers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from keyedstate.local.channels.actions import AbortReason, CompleteCheckpoint, TakeSnapshot
from keyedstate.local.channels.elements import (
    Barrier,
    CancellationBarrier,
    EndOfChannel,
    InFlight,
    Queued,
    T,
)
from keyedstate.local.channels.input_gate import NO_CHECKPOINT, InputGate


class BarrierAligner(InputGate[T]):
    """Aligns barriers (Flink's ``SingleCheckpointBarrierHandler``).

    An aligned checkpoint blocks each channel whose barrier was processed.  After the last barrier the task
    takes its snapshot, and the channels resume.  A channel that has ended counts as aligned.

    A barrier overtakes rows from `Barrier.overtakes_at_ms` on, if its checkpoint is not complete by then: the
    task takes its snapshot at once, blocks no channel, and the elements that wait or arrive before the
    barrier of their channel become channel state.  Such a barrier takes effect when it is received or
    announced.  One that never overtakes takes effect when it is processed.

    The barrier of a newer checkpoint aborts the current one, and so does a cancellation.
    """

    # `_current` is the checkpoint that has begun, until it is complete or aborted.  `_arrived` are the
    # channels that it does not wait for.  While it is aligned, `_in_flight` is None, and `_arrived` are the
    # blocked channels, whose barrier was processed.  From the moment when it is unaligned, `_arrived` also
    # has those whose barrier or end was received, and `_in_flight` the elements of others that belong to it.

    def __init__(
        self, channels: int, channel_state: Mapping[int, Sequence[InFlight[T]]] | None = None
    ) -> None:
        super().__init__(channels, channel_state)
        self._current: Barrier | None = None
        #: The newest checkpoint that has begun or was cancelled.
        self._newest = NO_CHECKPOINT
        self._arrived: set[int] = set()
        self._in_flight: dict[int, list[InFlight[T]]] | None = None

    @property
    def collecting(self) -> frozenset[int]:
        return frozenset() if self._in_flight is None else frozenset(self._open - self._arrived)

    @property
    def deadline_ms(self) -> int | None:
        if self._current is None or self._in_flight is not None:
            return None
        return self._current.overtakes_at_ms

    # -- when elements arrive -----------------------------------------------------------------------------

    def _on_announcement(self, barrier: Barrier) -> None:
        overtakes_at = barrier.overtakes_at_ms
        if overtakes_at is None:
            return
        if barrier.checkpoint_id > self._newest:
            self._begin(barrier)
        elif self._is_current(barrier.checkpoint_id):
            # The task that sent it may have changed to unaligned already.
            deadline = self.deadline_ms
            if deadline is not None and overtakes_at < deadline:
                self._current = barrier

    def _on_receipt(self, channel: int, element: Queued[T]) -> None:
        if isinstance(element, Barrier):
            self._on_announcement(element)
        elif isinstance(element, CancellationBarrier) and self._is_current(element.checkpoint_id):
            self._abort_current(AbortReason.CANCELLED)
        if self._in_flight is None or channel in self._arrived:
            return
        if self._ends_in_flight(element):
            self._arrived.add(channel)
            self._complete_unaligned()
        elif _is_in_flight(element):
            self._in_flight[channel].append(element)

    # -- when elements are processed ----------------------------------------------------------------------

    def _on_barrier(self, channel: int, barrier: Barrier) -> None:
        if barrier.checkpoint_id > self._newest:
            self._begin(barrier)
        if self._is_current(barrier.checkpoint_id) and self._in_flight is None:
            self._arrived.add(channel)
            self._complete_aligned()
            if self._current is not None:
                self._blocked.add(channel)

    def _on_cancellation(self, checkpoint_id: int) -> None:
        if self._is_current(checkpoint_id):
            self._abort_current(AbortReason.CANCELLED)
        elif checkpoint_id > self._newest:
            self._abort_current(AbortReason.SUBSUMED)
            self._newest = checkpoint_id
            self._abort(checkpoint_id, AbortReason.CANCELLED)

    def _on_end(self) -> None:
        if self._current is not None and self._in_flight is None:
            self._complete_aligned()

    def _on_time(self, now: int) -> None:
        deadline = self.deadline_ms
        if deadline is not None and now >= deadline:
            self._overtake()

    # -- the current checkpoint ---------------------------------------------------------------------------

    def _is_current(self, checkpoint_id: int) -> bool:
        return self._current is not None and self._current.checkpoint_id == checkpoint_id

    def _begin(self, barrier: Barrier) -> None:
        self._abort_current(AbortReason.SUBSUMED)
        self._current = barrier
        self._newest = barrier.checkpoint_id

    def _complete_aligned(self) -> None:
        """Take the snapshot if no channel is left to wait for."""
        if self._current is not None and self._open <= self._arrived:
            self._complete(self._current)
            self._finish()

    def _overtake(self) -> None:
        """Change from aligned to unaligned: take the snapshot, whose channel state begins with the queues."""
        assert self._current is not None
        self._actions.append(TakeSnapshot(self._current.as_unaligned()))
        self._in_flight = {}
        for channel in sorted(self._open - self._arrived):
            in_flight = self._in_flight[channel] = []
            for element in self._queues[channel]:
                if self._ends_in_flight(element):
                    self._arrived.add(channel)
                    break
                if _is_in_flight(element):
                    in_flight.append(element)
        self._resume()
        self._complete_unaligned()

    def _ends_in_flight(self, element: Queued[T]) -> bool:
        return isinstance(element, EndOfChannel) or (
            isinstance(element, Barrier) and self._is_current(element.checkpoint_id)
        )

    def _complete_unaligned(self) -> None:
        """Complete the checkpoint if no channel is left whose elements belong to it."""
        if self._current is not None and self._in_flight is not None and self._open <= self._arrived:
            channel_state = {
                channel: tuple(elements) for channel, elements in self._in_flight.items() if elements
            }
            self._actions.append(CompleteCheckpoint(self._current.checkpoint_id, channel_state))
            self._finish()

    def _abort_current(self, reason: AbortReason) -> None:
        if self._current is not None:
            self._abort(self._current.checkpoint_id, reason)
            self._finish()

    def _finish(self) -> None:
        self._current = self._in_flight = None
        self._arrived.clear()
        self._resume()

    def _resume(self) -> None:
        """Let blocked channels take turns again."""
        self._ready.extend(channel for channel in sorted(self._blocked) if self._queues[channel])
        self._blocked.clear()


def _is_in_flight(element: Queued[T]) -> TypeGuard[InFlight[T]]:
    return not isinstance(element, Barrier | CancellationBarrier | EndOfChannel)
