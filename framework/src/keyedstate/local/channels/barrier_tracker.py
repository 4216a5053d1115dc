"""The input gate of at-least-once tasks: it counts barriers and blocks no channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keyedstate.local.channels.actions import AbortReason
from keyedstate.local.channels.elements import Barrier, InFlight, T
from keyedstate.local.channels.input_gate import NO_CHECKPOINT, InputGate

#: As many as in Flink (``CheckpointBarrierTracker.MAX_CHECKPOINTS_TO_TRACK``).
_MOST_CHECKPOINTS = 50


@dataclass
class _Incomplete:
    """A checkpoint, and the channels whose barrier was processed."""

    barrier: Barrier
    arrived: set[int] = field(default_factory=set)


class BarrierTracker(InputGate[T]):
    """Takes the snapshot after the last barrier of a checkpoint (Flink's ``CheckpointBarrierTracker``).

    Rows behind a barrier are processed at once.  So the snapshot contains rows that the sources send again
    after a restart.

    Several checkpoints may be incomplete, at most the newest 50.  A checkpoint that completes or is cancelled
    aborts the older ones, whose late barriers are ignored.
    """

    def __init__(
        self, channels: int, channel_state: Mapping[int, Sequence[InFlight[T]]] | None = None
    ) -> None:
        super().__init__(channels, channel_state)
        #: By id, the oldest first.
        self._incomplete: dict[int, _Incomplete] = {}
        #: The newest checkpoint that has begun or was cancelled.
        self._newest = NO_CHECKPOINT

    def _on_barrier(self, channel: int, barrier: Barrier) -> None:
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id > self._newest:
            self._newest = checkpoint_id
            self._incomplete[checkpoint_id] = _Incomplete(barrier)
            if len(self._incomplete) > _MOST_CHECKPOINTS:
                self._subsume(next(iter(self._incomplete)))
        if checkpoint_id in self._incomplete:
            self._incomplete[checkpoint_id].arrived.add(channel)
            self._complete_newest()

    def _on_cancellation(self, checkpoint_id: int) -> None:
        if checkpoint_id > self._newest or checkpoint_id in self._incomplete:
            self._subsume_before(checkpoint_id)
            self._incomplete.pop(checkpoint_id, None)
            self._newest = max(checkpoint_id, self._newest)
            self._abort(checkpoint_id, AbortReason.CANCELLED)

    def _on_end(self) -> None:
        self._complete_newest()

    def _complete_newest(self) -> None:
        """Complete the newest checkpoint that waits for no channel, if there is one."""
        for checkpoint_id in sorted(self._incomplete, reverse=True):
            if self._open <= self._incomplete[checkpoint_id].arrived:
                self._subsume_before(checkpoint_id)
                self._complete(self._incomplete.pop(checkpoint_id).barrier)
                return

    def _subsume_before(self, checkpoint_id: int) -> None:
        for older in [id for id in self._incomplete if id < checkpoint_id]:
            self._subsume(older)

    def _subsume(self, checkpoint_id: int) -> None:
        del self._incomplete[checkpoint_id]
        self._abort(checkpoint_id, AbortReason.SUBSUMED)
