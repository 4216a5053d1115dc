"""The window operator as Flink's ``WindowOperatorTest`` shows it: whole runs, with restarts in the middle."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from keyedstate import types
from keyedstate.state import AggregateFunction, ValueState
from keyedstate.state.clock import END_OF_TIME
from keyedstate.types import GLOBAL_WINDOW
from keyedstate.windows import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    Count,
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    DeltaTrigger,
    EventTimeTrigger,
    Global,
    ProcessingTimeoutTrigger,
    PurgingTrigger,
    Session,
    Sliding,
    TimeEvictor,
    Tumbling,
)
from keyedstate.windows.declaration.contents import AggregatedRows, AllRows, ReducedRows
from keyedstate.windows.declaration.function import ProcessWindowFunction

Jobs = Callable[..., Any]


def added(one: Any, other: Any) -> Any:
    return one._replace(value=one.value + other.value)


class Mean(AggregateFunction[Any, Any, Any]):
    """The sum in a form whose parts are distinct: (sum, rows)."""

    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value.value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, first: Any, second: Any) -> Any:
        return tuple(map(operator.add, first, second))


PAIR = types.tuple_of(types.INT64, types.INT64)


class Pairs(ProcessWindowFunction):
    def process(self, elements: Any, ctx: Any) -> Any:
        yield ctx.key, elements[0], ctx.window.max_timestamp


each_contents = pytest.mark.parametrize(
    ("contents", "function"),
    [(AllRows(), None), (ReducedRows(added), None), (AggregatedRows(Mean(), PAIR), Pairs())],
    ids=["list", "reduce", "aggregate"],
)
INPUT = [
    *(("key2", time) for time in (3999, 3000)),
    *(("key1", time) for time in (20, 0, 999)),
    *(("key2", time) for time in (1998, 1999, 1000)),
]


@each_contents
def test_sliding_windows(jobs: Jobs, contents: Any, function: Any) -> None:
    """WIN-01."""
    job = jobs(Sliding.of("3 s", "1 s"), contents=contents, function=function)
    job.rows(*INPUT)
    assert job.watermark(999) == [("key1", 3, 999)]
    assert job.watermark(1999) == [("key1", 3, 1999), ("key2", 3, 1999)]
    assert job.watermark(2999) == [("key1", 3, 2999), ("key2", 3, 2999)]
    job.restart()
    assert job.watermark(3999) == [("key2", 5, 3999)]
    assert job.watermark(4999) == [("key2", 2, 4999)]
    assert job.watermark(5999) == [("key2", 2, 5999)]
    assert job.watermark(6999) == job.watermark(END_OF_TIME) == []
    assert job.entries == {} and job.timers == 0


@each_contents
def test_tumbling_windows(jobs: Jobs, contents: Any, function: Any) -> None:
    """WIN-02."""
    job = jobs(Tumbling.of("3 s"), contents=contents, function=function)
    job.rows(*INPUT)
    assert job.watermark(999) == job.watermark(1999) == []
    job.restart()
    assert job.watermark(2999) == [("key1", 3, 2999), ("key2", 3, 2999)]
    assert job.watermark(3999) == job.watermark(4999) == []
    assert job.watermark(5999) == [("key2", 2, 5999)]
    assert job.watermark(7999) == [] and job.entries == {} and job.timers == 0


@each_contents
def test_session_windows_grow_and_merge(jobs: Jobs, contents: Any, function: Any) -> None:
    job = jobs(Session.with_gap("3 s"), contents=contents, function=function)
    job.rows(("key2", 0), ("key2", 2500), ("key1", 10), ("key1", 1000))
    job.restart()
    # Two sessions until a row between them makes one.
    job.rows(("key2", 9000), ("key2", 5600), ("key2", 11_500), ("key2", 8000))
    assert job.watermark(3999) == [("key1", 2, 3999)]
    job.restart()
    assert job.watermark(14_498) == [("key2", 2, 5499)]
    assert job.watermark(14_499) == [("key2", 4, 14_499)]
    assert job.entries == {} and job.timers == 0


def test_sessions_whose_gap_comes_with_each_row(jobs: Jobs) -> None:
    job = jobs(Session.with_dynamic_gap(lambda row: row.value))
    job.row("key1", 0, value=10)
    job.row("key1", 5, value=100)
    job.row("key1", 104, value=1)
    assert job.watermark(104) == [("key1", 111, 104)]


def test_a_row_that_is_not_late_joins_a_session_that_exists(
    jobs: Jobs,
) -> None:
    job = jobs(Session.with_gap(100))
    job.rows(("key1", 1000))
    assert job.watermark(1050) == []
    # On its own it would be late; together with the other one it is not.
    job.rows(("key1", 920))
    assert job.late == []
    assert job.watermark(1099) == [("key1", 2, 1099)]


def test_count_windows_across_a_restart(jobs: Jobs) -> None:
    """WIN-08."""
    job = jobs(Count.of(4))
    job.rows(("key2", 1), ("key2", 2), ("key1", 1), ("key1", 1), ("key2", 3), ("key1", 4))
    job.restart()
    end = GLOBAL_WINDOW.max_timestamp
    assert job.row("key2") == [("key2", 4, end)]
    assert job.row("key1") == [("key1", 4, end)]
    job.rows(("key2", 1), ("key2", 2), ("key2", 3))
    assert job.row("key2") == [("key2", 4, end)]
    assert job.entries == {} and job.timers == 0


def test_sliding_count_windows_have_the_last_rows(jobs: Jobs) -> None:
    job = jobs(Count.of(3, 2))
    given = [job.row("key1", value=10**number) for number in range(6)]
    end = GLOBAL_WINDOW.max_timestamp
    assert given == [[], [("key1", 11, end)], [], [("key1", 1110, end)], [], [("key1", 111_000, end)]]


def test_the_global_window_fires_at_the_end_of_the_stream(jobs: Jobs) -> None:
    """WIN-09."""
    job = jobs(Global.at_end_of_stream())
    job.rows(*INPUT)
    job.restart()
    assert job.watermark(10**12) == []
    assert job.watermark(END_OF_TIME) == [("key1", 3, END_OF_TIME), ("key2", 5, END_OF_TIME)]
    assert job.entries == {} and job.timers == 0


def test_a_late_row_is_counted_while_lateness_allows_and_goes_aside_after_that(jobs: Jobs) -> None:
    """WIN-14."""
    job = jobs(Tumbling.of("2 s"), trigger=PurgingTrigger.of(EventTimeTrigger()), lateness=500)
    job.rows(("key2", 500))
    assert job.watermark(1500) == []
    job.rows(("key2", 1300))
    assert job.watermark(2300) == [("key2", 2, 1999)]
    assert job.row("key2", 1997) == [("key2", 1, 1999)]
    assert job.watermark(6000) == []
    assert job.row("key2", 1998) == [] and job.late == [("key2", 1)]
    assert job.watermark(7000) == [] and job.entries == {} and job.timers == 0


def test_a_late_firing_has_all_rows_of_the_window(jobs: Jobs) -> None:
    job = jobs(Tumbling.of("2 s"), lateness=500, contents=ReducedRows(added))
    job.rows(("key1", 10))
    assert job.watermark(1999) == [("key1", 1, 1999)]
    assert job.row("key1", 20) == [("key1", 2, 1999)]
    job.restart()
    assert job.row("key1", 30) == [("key1", 3, 1999)]
    assert job.watermark(2499) == [] and job.entries == {} and job.timers == 0


@pytest.mark.parametrize("restart", [False, True])
def test_the_time_at_which_a_window_goes_does_not_overflow(jobs: Jobs, restart: bool) -> None:
    """WIN-15."""
    job = jobs(Tumbling.of(1000), lateness=2000)
    time = END_OF_TIME - 1750
    end = Tumbling.of(1000).assign_windows(None, time, None)[0].max_timestamp  # type: ignore[arg-type]
    job.rows(("key2", time))
    if restart:
        job.restart()
    assert job.watermark(end - 1) == []
    assert job.watermark(end) == [("key2", 1, end)]
    assert job.watermark(END_OF_TIME) == []
    assert job.late == []


def test_a_row_after_its_window_goes_aside(jobs: Jobs) -> None:
    """WIN-16."""
    job = jobs(Tumbling.of("2 s"))
    job.rows(("key2", 1000))
    assert job.watermark(1985) == []
    job.rows(("key2", 1980))
    assert job.watermark(1999) == [("key2", 2, 1999)]
    assert job.row("key2", 1998) == [] and job.late == [("key2", 1)]
    job.rows(("key2", 2001))
    assert job.watermark(2999) == []
    assert job.watermark(3999) == [("key2", 1, 3999)]


def test_a_late_row_that_some_window_takes_does_not_go_aside(jobs: Jobs) -> None:
    job = jobs(Sliding.of("3 s", "1 s"))
    job.watermark(1999)
    job.rows(("key1", 1500))
    assert job.late == []
    # In no window of these at all, and not late.
    gaps = jobs(Sliding.of(10, 100))
    gaps.rows(("key1", 50))
    assert gaps.late == [] and gaps.entries == {}


RUNS = st.lists(
    st.tuples(st.sampled_from(["key1", "key2"]), st.lists(st.integers(0, 30), min_size=1, max_size=8))
    | st.integers(0, 40),
    max_size=8,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 8), st.integers(0, 4), RUNS)
@example(5, 3, 0, 0, [("key1", [3, 4, 5, 4, 3, 6, 5, 8, 3])])
@example(5, 3, 0, 0, [("key1", [21]), 22, ("key1", [22, 21, 23])])
def test_rows_of_a_key_one_after_another_are_each_in_their_own_windows(
    jobs: Jobs, size: int, slide: int, offset: int, lateness: int, runs: Any
) -> None:
    """WIN-01, WIN-02 against a plain dict: the rows are not in the order of their times."""
    windows = Sliding.of(size, slide, offset=offset % slide)
    job = jobs(windows, contents=ReducedRows(added), lateness=lateness)
    counts: dict[tuple[str, int], int] = {}
    watermark = -1
    for step in [*runs, 100]:
        fired: list[Any] = []
        if isinstance(step, int):
            before, watermark = watermark, max(watermark, step)
            expected = [(key, rows, end) for (key, end), rows in counts.items() if before < end <= watermark]
            counts = {one: rows for one, rows in counts.items() if one[1] + lateness > watermark}
            fired = job.watermark(watermark)
        else:
            key, times = step
            expected = []
            for time in times:
                ends = [begin + size - 1 for begin in range(offset % slide - 9 * slide, 40, slide)]
                for end in ends:
                    if end - size < time <= end and end + lateness > watermark:
                        counts[key, end] = counts.get((key, end), 0) + 1
                        if end <= watermark:
                            expected.append((key, counts[key, end], end))
                fired += job.row(key, time)
        assert sorted(fired) == sorted(expected)
    assert job.entries == {}


def test_late_rows_of_sessions_leave_nothing_behind(jobs: Jobs) -> None:
    job = jobs(Session.with_gap("3 s"), lateness=10)
    job.watermark(20_000)
    job.rows(("key1", 1000))
    assert job.late == [("key1", 1)] and job.entries == {} and job.timers == 0
    # A live session that the late row touches takes it.
    job.rows(("key1", 20_000), ("key1", 17_500))
    assert job.late == [("key1", 1)]
    assert job.watermark(22_999) == [("key1", 2, 22_999)]
    assert job.row("key1", 16_000) == [("key1", 3, 22_999)]


@pytest.mark.parametrize(
    "assigner", [Tumbling.of("2 s"), Session.with_gap("2 s")], ids=["tumbling", "session"]
)
@each_contents
def test_a_window_that_was_purged_goes_without_a_word(
    jobs: Jobs, assigner: Any, contents: Any, function: Any
) -> None:
    """WIN-21."""
    job = jobs(
        assigner,
        trigger=PurgingTrigger.of(EventTimeTrigger()),
        lateness=100,
        contents=contents,
        function=function,
    )
    job.rows(("key2", 1000))
    end = 2999 if isinstance(assigner, Session) else 1999
    assert job.watermark(end) == [("key2", 1, end)]
    job.restart()
    assert job.timers == 1
    assert job.watermark(end + 99) == [] and job.timers == 1
    assert job.watermark(end + 100) == []
    assert job.entries == {} and job.timers == 0


class Silent(ProcessWindowFunction):
    def process(self, elements: Any, ctx: Any) -> None:
        return None


def test_a_function_that_gives_nothing_leaves_nothing(jobs: Jobs) -> None:
    """WIN-21."""
    job = jobs(Session.with_gap(10), function=Silent())
    job.rows(("key1", 0), ("key2", 5))
    assert job.watermark(100) == [] and job.entries == {} and job.timers == 0


@pytest.mark.parametrize("session", [False, True], ids=["tumbling", "session"])
def test_windows_by_the_clock(jobs: Jobs, session: bool) -> None:
    kind = Session.with_gap if session else Tumbling.of
    job = jobs(kind("3 s", processing_time=True))
    job.time(3)
    job.rows(("key1", 1), ("key2", 2))
    job.restart()
    first = 3002 if session else 2999
    assert job.time(first - 1) == []
    assert job.time(first) == [("key1", 1, first), ("key2", 1, first)]
    assert job.watermark(10**9) == []
    job.time(3007)
    job.rows(("key1", 3))
    second = 6006 if session else 5999
    assert job.time(second - 1) == [] and job.time(second) == [("key1", 1, second)]
    assert job.late == [] and job.entries == {} and job.timers == 0


def test_triggers_keep_their_state_across_a_restart(jobs: Jobs) -> None:
    """WIN-24."""
    job = jobs(
        Tumbling.of("1 h"), trigger=ContinuousEventTimeTrigger.of("10 min"), contents=ReducedRows(added)
    )
    minute = 60_000
    job.rows(("key1", 5 * minute), ("key1", 15 * minute))
    job.restart()
    assert job.watermark(10 * minute) == [("key1", 2, 60 * minute - 1)]
    assert job.watermark(29 * minute) == [("key1", 2, 60 * minute - 1)]
    job.restart()
    assert len(job.watermark(60 * minute)) == 4
    assert job.entries == {} and job.timers == 0


def test_merged_sessions_fire_by_the_count_of_all_their_rows(jobs: Jobs) -> None:
    """WIN-24."""
    job = jobs(Session.with_gap(10), trigger=CountTrigger.of(4))
    job.rows(("key1", 0), ("key1", 15), ("key1", 16))
    job.restart()
    assert job.row("key1", 8) == [("key1", 4, 25)]
    assert job.watermark(25) == [] and job.entries == {} and job.timers == 0


def test_a_continuous_trigger_of_sessions_leaves_nothing_behind(jobs: Jobs) -> None:
    for trigger in (ContinuousEventTimeTrigger.of(7), ContinuousProcessingTimeTrigger.of(7)):
        job = jobs(Session.with_gap(10), trigger=trigger)
        job.rows(("key1", 0), ("key1", 15), ("key1", 8))
        job.watermark(100)
        job.time(100)
        assert job.entries == {} and job.timers == 0


def test_a_window_fires_early_at_a_timeout_and_again_at_its_end(jobs: Jobs) -> None:
    job = jobs(Tumbling.of(100), trigger=ProcessingTimeoutTrigger.of(EventTimeTrigger(), 30))
    job.rows(("key1", 5))
    assert job.time(30) == [("key1", 1, 99)]
    assert job.watermark(99) == [("key1", 1, 99)]
    assert job.entries == {} and job.timers == 0


def test_a_delta_trigger_compares_rows_with_the_last_that_fired(jobs: Jobs) -> None:
    job = jobs(Global.of(), trigger=DeltaTrigger.of(10, lambda last, row: row.value - last.value))
    assert [bool(job.row("key1", value=value)) for value in (1, 11, 12, 20, 23)] == [
        False,
        False,
        True,
        False,
        True,
    ]
    job.restart()
    assert job.row("key1", value=33) == [] and job.row("key1", value=34) != []


@pytest.mark.parametrize("evictor", [CountEvictor.of(2), TimeEvictor.of(15)])
def test_an_evictor_leaves_rows_out_of_what_fires_and_of_the_window(jobs: Jobs, evictor: Any) -> None:
    job = jobs(Global.of(), trigger=CountTrigger.of(1), evictor=evictor, contents=ReducedRows(added))
    sums = []
    for number in range(6):
        [(_, total, _)] = job.row("key1", number * 10, 10**number)
        sums.append(total)
        if number == 3:
            job.restart()
    assert sums == [1, 11, 110, 1100, 11_000, 110_000]


def test_an_evictor_may_leave_rows_out_after_the_function(jobs: Jobs) -> None:
    evictor = CountEvictor.of(2, do_evict_after=True)
    job = jobs(Global.of(), trigger=CountTrigger.of(4), evictor=evictor, contents=ReducedRows(added))
    fired = [row for number in range(4) for row in job.row("key1", 0, 10**number)]
    assert fired == [("key1", 1111, END_OF_TIME)]
    job.restart()
    fired = [row for number in range(4, 8) for row in job.row("key1", 0, 10**number)]
    assert fired == [("key1", 11_111_100, END_OF_TIME)]


def test_an_evictor_that_leaves_nothing_calls_no_function(jobs: Jobs) -> None:
    evictor = DeltaEvictor.of(0, lambda row, last: 0)
    job = jobs(Tumbling.of(10), evictor=evictor, contents=AggregatedRows(Mean(), PAIR), function=Pairs())
    job.rows(("key1", 5))
    assert job.watermark(9) == [] and job.entries == {} and job.timers == 0


class Remembering(ProcessWindowFunction):
    """Counts the firings of a window and those of the key."""

    fired_of_key = ValueState("fired-of-key", types.INT64, default=0)
    fired = ValueState("fired", types.INT64, default=0)

    def process(self, elements: Any, ctx: Any) -> Any:
        of_window = ctx.window_state(ValueState("fired-of-window", types.INT64, default=0))
        of_window.update(of_window.value() + 1)
        of_key = ctx.global_state(ValueState("fired-of-key", types.INT64, default=0))
        of_key.update(of_key.value() + 1)
        ctx.output("seen", ctx.window)
        yield ctx.key, of_window.value(), of_key.value()

    def clear(self, ctx: Any) -> None:
        ctx.window_state(ValueState("fired-of-window", types.INT64, default=0)).clear()


def test_a_function_has_state_of_the_window_and_of_the_key(jobs: Jobs) -> None:
    """WIN-22: per-window and global state; the first goes with the window, by the function's clear()."""
    job = jobs(Tumbling.of(100), lateness=50, function=Remembering())
    job.rows(("key1", 5), ("key1", 105))
    assert job.watermark(99) == [("key1", 1, 1)]
    assert job.row("key1", 6) == [("key1", 2, 2)]
    job.restart()
    assert job.watermark(199) == [("key1", 1, 3)]
    assert job.side == [("seen", (0, 100)), ("seen", (0, 100)), ("seen", (100, 200))]
    assert job.watermark(249) == []
    assert job.entries == {"fired-of-key": 1} and job.timers == 0
