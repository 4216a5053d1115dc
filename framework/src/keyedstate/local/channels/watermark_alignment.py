"""Which channels of sources pause, because they are too far ahead of others: `WatermarkAlignment`."""

from __future__ import annotations

from keyedstate.local.channels.elements import Watermark, WatermarkStatus
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME

#: Between two updates, as in Flink (``WatermarkAlignmentParams``).
_UPDATE_INTERVAL_MS = 1000


class WatermarkAlignment:
    """Pauses the channels of a group whose watermarks are too far ahead of the least one.

    The largest watermark allowed is the least one of the group plus the drift.  It is computed once per
    update interval (Flink's ``SourceCoordinator``), so a channel that pauses resumes with an update.  Idle
    channels and those that have ended do not count for the least one.

    A channel that pauses has no rows, but it is not idle.

    Parameters
    ----------
    drift_ms : int
        How far ahead of the least watermark a channel may be.
    now : int
        The time in milliseconds since 1970 UTC at which the group begins.
    """

    def __init__(
        self, channels: int, drift_ms: int, now: int, update_interval_ms: int = _UPDATE_INTERVAL_MS
    ) -> None:
        self._drift_ms = drift_ms
        self._update_interval_ms = update_interval_ms
        #: Of channels that have not ended.
        self._watermarks = dict.fromkeys(range(channels), BEFORE_TIME)
        self._idle: set[int] = set()
        self._allowed = END_OF_TIME
        self._next_ms = now + update_interval_ms

    @property
    def deadline_ms(self) -> int:
        """The time of the next `advance`."""
        return self._next_ms

    @property
    def paused(self) -> frozenset[int]:
        """The channels from which no rows are read for now."""
        return frozenset(
            channel for channel, watermark in self._watermarks.items() if watermark > self._allowed
        )

    def receive(self, channel: int, element: Watermark | WatermarkStatus) -> None:
        """Note a watermark or the status of a channel."""
        if element is WatermarkStatus.IDLE:
            self._idle.add(channel)
        elif element is WatermarkStatus.ACTIVE:
            self._idle.discard(channel)
        elif element.time_ms == END_OF_TIME:
            self._watermarks.pop(channel, None)
        else:
            self._watermarks[channel] = element.time_ms

    def advance(self, now: int) -> None:
        """Compute the largest watermark allowed; nothing changes before the deadline."""
        if now < self._next_ms:
            return
        self._next_ms = now + self._update_interval_ms
        counting = [mark for channel, mark in self._watermarks.items() if channel not in self._idle]
        self._allowed = min(min(counting, default=END_OF_TIME) + self._drift_ms, END_OF_TIME)
