"""Watermarks of one input and of several.

A watermark W means that no more rows with an event time of W or less come.  It is computed from numbers in
the metadata of checkpoints, so that a repeated epoch has the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keyedstate.state.clock import BEFORE_TIME


@dataclass(frozen=True)
class InputTime:
    """The event time of one input of several."""

    #: The largest event time of its rows in milliseconds since 1970 UTC; `BEFORE_TIME` without rows.
    largest_event_time: int
    #: The processing time in milliseconds of the last epoch in which it had a row with an event time.
    last_seen: int


def bounded_out_of_orderness(largest_event_time: int | None, delay_ms: int) -> int:
    """Return the watermark for rows that are late by at most a delay; `BEFORE_TIME` without rows.

    It is a millisecond before the largest event time less the delay, because more rows of that time may come
    (Flink's ``BoundedOutOfOrdernessWatermarks``).
    """
    if largest_event_time is None:
        return BEFORE_TIME
    return max(largest_event_time - delay_ms - 1, BEFORE_TIME)


def watermark_of_inputs(
    inputs: Mapping[str, InputTime],
    delay_ms: Mapping[str, int],
    idle_ms: Mapping[str, int | None],
    now: int,
    before: int,
) -> int:
    """Return the watermark of several inputs: the least of those that are active (``StatusWatermarkValve``).

    Rows of an input are late by at most its `delay_ms`, compared with others of it. An input without rows for
    longer than its `idle_ms`, at the processing time `now`, is idle and is left out; with None it never is.
    The watermark never goes back from the one `before`: an input behind that, because it was idle or is new,
    is left out until it has caught up.
    """
    marks = {
        name: bounded_out_of_orderness(input_.largest_event_time, delay_ms[name])
        for name, input_ in inputs.items()
    }
    active = [
        mark
        for name, mark in marks.items()
        if (idle := idle_ms[name]) is None or now - inputs[name].last_seen <= idle
    ]
    if not active:
        # There is no input to wait for.
        return max([before, *marks.values()])
    return min((mark for mark in active if mark >= before), default=before)
