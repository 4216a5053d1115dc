"""The time that the instances of a harness see, and the only place that moves it."""

from __future__ import annotations

import datetime as dt

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

    Attributes
    ----------
    clock : callable
    watermark : int
        In milliseconds since 1970 UTC; `BEFORE_TIME` before the first.
    """

    def __init__(self, clock: Clock | None) -> None:
        self.clock: Clock = ManualClock() if clock is None else clock
        self.watermark = BEFORE_TIME

    def advance(self, duration: int | dt.timedelta) -> None:
        """Move the clock by milliseconds or a timedelta."""
        ms = duration // _MILLISECOND if isinstance(duration, dt.timedelta) else duration
        self._manual_clock().advance(_whole_ms("the duration", ms))

    def set(self, time: int | dt.datetime) -> None:
        """Set the clock."""
        self._manual_clock().now = instant_ms("the processing time", time)

    def advance_watermark(self, time: int | dt.datetime) -> None:
        """Move event time forward; an earlier watermark changes nothing."""
        self.watermark = max(self.watermark, instant_ms("the watermark", time))

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


def instant_ms(what: str, time: int | dt.datetime) -> int:
    """Return a point in time as milliseconds since 1970 UTC.

    Raises
    ------
    HarnessSettingError
        For a datetime without a time zone, and for what is neither a time nor a whole number.
    """
    if isinstance(time, dt.datetime):
        if time.tzinfo is None:
            raise HarnessSettingError(
                what, f"is {time!r}, which has no time zone", "Give it one, such as UTC."
            )
        return (time - _1970) // _MILLISECOND
    return _whole_ms(what, time)


def _whole_ms(what: str, ms: object) -> int:
    if ms.__class__ is not int:
        raise HarnessSettingError(what, f"is {ms!r}", "Give whole milliseconds, or a datetime or timedelta.")
    return ms
