"""Channels of a source that are too far ahead of the slowest one in event time wait for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pyarrow as pa
import pytest
from tests.framework.local.functions import COUNTS, Count, events

from keyedstate.local import keyed
from keyedstate.time import EventTime

DRIFT = 30


class Channels:
    """Two channels of one-row batches; it notes of each read which minute each channel has come to."""

    schema = events("a").schema

    def __init__(self, *minutes: Sequence[int | None]) -> None:
        self._minutes = minutes
        self.reached = [-1] * len(minutes)
        #: How far the first channel was ahead of the second one when it was read.
        self.ahead: list[int] = []
        self.empty_reads_before_second_row = 0

    def channels(self):
        return [_Channel(self, place, list(minutes)) for place, minutes in enumerate(self._minutes)]


class _Channel:
    def __init__(self, source: Channels, place: int, minutes: list[int | None]) -> None:
        self.name = str(place)
        self._source = source
        self._place = place
        self._minutes = minutes
        self._next = 0

    def read(self):
        reached = self._source.reached
        if self._place == 0 and max(reached) >= 0 and reached[1] < 1_000_000:
            self._source.ahead.append(reached[0] - reached[1])
        if self._next == len(self._minutes):
            reached[self._place] = 1_000_000
            return None
        minute = self._minutes[self._next]
        self._next += 1
        if minute is None:
            self._source.empty_reads_before_second_row += reached[0] <= 0
            return pa.RecordBatch.from_pylist([], schema=Channels.schema)
        reached[self._place] = minute
        return events("a", [minute]).to_batches()[0]

    def offset(self):
        return self._next

    def seek(self, offset):
        self._next = offset


def read(
    parallelism: int, drift: str, *minutes: Sequence[int | None], idle: str | None = None
) -> tuple[int, Channels]:
    """Return how many rows were counted, and the source."""
    source = Channels(*minutes)
    rows = keyed(
        source,
        "user",
        config={"parallelism": parallelism, "watermark.max-drift": drift},
        event_time=EventTime("ts", delay=0, idle=idle),
    )
    return rows.process(Count(), COUNTS).to_table().num_rows, source


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_channel_that_is_too_far_ahead_is_not_read_until_the_others_have_caught_up(parallelism: int):
    """WM-04."""
    fast, slow = range(0, 500, 10), range(100)
    rows, source = read(parallelism, f"{DRIFT} minutes", fast, slow)
    assert rows == 150
    assert DRIFT - 10 < max(source.ahead) <= DRIFT
    rows, unlimited = read(parallelism, "0", fast, slow)
    assert rows == 150
    assert max(unlimited.ahead) > 300


def test_a_channel_that_has_ended_does_not_hold_others_back():
    """WM-04."""
    rows, _ = read(1, f"{DRIFT} minutes", range(0, 500, 10), range(3))
    assert rows == 53


def test_a_channel_waits_for_one_that_has_had_no_rows_until_that_is_idle(monkeypatch: pytest.MonkeyPatch):
    """WM-04."""
    fast, empty = range(0, 500, 10), [None] * 500
    now = itertools.count(1_700_000_000_000)
    # The clock of the run moves a millisecond whenever the run looks at it.
    monkeypatch.setattr("keyedstate.local.run.job.system_clock", lambda: next(now))
    rows, source = read(1, f"{DRIFT} minutes", fast, empty, idle="50 ms")
    assert rows == 50
    empty_reads = source.empty_reads_before_second_row
    assert empty_reads > 2, "it waited"
    assert empty_reads < 400, "and then continued, before the other channel ended"
