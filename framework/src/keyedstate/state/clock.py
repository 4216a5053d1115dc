"""The time that states see: processing time from a clock that is passed in, event time from the watermark.

Times are whole milliseconds since 1970 UTC.  A time is read once per record, so that all states of a record
see the same one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

#: Returns processing time in milliseconds.
Clock: TypeAlias = Callable[[], int]

#: The event time before the first watermark (Flink's ``Long.MIN_VALUE``).
BEFORE_TIME = -(2**63)
#: The watermark of an input that has ended (Flink's ``Long.MAX_VALUE``).
END_OF_TIME = 2**63 - 1
#: The timestamp of what is written at an unknown time: it lives until it gets a known one.
UNKNOWN_TIME = END_OF_TIME
#: A time that never comes.
NEVER = 2**65
#: Later than every timestamp plus every time to live; in Flink such sums saturate.
_AFTER_EVERYTHING = 2**64


def system_clock() -> int:
    """Return the machine's time."""
    return time.time_ns() // 1_000_000


class CorrectedClock:
    """The machine's clock plus a correction, or a fixed time; both may be set."""

    __slots__ = ("correction_ms", "fixed_ms")

    def __init__(self, correction_ms: int = 0) -> None:
        self.correction_ms = correction_ms
        self.fixed_ms: int | None = None

    def __call__(self) -> int:
        """Return the time."""
        if self.fixed_ms is not None:
            return self.fixed_ms
        return system_clock() + self.correction_ms


class ManualClock:
    """A clock for tests: `now` may be set, also backwards."""

    __slots__ = ("now",)

    def __init__(self, now: int = 0) -> None:
        self.now = now

    def __call__(self) -> int:
        """Return the time."""
        return self.now

    def advance(self, ms: int) -> None:
        """Move forward."""
        self.now += ms

    def __repr__(self) -> str:
        return f"ManualClock({self.now})"


class StateTime:
    """One time line, as the states that expire by it see it."""

    __slots__ = ("now", "stamp")

    def __init__(self) -> None:
        #: Decides what is expired.
        self.now = BEFORE_TIME
        #: The timestamp of writes.  In event time that of the record where it is ahead of the watermark, so
        #: that an entry lives equally long after its record however far the watermark lags.
        self.stamp = UNKNOWN_TIME

    def set(self, now: int, record: int | None = None) -> None:
        """Move to a watermark, and to the timestamp of the current record, where it has one."""
        self.now = _AFTER_EVERYTHING if now >= END_OF_TIME else now
        if record is not None and record > now:
            self.stamp = record
        else:
            self.stamp = UNKNOWN_TIME if now == BEFORE_TIME else now

    def renewed(self, written: int) -> int:
        """Return the new timestamp of an entry that is read or added to.

        A late record makes no entry older: its life must not depend on the order of reads.
        """
        stamp = self.stamp
        if written == UNKNOWN_TIME or stamp == UNKNOWN_TIME:
            return min(written, stamp)
        return max(written, stamp)
