"""The time that the instances of a harness see, and the only place that moves it."""

from __future__ import annotations

import datetime as dt

from keyedstate.durations import Duration, milliseconds
from keyedstate.state import KeyedStateBackend
from keyedstate.state.clock import BEFORE_TIME, Clock, ManualClock
from keyedstate.testing.harness.errors import HarnessSettingError

_1970 = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_MILLISECOND = dt.timedelta(milliseconds=1)


class HarnessTime:
    """Processing time, which a clock gives, and event time, which is the watermark.

    Parameters
    ----------
    clock : callable or None
        By default a `ManualClock` that begins at 0.
    delay : str, timedelta, int or None
        How far behind the largest event time the watermark follows at the end of an epoch; None where only
        the test moves it.

    Attributes
    ----------
    clock : callable
    watermark : int
        In milliseconds since 1970 UTC; `BEFORE_TIME` before the first.
    largest_event_time : int or None
        Of the rows of this epoch.
    """

    def __init__(self, clock: Clock | None, delay: Duration | None) -> None:
        self.clock: Clock = ManualClock() if clock is None else clock
        self.watermark = BEFORE_TIME
        self.largest_event_time: int | None = None
        self._delay_ms = None if delay is None else milliseconds(delay)
        if self._delay_ms is not None and self._delay_ms < 0:
            raise HarnessSettingError("the delay", f"is {delay!r}, which is negative", "Give 0 or more.")

    def advance(self, duration: Duration) -> None:
        """Move the clock."""
        self._manual_clock().advance(milliseconds(duration))

    def set(self, time: int | dt.datetime) -> None:
        """Set the clock."""
        self._manual_clock().now = _instant_ms("the processing time", time)

    def advance_watermark(self, time: int | dt.datetime) -> None:
        """Move event time forward; an earlier watermark changes nothing."""
        self.watermark = max(self.watermark, _instant_ms("the watermark", time))

    def saw(self, event_time: int | None) -> None:
        """Note the largest event time of some rows."""
        if event_time is not None:
            largest = self.largest_event_time
            self.largest_event_time = event_time if largest is None else max(event_time, largest)

    def end_epoch(self) -> None:
        """Let the watermark follow the rows of the epoch, as a job does between two epochs."""
        if self._delay_ms is not None and self.largest_event_time is not None:
            self.advance_watermark(self.largest_event_time - self._delay_ms - 1)
        self.largest_event_time = None

    def show_to(self, backend: KeyedStateBackend) -> None:
        """Let the states of an instance see the present times."""
        backend.advance_watermark(self.watermark)

    def _manual_clock(self) -> ManualClock:
        if not isinstance(self.clock, ManualClock):
            raise HarnessSettingError(
                "the clock of this harness",
                f"is {self.clock!r}, which it cannot move",
                "Give a keyedstate.state.clock.ManualClock, or none at all.",
            )
        return self.clock


def _instant_ms(what: str, time: int | dt.datetime) -> int:
    """Return a point in time as milliseconds since 1970 UTC.

    Raises
    ------
    HarnessSettingError
        For a datetime without a time zone, and for what is neither a time nor a whole number.
    """
    if isinstance(time, dt.datetime):
        if time.tzinfo is None:
            way_out = "Give it one, such as UTC."
            raise HarnessSettingError(what, f"is {time!r}, which has no time zone", way_out)
        return (time - _1970) // _MILLISECOND
    if time.__class__ is not int:
        raise HarnessSettingError(what, f"is {time!r}", "Give milliseconds since 1970 UTC, or a datetime.")
    return time
