"""Where the watermark of an operator comes from: columns of event times, delays, and the metadata of the last
epoch.

It is computed from the metadata alone, so it is the same in all tasks of an epoch and in each repetition.
"""

from __future__ import annotations

from dataclasses import dataclass

from keyedstate.checkpoint import CheckpointMetadata
from keyedstate.runtime.runners.connected import INPUTS
from keyedstate.state import BEFORE_TIME
from keyedstate.time import InputTime, bounded_out_of_orderness, watermark_of_inputs


@dataclass(frozen=True)
class EventTime:
    """Where an operator has its event time from.

    Attributes
    ----------
    column : str
    delay_ms : int
    input_column : str or None
        The column that tells inputs apart, each of which has a watermark of its own.
    idle_ms : int or None
        After how long without rows an input holds the others up no more; None for never.
    """

    column: str
    delay_ms: int
    input_column: str | None = None
    idle_ms: int | None = None

    #: Inputs that are known before they have rows.
    known_inputs = ()

    def watermark(self, metadata: CheckpointMetadata, before: int) -> int:
        """Return the watermark after the rows that a checkpoint knows of, where it was `before` so far."""
        if self.input_column is None or not metadata.inputs:
            return max(before, bounded_out_of_orderness(metadata.largest_event_time, self.delay_ms))
        inputs = {name: InputTime(*times) for name, times in metadata.inputs.items()}
        return watermark_of_inputs(inputs, self.delay_ms, self.idle_ms, metadata.processing_time or 0, before)


@dataclass(frozen=True)
class ConnectedEventTime:
    """Where an operator of two connected inputs has its event time from.

    Attributes
    ----------
    delays_ms : (int, int)
    idle_ms : int or None
        As in `EventTime`.
    """

    delays_ms: tuple[int, int]
    idle_ms: int | None

    known_inputs = INPUTS

    def watermark(self, metadata: CheckpointMetadata, before: int) -> int:
        """Return the watermark after the rows that a checkpoint knows of, where it was `before` so far."""
        now = metadata.processing_time or 0
        # A bootstrapped savepoint may have seen no row of one: that is waited for like any other.
        known = inputs_at_start(self, now) | metadata.inputs
        inputs = {name: InputTime(*known[name]) for name in INPUTS}
        delays_ms = dict(zip(INPUTS, self.delays_ms, strict=True))
        return watermark_of_inputs(inputs, delays_ms, self.idle_ms, now, before)


def inputs_at_start(
    event_time: EventTime | ConnectedEventTime | None, now: int
) -> dict[str, tuple[int, int]]:
    """Return what is known of inputs that have had no row, at a processing time."""
    return {} if event_time is None else dict.fromkeys(event_time.known_inputs, (BEFORE_TIME, now))
