"""Watermarks: how far event time has gone, of one input and of several.

A watermark W says that no more rows with an event time of W or less come.  It is computed from numbers that
are in the metadata of checkpoints, so that a repeated epoch has it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keyedstate.state.clock import BEFORE_TIME


@dataclass(frozen=True)
class InputTime:
    """What is known of one input of several.

    Attributes
    ----------
    largest_event_time : int
        Of its rows, in milliseconds since 1970 UTC.
    last_seen : int
        The processing time of the last epoch in which it had a row with an event time, in milliseconds.
    """

    largest_event_time: int
    last_seen: int


def bounded_out_of_orderness(largest_event_time: int | None, delay_ms: int) -> int:
    """Return the watermark of rows that come at most so late (Flink's ``BoundedOutOfOrdernessWatermarks``).

    A millisecond before the largest event time less the delay, because more rows of just that time may come.

    Parameters
    ----------
    largest_event_time : int or None
        None, and `BEFORE_TIME` is returned, where there was no row.
    delay_ms : int
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

    Parameters
    ----------
    inputs : mapping
        Those that have had rows, and those that are known without: their largest event time is `BEFORE_TIME`.
    delay_ms : mapping of str to int
        How late rows of an input may come, against others of the same input.
    idle_ms : mapping of str to int or None
        An input without rows for longer is idle and holds nothing back; None where it never is.
    now : int
        The processing time by which that is judged.
    before : int
        The watermark so far, below which none is returned.  An input that lags behind it, because it was idle
        or is new, is left out until it has caught up.
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
        # Nothing is waited for: everything that has come is over.
        return max([before, *marks.values()])
    return min((mark for mark in active if mark >= before), default=before)
