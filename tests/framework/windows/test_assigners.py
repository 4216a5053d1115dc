"""Which windows a row belongs to, held against the definition of each kind."""

from __future__ import annotations

import datetime as dt
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyedstate.errors import InvalidDurationError, InvalidWindowError, MissingTimestampError
from keyedstate.types import GLOBAL_WINDOW
from keyedstate.windows import (
    Count,
    CountEvictor,
    CountTrigger,
    EndOfStreamTrigger,
    EventTimeTrigger,
    Global,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Session,
    Sliding,
    TimeWindow,
    Tumbling,
    WindowAssigner,
    WindowStagger,
)

HOUR = 3_600_000
TIMES = st.integers(-(10**14), 10**14)
SIZES = st.integers(1, 10**9)


@dataclass
class Now:
    """What an assigner receives, by hand."""

    current_processing_time: int = 0
    key_group: int = 0
    first_processing_time: int = 0


def windows(assigner: WindowAssigner[Any], time: int | None, row: object = None, **now: int) -> list[Any]:
    return list(assigner.assign_windows(row, time, Now(**now)))


@given(TIMES, SIZES, st.data())
def test_a_tumbling_window_holds_the_time_and_begins_at_a_multiple_of_the_size(
    time: int, size: int, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(-size + 1, size - 1))
    [window] = windows(Tumbling.of(size, offset=offset), time)
    assert window.start <= time <= window.max_timestamp < window.end == window.start + size
    assert (window.start - offset) % size == 0


@given(TIMES, st.integers(1, 1000), st.integers(1, 1000), st.data())
def test_sliding_windows_are_all_those_that_hold_the_time_the_newest_first(
    time: int, size: int, slide: int, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(-slide + 1, slide - 1))
    found = windows(Sliding.of(size, slide, offset=offset), time)
    expected = [
        TimeWindow(start, start + size)
        for start in range(time, time - size, -1)
        if (start - offset) % slide == 0
    ]
    assert found == expected


def test_the_windows_of_a_size_and_of_a_slide_as_long_are_the_same() -> None:
    assert windows(Sliding.of("1 h", "1 h"), HOUR) == windows(Tumbling.of("1 h"), HOUR)
    assert windows(Tumbling.of("1 h"), HOUR) == [TimeWindow(HOUR, 2 * HOUR)]


def test_days_of_another_time_zone_begin_at_its_midnight() -> None:
    days = Tumbling.of("1 day", offset=dt.timedelta(hours=-8))
    assert windows(days, 0) == [TimeWindow(-8 * HOUR, 16 * HOUR)]


def test_processing_time_windows_are_assigned_by_the_clock() -> None:
    assert windows(Tumbling.of(10, processing_time=True), None, current_processing_time=25) == [(20, 30)]
    assert windows(Sliding.of(10, 5, processing_time=True), 1, current_processing_time=25) == [
        (25, 35),
        (20, 30),
    ]
    assert windows(Session.with_gap(10, processing_time=True), 1, current_processing_time=25) == [(25, 35)]


def test_windows_end_where_time_ends() -> None:
    last = 2**63 - 1
    assert windows(Tumbling.of(1000), last - 1)[0].end == last
    assert windows(Session.with_gap("1 d"), last - 5) == [(last - 5, last)]
    assert windows(Tumbling.of(1000), -(2**63))[0].start == -(2**63)


