"""The watermark of an operator whose inputs have channels."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from keyedstate.epoch.event_time import EventTimes
from keyedstate.runtime.event_time import event_time_array, largest_by_input
from keyedstate.state.clock import BEFORE_TIME
from keyedstate.time import InputTime, bounded_out_of_orderness, watermark_of_inputs

#: The input of a row where `EventTime.inputs` distinguishes none.
_ALL = ""


class OperatorTime:
    """The largest event times of the channels of an operator's inputs, and the watermark that follows.

    A channel that has ended holds nothing back.

    Parameters
    ----------
    event_times : tuple of EventTime
        Of each input; empty without event time.
    watermark : int or None
        The watermark so far.
    """

    def __init__(self, event_times: EventTimes, watermark: int | None) -> None:
        self._event_times = event_times
        self._watermark = BEFORE_TIME if watermark is None else watermark
        #: By number of the input, channel and input of the row, as `InputTime`.
        self._seen: dict[tuple[int, str, str], InputTime] = {}
        self._ended: set[tuple[int, str]] = set()
        #: By channel the largest event times of rows to which more belong.
        self._unfinished: dict[tuple[int, str], dict[str, int]] = {}

    def add_channel(self, number: int, channel: str, stored: Mapping[str, int], now: int) -> None:
        """Add a channel, with the event times of its position; it was not idle while nothing ran.

        It holds back a watermark that was restored, also where it had ended and is behind: it may have new
        rows, which other channels would leave behind.
        """
        if not self._event_times:
            return
        least = BEFORE_TIME
        if self._watermark != BEFORE_TIME:
            # The event time from which this watermark follows.
            least = self._watermark + (self._event_times[number].delay_ms or 0) + 1
        times = stored or ({} if self._event_times[number].inputs else {_ALL: BEFORE_TIME})
        for name, time in times.items():
            self._seen[number, channel, name] = InputTime(max(time, least), now)

    def saw(
        self, number: int, channel: str, batch: pa.RecordBatch, now: int, *, more_follow: bool = False
    ) -> None:
        """Update the times of a channel by its rows; where more belong to them, together with those."""
        if not self._event_times:
            return
        event_time = self._event_times[number]
        times, missing = event_time_array(batch.column(event_time.column))
        column = pa.array(times, mask=missing)
        if event_time.inputs is not None:
            largest = largest_by_input(batch.column(event_time.inputs), column)
        else:
            known = times if missing is None else times[~missing]
            largest = {_ALL: int(known.max())} if len(known) else {}
        unfinished = self._unfinished.setdefault((number, channel), {})
        for name, time in largest.items():
            unfinished[name] = max(time, unfinished.get(name, time))
        if more_follow:
            return
        for name, time in self._unfinished.pop((number, channel)).items():
            before = self._seen.get((number, channel, name))
            latest = time if before is None else max(time, before.largest_event_time)
            self._seen[number, channel, name] = InputTime(latest, now)

    def end_channel(self, number: int, channel: str) -> None:
        """Note that a channel has no more rows."""
        self._ended.add((number, channel))

    def times_of(self, number: int, channel: str) -> dict[str, int]:
        """Return the event times of a channel for its position."""
        return {
            name: seen.largest_event_time
            for (of_number, of_channel, name), seen in self._seen.items()
            if (of_number, of_channel) == (number, channel)
        }

    def of_channel(self, number: int, channel: str, now: int) -> int | None:
        """Return the watermark of one channel; None where it is idle."""
        event_time = self._event_times[number]
        idle_ms = event_time.idle_ms
        return min(
            (
                bounded_out_of_orderness(seen.largest_event_time, event_time.delay_ms or 0)
                for place, seen in self._seen.items()
                if place[:2] == (number, channel) and (idle_ms is None or now - seen.last_seen <= idle_ms)
            ),
            default=None,
        )

    def paused(self, number: int, channel: str, now: int) -> None:
        """Note that a channel is not read: it is not idle."""
        for place, seen in self._seen.items():
            if place[:2] == (number, channel):
                self._seen[place] = InputTime(seen.largest_event_time, now)

    def watermark(self, now: int) -> int | None:
        """Return the watermark at a processing time; None without event time, and before the first row."""
        if not self._event_times:
            return None
        names = {"/".join(map(str, place)): place for place in self._seen}
        self._watermark = watermark_of_inputs(
            {name: self._seen[place] for name, place in names.items()},
            {name: self._event_times[number].delay_ms or 0 for name, (number, _, _) in names.items()},
            {
                # No time is so short: what has ended is idle at once.
                name: -1 if (number, channel) in self._ended else self._event_times[number].idle_ms
                for name, (number, channel, _) in names.items()
            },
            now,
            self._watermark,
        )
        return None if self._watermark == BEFORE_TIME else self._watermark
