"""Channels without rows, which hold the watermark back until they are idle."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from tests.framework.local.functions import COUNTS, events, minute

from keyedstate.local import ResultStream, keyed
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.time import EventTime

START = 1_700_000_000_000
HOUR = 3_600_000
BY_MINUTE = EventTime("ts", delay="0 s", idle="1 minute")


class Lateness(KeyedProcessFunction):
    """Yields for each row whether the watermark has passed it."""

    def process(self, row, ctx):
        yield ctx.key, int(ctx.timestamp <= ctx.watermark)


LATENESS = Lateness()


class Clock:
    """Milliseconds that a test moves."""

    now = START

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the run."""
    made = Clock()
    for module in ("run.job", "parallel.operator"):
        monkeypatch.setattr(f"keyedstate.local.{module}.system_clock", made)
    return made


class Scripted:
    """Channels of tables, and of conditions: until one returns True, the channel has no rows.

    Attributes
    ----------
    left : list of list
        What each channel has not yet returned.
    """

    def __init__(self, *channels: Sequence[pa.Table | Callable[[], bool]]) -> None:
        self.left = [list(entries) for entries in channels]
        self.schema = self.left[0][0].schema

    def channels(self):
        return [_Channel(str(number), left, self.schema) for number, left in enumerate(self.left)]


class _Channel:
    def __init__(self, name, left, schema):
        self.name = name
        self._left = left
        self._schema = schema

    def read(self):
        if not self._left:
            return None
        first = self._left[0]
        if not callable(first):
            return self._left.pop(0).to_batches()[0]
        if first():
            del self._left[0]
        return pa.RecordBatch.from_pylist([], schema=self._schema)

    def offset(self):
        return None


def at(minute_: int) -> pa.Table:
    """Return one row."""
    return events("a", [minute_])


@pytest.fixture
def late_rows(config: dict[str, object]) -> Callable[..., ResultStream]:
    """Runs a function over a source; it yields 1 for late rows."""

    def run(source, parallelism, function=LATENESS):
        # A checkpoint that begins waits for the task.
        options = {**config, "parallelism": parallelism, "checkpoint.interval": "1 hour"}
        stream = keyed(source, "user", uid="late", config=options, event_time=BY_MINUTE)
        return stream.process(function, COUNTS)

    return run


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_program_that_pauses_between_results_makes_no_channel_idle(clock, late_rows, parallelism):
    """WM-02: the run has read no channel meanwhile."""

    def has_paused():
        return clock.now > START

    late = []
    for row in late_rows(
        Scripted([at(0), has_paused, at(1), at(2), at(3)], [at(1000), has_paused]), parallelism
    ):
        late.append(row.n)
        clock.now += HOUR
    assert late == [0] * 5


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_source_that_blocks_makes_no_channel_idle(clock, late_rows, parallelism):
    """WM-02."""

    def blocks():
        clock.now += HOUR
        return True

    rows = late_rows(
        Scripted([at(0), at(1), at(2), at(3)], [at(1000), blocks, blocks]), parallelism
    ).to_table()
    assert rows["n"].to_pylist() == [0] * 5


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize(("turns", "is_late"), [(9, 0), (13, 1)])
def test_a_channel_without_rows_for_ten_turns_and_the_time_is_idle(
    clock, late_rows, turns, is_late, parallelism
):
    """WM-02, WM-03."""
    silent = iter(range(turns))

    def hour_passes():
        clock.now += HOUR
        return next(silent) == turns - 1

    rows = late_rows(Scripted([at(0), hour_passes, at(1)], [at(1000)]), parallelism).to_table()
    assert sum(rows["n"].to_pylist()) == is_late


class Waiting(Lateness):
    """Waits at its first row."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def process(self, row, ctx):
        (self._folder / "waits").touch()
        while not (self._folder / "continues").exists():
            time.sleep(0.01)
        yield from super().process(row, ctx)


def test_a_channel_whose_rows_wait_for_room_is_not_idle(tmp_path, clock, late_rows):
    """WM-02: its next rows are not late."""
    seen = 0

    def hours_pass():
        nonlocal seen
        if clock.now == START + 20 * HOUR:
            # The watermark at this time was sent.
            (tmp_path / "continues").touch()
            return True
        if len(source.left[0]) == seen and (tmp_path / "waits").exists():
            # The channel was not read in this turn of the run, because its task waits.
            clock.now += HOUR
        seen = len(source.left[0])
        return False

    large = [
        pa.table({"user": ["a"], "ts": [minute(number)], "text": ["x" * 500_000]}) for number in range(20)
    ]
    ahead = pa.table({"user": ["a"], "ts": [minute(1000)], "text": [""]})
    source = Scripted(large, [ahead], [hours_pass])
    rows = late_rows(source, 2, Waiting(tmp_path)).to_table()
    assert rows["n"].to_pylist() == [0] * 21
