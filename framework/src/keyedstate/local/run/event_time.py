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
#: Turns of the run in which a channel has no rows before it can be idle.
_LEAST_TURNS = 10


class OperatorTime:
    """The largest event times of the channels of an operator's inputs, and the watermark that follows.

    A channel that has ended holds nothing back.

    A channel is idle when it has had no rows for a while in which it was read again and again. While a
    function or a source takes long, or the program that reads the results does something else, rows may wait
    in all channels.

    There are event times of each input, or none at all. `now` is processing time, as of `count_turn`.
    """

    def __init__(self, event_times: EventTimes, watermark: int | None, now: int) -> None:
        self._event_times = event_times
        self._watermark = BEFORE_TIME if watermark is None else watermark
        self._turned = now
        #: The largest event time by number of the input, channel and input of the row.
        self._largest: dict[tuple[int, str, str], int] = {}
        #: The milliseconds without rows, by the same.
        self._silent_ms: dict[tuple[int, str, str], int] = {}
        self._ended: set[tuple[int, str]] = set()
        #: By channel the largest event times of rows to which more belong.
        self._unfinished: dict[tuple[int, str], dict[str, int]] = {}

    def add_channel(self, number: int, channel: str, stored: Mapping[str, int]) -> None:
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
            self._largest[number, channel, name] = max(time, least)
            self._silent_ms[number, channel, name] = 0

    def saw(self, number: int, channel: str, batch: pa.RecordBatch, *, more_follow: bool = False) -> None:
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
            place = number, channel, name
            self._largest[place] = max(time, self._largest.get(place, time))
            self._silent_ms[place] = 0

    def end_channel(self, number: int, channel: str) -> None:
        """Note that a channel has no more rows."""
        self._ended.add((number, channel))

    def count_turn(self, now: int) -> None:
        """Count the time since the last call for the channels that have had no rows in it.

        A run calls it in each turn, in which it reads all channels once.
        """
        # The clock of a machine may go back.
        elapsed, self._turned = max(now - self._turned, 0), now
        for place, silent_ms in self._silent_ms.items():
            idle_ms = self._event_times[place[0]].idle_ms
            if idle_ms is not None:
                self._silent_ms[place] = silent_ms + min(elapsed, -(-idle_ms // _LEAST_TURNS))

    def times_of(self, number: int, channel: str) -> dict[str, int]:
        """Return the event times of a channel for its position."""
        return {name: self._largest[number, channel, name] for name in self._inputs_of(number, channel)}

    def of_channel(self, number: int, channel: str) -> int | None:
        """Return the watermark of one channel; None where it is idle."""
        event_time = self._event_times[number]
        idle_ms = event_time.idle_ms
        return min(
            (
                bounded_out_of_orderness(self._largest[number, channel, name], event_time.delay_ms or 0)
                for name in self._inputs_of(number, channel)
                if idle_ms is None or self._silent_ms[number, channel, name] <= idle_ms
            ),
            default=None,
        )

    def paused(self, number: int, channel: str) -> None:
        """Note that a channel is not read: it is not idle."""
        for name in self._inputs_of(number, channel):
            self._silent_ms[number, channel, name] = 0

    def _inputs_of(self, number: int, channel: str) -> list[str]:
        return [name for *place, name in self._largest if place == [number, channel]]

    def watermark(self) -> int | None:
        """Return the watermark; None without event time, and before the first row."""
        if not self._event_times:
            return None
        names = {"/".join(map(str, place)): place for place in self._largest}
        self._watermark = watermark_of_inputs(
            {name: InputTime(self._largest[place], -self._silent_ms[place]) for name, place in names.items()},
            {name: self._event_times[number].delay_ms or 0 for name, (number, _, _) in names.items()},
            {
                # No time is so short: what has ended is idle at once.
                name: -1 if (number, channel) in self._ended else self._event_times[number].idle_ms
                for name, (number, channel, _) in names.items()
            },
            0,
            self._watermark,
        )
        return None if self._watermark == BEFORE_TIME else self._watermark
