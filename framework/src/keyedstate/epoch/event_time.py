"""The watermark of an operator, from its event times and the metadata of the last epoch.

It is computed from the metadata alone, so it is the same in all tasks of an epoch and in each repetition.
"""

from __future__ import annotations

from keyedstate.checkpoint import CheckpointMetadata
from keyedstate.runtime.two_inputs import INPUTS
from keyedstate.state.clock import BEFORE_TIME
from keyedstate.time import EventTime, InputTime, bounded_out_of_orderness, watermark_of_inputs

#: The event time of one input, or those of two that are connected; none where rows have no event time.
EventTimes = tuple[EventTime, ...]


def watermark_after(event_times: EventTimes, metadata: CheckpointMetadata, before: int) -> int:
    """Return the watermark after the rows that a checkpoint knows of, where it was `before` so far."""
    now = metadata.processing_time or 0
    # A bootstrapped savepoint may have seen no row of a connected input: that is waited for like any other.
    known = inputs_at_start(event_times, now) | metadata.inputs
    if len(event_times) > 1:
        by_input = dict(zip(INPUTS, event_times, strict=True))
    else:
        (only,) = event_times
        if only.inputs is None or not known:
            return max(before, bounded_out_of_orderness(metadata.largest_event_time, only.delay_ms or 0))
        by_input = dict.fromkeys(known, only)
    return watermark_of_inputs(
        {name: InputTime(*known[name]) for name in by_input},
        {name: each.delay_ms or 0 for name, each in by_input.items()},
        {name: each.idle_ms for name, each in by_input.items()},
        now,
        before,
    )


def inputs_at_start(event_times: EventTimes, now: int) -> dict[str, tuple[int, int]]:
    """Return what is known of two connected inputs without rows, at a processing time."""
    return dict.fromkeys(INPUTS, (BEFORE_TIME, now)) if len(event_times) > 1 else {}
