"""The processing time and event time of the instances of a harness."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from keyedstate.durations import Duration, milliseconds
from keyedstate.errors import HarnessSettingError
from keyedstate.state.clock import BEFORE_TIME, Clock, ManualClock
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.time import EventTime, InputTime, milliseconds_of, watermark_of_inputs


class HarnessTime:
    """Processing time, which a clock gives, and event time, which is the watermark.

    Parameters
    ----------
    clock : callable or None
        By default a `ManualClock` that begins at 0.
    event_times : mapping of str to EventTime or None
        The event time of each input; with a delay the watermark follows at the end of an epoch.

    Attributes
    ----------
    clock : callable
    watermark : int
        In milliseconds since 1970 UTC; `BEFORE_TIME` before the first.
    inputs : dict of str to InputTime
        The event times of each input, over all epochs.
    """

    def __init__(self, clock: Clock | None, event_times: Mapping[str, EventTime | None]) -> None:
        self.clock: Clock = ManualClock() if clock is None else clock
        self.watermark = BEFORE_TIME
        known = {name: each for name, each in event_times.items() if each is not None}
        # The rows of a followed operator do not move the watermark; the test stands for that operator.
        self._delays_ms = {
            name: ms
            for name, each in known.items()
            if each.follows is None and (ms := each.delay_ms) is not None
        }
        self._idle_ms = {name: each.idle_ms for name, each in known.items()}
        if self._delays_ms and len(self._delays_ms) < len(event_times):
            raise HarnessSettingError("the delay", "is not given for each input", "Give each one, or none.")
        for each in known.values():
            if each.idle is not None and not self._delays_ms:
                way_out = "Give every input a delay."
                raise HarnessSettingError(
                    "the idle time", f"is {each.idle!r}, and there is no delay", way_out
                )
            if each.idle is not None and len(event_times) < 2:
                way_out = "Leave it out."
                raise HarnessSettingError("the idle time", "is for several inputs, and there is one", way_out)
        now = self.clock()
        self.inputs = {name: InputTime(BEFORE_TIME, now) for name in event_times}

    def advance(self, duration: Duration) -> None:
        """Move the clock."""
        self._manual_clock().advance(milliseconds(duration))

    def set(self, time: int | dt.datetime) -> None:
        """Set the clock."""
        self._manual_clock().now = _instant_ms("the processing time", time)

    def advance_watermark(self, time: int | dt.datetime) -> None:
        """Move event time forward; an earlier watermark changes nothing."""
        self.watermark = max(self.watermark, _instant_ms("the watermark", time))

    def saw(self, event_times: Mapping[str, int]) -> None:
        """Update the largest event times, by input."""
        now = self.clock()
        for name, time in event_times.items():
            self.inputs[name] = InputTime(max(time, self.inputs[name].largest_event_time), now)

    def restore(self, watermark: int, inputs: Mapping[str, InputTime]) -> None:
        """Return to the times of a snapshot; no input was idle since then."""
        self.watermark = watermark
        now = self.clock()
        for name in self.inputs:
            known = inputs.get(name)
            self.inputs[name] = InputTime(BEFORE_TIME if known is None else known.largest_event_time, now)

    def end_epoch(self) -> None:
        """Advance the watermark by the rows of the epoch, as a job does between two epochs."""
        if self._delays_ms:
            self.watermark = watermark_of_inputs(
                self.inputs, self._delays_ms, self._idle_ms, self.clock(), self.watermark
            )

    def show_to(self, backend: KeyedStateBackend) -> None:
        """Show the present times to the states of an instance."""
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
        For a datetime without a time zone, and for a value that is neither a time nor a whole number.
    """
    if isinstance(time, dt.datetime):
        if time.tzinfo is None:
            way_out = "Give it one, such as UTC."
            raise HarnessSettingError(what, f"is {time!r}, which has no time zone", way_out)
        return milliseconds_of(time)
    if time.__class__ is not int:
        raise HarnessSettingError(what, f"is {time!r}", "Give milliseconds since 1970 UTC, or a datetime.")
    return time
