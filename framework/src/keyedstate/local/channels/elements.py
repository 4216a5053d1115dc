"""What travels in a channel: rows, and between them barriers, watermarks, the status, and the end.

A channel keeps the order of its elements.  Rows are any object that is none of the classes of this module, a
record batch for instance.  All elements can be pickled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias, TypeVar

from keyedstate.state.clock import BEFORE_TIME

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Barrier:
    """Separates the rows of a checkpoint from those of the next one (Flink's ``CheckpointBarrier``)."""

    #: Ids ascend; 0 or more.
    checkpoint_id: int
    #: When the coordinator triggered the checkpoint, in milliseconds since 1970 UTC.
    triggered_ms: int
    #: Whether the checkpoint is a savepoint, which is always aligned.
    savepoint: bool = False
    #: After how long, from the trigger on, the barrier overtakes rows and the checkpoint becomes unaligned:
    #: None never, 0 at once.  A task with at-least-once guarantees ignores it.
    alignment_timeout_ms: int | None = None

    @property
    def overtakes_at_ms(self) -> int | None:
        """The time from which on the barrier overtakes rows: None never, `BEFORE_TIME` at once."""
        if self.savepoint or self.alignment_timeout_ms is None:
            return None
        return self.triggered_ms + self.alignment_timeout_ms if self.alignment_timeout_ms else BEFORE_TIME

    def as_unaligned(self) -> Barrier:
        """Return the barrier that overtakes rows at once."""
        return replace(self, alignment_timeout_ms=0)


@dataclass(frozen=True, slots=True)
class BarrierAnnouncement:
    """Reports that a barrier is in the channel, behind rows that it has not overtaken.

    A sender puts it before rows that wait in its own buffer.  The alignment timeout counts from it, and a
    barrier that overtakes rows takes effect with it.  The barrier itself follows in its place.
    """

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class CancellationBarrier:
    """Comes instead of the barrier of an aborted checkpoint (Flink's ``CancelCheckpointMarker``)."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """No more rows with an event time of `time_ms` or less come; `END_OF_TIME` where the input has ended."""

    time_ms: int


class WatermarkStatus(Enum):
    """Whether the watermarks of a channel count."""

    ACTIVE = "active"
    #: No rows come for now, so others do not wait for the channel's watermarks.
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class EndOfChannel:
    """Nothing follows in the channel (Flink's ``EndOfPartitionEvent``)."""


#: What the checkpoint of a task may contain of a channel.
InFlight: TypeAlias = T | Watermark | WatermarkStatus
#: What has its place in the order of a channel.
Queued: TypeAlias = InFlight[T] | Barrier | CancellationBarrier | EndOfChannel
#: What a task receives from a channel.
Element: TypeAlias = Queued[T] | BarrierAnnouncement
