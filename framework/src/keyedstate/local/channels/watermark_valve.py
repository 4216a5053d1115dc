"""The watermark of several channels: `WatermarkValve`."""

from __future__ import annotations

from keyedstate.local.channels.elements import Watermark, WatermarkStatus
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME


class WatermarkValve:
    """Combines the watermarks of channels (Flink's ``StatusWatermarkValve``).

    The watermark, in milliseconds since 1970 UTC, is the least of the active channels; `BEFORE_TIME` before
    the first one. It never goes back: a channel that becomes active behind it does not count until it has
    caught up. When all channels are idle, none is left to wait for: the watermark becomes the largest of all,
    and the valve is idle. All are active at first.

    A channel whose watermark is `END_OF_TIME` has ended. It counts as idle until all channels have ended. In
    Flink it counts as active, so that the input ends as soon as the other channels are idle.
    """

    def __init__(self, channels: int) -> None:
        self.watermark = BEFORE_TIME
        self.status = WatermarkStatus.ACTIVE
        #: Of channels that have not ended.
        self._watermarks = dict.fromkeys(range(channels), BEFORE_TIME)
        self._idle: set[int] = set()

    def receive(
        self, channel: int, element: Watermark | WatermarkStatus
    ) -> list[Watermark | WatermarkStatus]:
        """Return what a watermark or a status of a channel changes in the combined ones, in order.

        A watermark of an idle channel is ignored, unless it ends the channel.
        """
        if element is WatermarkStatus.IDLE:
            self._idle.add(channel)
        elif element is WatermarkStatus.ACTIVE:
            self._idle.discard(channel)
        elif element.time_ms == END_OF_TIME:
            self._watermarks.pop(channel, None)
        elif channel in self._watermarks and channel not in self._idle:
            self._watermarks[channel] = max(element.time_ms, self._watermarks[channel])
        return self._changes()

    def _changes(self) -> list[Watermark | WatermarkStatus]:
        active = [mark for channel, mark in self._watermarks.items() if channel not in self._idle]
        if active:
            status = WatermarkStatus.ACTIVE
            watermark = min((mark for mark in active if mark >= self.watermark), default=self.watermark)
        elif self._watermarks:
            status = WatermarkStatus.IDLE
            watermark = max(self._watermarks.values())
        else:
            status = self.status
            watermark = END_OF_TIME
        changes: list[Watermark | WatermarkStatus] = []
        if status is not self.status and status is WatermarkStatus.ACTIVE:
            changes.append(status)
        if watermark > self.watermark:
            self.watermark = watermark
            changes.append(Watermark(watermark))
        if status is not self.status and status is WatermarkStatus.IDLE:
            changes.append(status)
        self.status = status
        return changes