def test_a_session_begins_with_the_row_and_lasts_for_its_gap() -> None:
    assert windows(Session.with_gap("30 min"), 7) == [(7, 7 + HOUR // 2)]
    dynamic = Session.with_dynamic_gap(lambda row: row)
    assert windows(dynamic, 7, row="1 h") == [(7, 7 + HOUR)]
    assert windows(dynamic, 7, row=5) == [(7, 12)]
    assert (Session.with_gap(5).gap, dynamic.gap) == (5, None)


@pytest.mark.parametrize("gap", [0, -1, None, "soon"])
def test_a_dynamic_gap_that_is_none_is_refused(gap: object) -> None:
    with pytest.raises(InvalidWindowError, match="at least one millisecond") as refused:
        windows(Session.with_dynamic_gap(lambda row: row), 7, row=gap)
    assert repr(gap) in str(refused.value)


def test_the_global_window_takes_rows_with_and_without_a_time() -> None:
    assert windows(Global.of(), None) == windows(Global.of(), 5) == [GLOBAL_WINDOW]
    assert pickle.loads(pickle.dumps(GLOBAL_WINDOW)) is GLOBAL_WINDOW
    assert isinstance(Global.of().default_trigger(), NeverTrigger)
    assert isinstance(Global.at_end_of_stream().default_trigger(), EndOfStreamTrigger)


def test_count_windows_are_the_global_window_with_a_trigger_and_an_evictor() -> None:
    assert windows(Count.of(3), None) == [GLOBAL_WINDOW]
    assert isinstance(Count.of(3).default_trigger(), PurgingTrigger)
    assert Count.of(3).default_evictor() is None
    assert isinstance(Count.of(3, 2).default_trigger(), CountTrigger)
    assert isinstance(Count.of(3, 2).default_evictor(), CountEvictor)


def test_time_windows_fire_at_their_end_on_their_own_time_line() -> None:
    assert isinstance(Tumbling.of(1).default_trigger(), EventTimeTrigger)
    assert isinstance(Session.with_gap(1, processing_time=True).default_trigger(), ProcessingTimeTrigger)


@pytest.mark.parametrize("assigner", [Tumbling.of(1), Sliding.of(2, 1), Session.with_gap(1)])
def test_a_row_without_event_time_is_refused(assigner: WindowAssigner[Any]) -> None:
    """WIN-26."""
    with pytest.raises(MissingTimestampError, match="missing='drop'"):
        windows(assigner, None)


@pytest.mark.parametrize(
    ("make", "recorded"),
    [
        (lambda: Tumbling.of(0), "the size is 0"),
        (lambda: Tumbling.of("-1 h"), "the size is '-1 h'"),
        (lambda: Tumbling.of(-5), "the size is -5"),
        (lambda: Tumbling.of("1 h", offset="1 h"), "the offset '1 h' is as large as the size '1 h'"),
        (lambda: Tumbling.of(10, offset=-10), "the offset -10"),
        (lambda: Tumbling.of(10, stagger="natural"), "its stagger is 'natural'"),
        (lambda: Tumbling.of(10, stagger=WindowStagger.NATURAL), "processing_time=True"),
        (lambda: Sliding.of(0, 1), "the size is 0"),
        (lambda: Sliding.of(10, 0), "the slide is 0"),
        (lambda: Sliding.of(10, 5, offset=5), "the offset 5 is as large as the slide 5"),
        (lambda: Sliding.of(10, 5, offset=-5), "the offset -5"),
        (lambda: Session.with_gap(0), "the gap is 0"),
        (lambda: Session.with_gap("1"), "no duration"),
        (lambda: Session.with_dynamic_gap("1 h"), "give a function|Give a function"),
        (lambda: Count.of(0), "the size is 0"),
        (lambda: Count.of(), "the size is None"),
        (lambda: Count.of(2.0), "the size is 2.0"),
        (lambda: Count.of(True), "the size is True"),
        (lambda: Count.of(2, 0), "the slide is 0"),
    ],
)
def test_what_no_window_can_have_is_refused_when_it_is_declared(make: Any, recorded: str) -> None:
    """WIN-26."""
    with pytest.raises((InvalidWindowError, InvalidDurationError), match=recorded):
        make()


def test_staggered_windows_are_shifted_by_less_than_their_size() -> None:
    """WIN-26: aligned by 0, at random below the size, naturally by the first time of the key."""

    def shift(stagger: WindowStagger, **now: int) -> int:
        tumbling = Tumbling.of(1000, stagger=stagger, processing_time=True)
        [window] = windows(tumbling, None, current_processing_time=7777, **now)
        assert window.start <= 7777 < window.end
        return int(window.start % 1000)

    assert shift(WindowStagger.ALIGNED, key_group=5, first_processing_time=3) == 0
    assert shift(WindowStagger.NATURAL, first_processing_time=123_456) == 456
    shifts = [shift(WindowStagger.RANDOM, key_group=group) for group in range(128)]
    assert len(set(shifts)) == 128 and set(range(0, 1000, 100)) <= {each // 100 * 100 for each in shifts}
    assert shifts == [shift(WindowStagger.RANDOM, key_group=group) for group in range(128)]
