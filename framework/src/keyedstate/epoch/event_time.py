"""The watermark of an operator, from the last epoch's metadata: the same in all tasks and repetitions."""

from __future__ import annotations

from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.runtime.functions.connected_inputs import input_names
from keyedstate.state.clock import BEFORE_TIME
from keyedstate.time import EventTime, InputTime, bounded_out_of_orderness, watermark_of_inputs

#: The event time of one input, or of each connected input; empty without event time.
EventTimes = tuple[EventTime, ...]


def watermark_after(event_times: EventTimes, metadata: CheckpointMetadata, before: int) -> int:
    """Return the watermark after the rows of a checkpoint, at least the earlier watermark `before`."""
    now = metadata.processing_time or 0
    # A bootstrapped savepoint may lack a connected input, which the watermark waits for like any other.
    known = inputs_at_start(event_times, now) | metadata.inputs
    if len(event_times) > 1:
        by_input = dict(zip(input_names(len(event_times)), event_times, strict=True))
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
    """Return the event time and the time of the last row of connected inputs without rows."""
    count = len(event_times)
    return dict.fromkeys(input_names(count), (BEFORE_TIME, now)) if count > 1 else {}
