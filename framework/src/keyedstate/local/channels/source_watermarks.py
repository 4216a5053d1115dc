"""The watermarks of a source's channel, from the event times of its rows: `SourceWatermarks`."""

from __future__ import annotations

from keyedstate.local.channels.elements import Watermark, WatermarkStatus
from keyedstate.state.clock import BEFORE_TIME
from keyedstate.time import bounded_out_of_orderness

#: Between two watermarks, as in Flink (``pipeline.auto-watermark-interval``).
_INTERVAL_MS = 200


class SourceWatermarks:
    """Generates the watermarks and the status of a channel whose rows are late by at most a delay.

    It is Flink's ``BoundedOutOfOrdernessWatermarks`` with ``WatermarksWithIdleness``: watermarks are emitted
    periodically and not with each row; a channel without rows for longer than `idle_ms` is idle until its
    next row.

    Parameters
    ----------
    delay_ms : int
    idle_ms : int or None
        None where the channel is never idle.
    now : int
        The time in milliseconds since 1970 UTC at which the channel begins.
    interval_ms : int, optional
        The time between two watermarks.
    """

    def __init__(self, delay_ms: int, idle_ms: int | None, now: int, interval_ms: int = _INTERVAL_MS) -> None:
        self._delay_ms = delay_ms
        self._idle_ms = idle_ms
        self._interval_ms = interval_ms
        #: That of the rows so far, and the last one that was emitted.
        self._watermark = self._emitted = BEFORE_TIME
        self._next_ms = now + interval_ms
        self._last_row_ms = now
        self._status = WatermarkStatus.ACTIVE

    @property
    def deadline_ms(self) -> int | None:
        """The time of the next `advance` if no rows come; None where nothing is due."""
        if self._watermark > self._emitted:
            return self._next_ms
        if self._idle_ms is None or self._status is WatermarkStatus.IDLE:
            return None
        return max(self._last_row_ms + self._idle_ms + 1, self._next_ms)

    def receive(self, largest_event_time: int | None, now: int) -> list[Watermark | WatermarkStatus]:
        """Note that the channel has rows, and return what comes before them: its status, if it was idle.

        Parameters
        ----------
        largest_event_time : int or None
            The largest of the rows in milliseconds since 1970 UTC; None where no row has one.
        now : int
        """
        self._last_row_ms = now
        if largest_event_time is not None:
            watermark = bounded_out_of_orderness(largest_event_time, self._delay_ms)
            self._watermark = max(watermark, self._watermark)
        if self._status is WatermarkStatus.ACTIVE:
            return []
        self._status = WatermarkStatus.ACTIVE
        return [self._status]

    def advance(self, now: int) -> list[Watermark | WatermarkStatus]:
        """Return the watermark, if it has grown, and the status, if the channel is idle now."""
        if now < self._next_ms:
            return []
        self._next_ms = now + self._interval_ms
        changes: list[Watermark | WatermarkStatus] = []
        if self._watermark > self._emitted:
            self._emitted = self._watermark
            changes.append(Watermark(self._watermark))
        if (
            self._idle_ms is not None
            and now - self._last_row_ms > self._idle_ms
            and self._status is WatermarkStatus.ACTIVE
        ):
            self._status = WatermarkStatus.IDLE
            changes.append(self._status)
        return changes
