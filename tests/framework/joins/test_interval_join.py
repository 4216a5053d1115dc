"""Interval joins: bounds, clean-up, late rows, side outputs, restored state; as Flink's operator has them."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyedstate import types
from keyedstate.errors import (
    InvalidDurationError,
    InvalidFunctionError,
    InvalidJoinError,
    SideOutputNameError,
    UserFunctionError,
)
from keyedstate.joins import LeftColumn, ProcessJoinFunction, interval_join
from keyedstate.state import ValueState
from keyedstate.testing import Harness, Input
from keyedstate.time import EventTime

LEFT = "k string, n long, at timestamp"
RIGHT = "at timestamp, k2 string, n long"
OUTPUT = "k string, left_n long, left_at timestamp, right_at timestamp, right_n long"


def at(ms):
    return (
        None
        if ms is None
        else dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(milliseconds=ms)
    )


def joining(function, backend, output=OUTPUT, **arguments):
    second = Input(RIGHT, "k2", EventTime("at", arguments.pop("delay2", None)))
    chosen = {
        "key": "k",
        "schema": LEFT,
        "event_time": EventTime("at", arguments.pop("delay", None)),
        "output": output,
        "backend": backend,
        "second": second,
    }
    return Harness(function, **{**chosen, **arguments})


def left(harness, *times, key="a"):
    return harness.process1_all([(key, time, at(time)) for time in times])


def right(harness, *times, key="a"):
    return harness.process2_all([(at(time), key, time) for time in times])


def pairs(rows):
    return [(row.left_n, row.right_n) for row in rows]


@pytest.mark.parametrize(
    ("exclusive", "expected"),
    [
        ({}, [-1, 0, 1, 2]),
        ({"lower_exclusive": True}, [0, 1, 2]),
        ({"upper_exclusive": True}, [-1, 0, 1]),
        ({"lower_exclusive": True, "upper_exclusive": True}, [0, 1]),
    ],
)
@pytest.mark.parametrize("first", ["left", "right"])
def test_rows_are_joined_whose_times_lie_between_the_bounds(backend_name, exclusive, expected, first):
    with joining(interval_join(-1, 2, **exclusive).join(), backend_name) as harness:
        if first == "left":
            assert left(harness, 0) == []
            made = right(harness, *range(-5, 6))
        else:
            assert right(harness, *range(5, -6, -1)) == []
            made = left(harness, 0)
        assert pairs(made) == [(0, time) for time in expected]
        assert made[0] == ("a", 0, at(0), at(expected[0]), expected[0])
        assert left(harness, 0, key="b") == [], "another key"


@pytest.mark.parametrize(
    ("lower", "upper", "until_left", "until_right"),
    [(-1, 2, 12, 11), (-5, -2, 10, 15), (2, 5, 15, 10), (0, 0, 10, 10)],
)
def test_a_buffer_lets_a_row_go_when_the_watermark_has_passed_what_it_could_be_joined_with(
    backend_name, lower, upper, until_left, until_right
):
    with joining(interval_join(lower, upper).join(), backend_name) as harness:
        left(harness, 10)
        right(harness, 10, key="b")
        for state, key, until in (("left-buffer", "a", until_left), ("right-buffer", "b", until_right)):
            snapshot = harness.snapshot()
            harness.advance_watermark(until - 1)
            assert harness.keys(state) == [key]
            harness.advance_watermark(until)
            assert harness.keys(state) == []
            if state == "left-buffer":
                with joining(interval_join(lower, upper).join(), backend_name, restore=snapshot) as other:
                    other.end_input()
                    assert other.num_entries() == 0
                harness.restore(snapshot)
        assert harness.num_entries("right-buffer") == 0


def test_rows_of_one_time_are_kept_and_go_together(backend_name):
    with joining(interval_join(0, 5).join(), backend_name) as harness:
        left(harness, 10, 10, 12, key=None)
        assert harness.num_entries() == 0, "a null key is equal to none"
        assert harness.rows_dropped == {"null key": 3}
        left(harness, 10, 10, 12)
        assert pairs(right(harness, 13, 13)) == [(10, 13), (10, 13), (12, 13)] * 2
        harness.advance_watermark(15)
        assert list(harness.state("left-buffer", "a").keys()) == [12]
        assert pairs(right(harness, 17)) == [(12, 17)]


@pytest.mark.parametrize("bounds", [(-20, 20), (-1, 1), (3, 5), (-5, -3)])
def test_other_bounds_after_a_restart_are_those_of_rows_that_came_before_it(one_backend, bounds):
    lower, upper = bounds
    with joining(interval_join(-5, 5).join(), one_backend) as harness:
        left(harness, *range(10, 20))
        snapshot = harness.snapshot()
    with joining(interval_join(lower, upper).join(), one_backend, restore=snapshot) as harness:
        left(harness, 15)
        harness.advance_watermark(15)
        expected = [(n, 16) for n in sorted([*range(10, 20), 15]) if n + lower <= 16 <= n + upper]
        assert pairs(right(harness, 16)) == expected
        harness.advance_watermark(18 + max(upper, 5))
        kept = [19] if 19 + max(upper, 0) > 18 + max(upper, 5) else []
        assert list(harness.state("left-buffer", "a").keys()) == kept
        harness.advance_watermark(100)
        assert harness.num_entries() == 0
    with joining(interval_join(lower, upper).join(), one_backend, restore=snapshot) as harness:
        harness.end_input()
        assert harness.num_entries() == 0


def test_late_rows_are_counted_and_dropped(backend_name):
    with joining(interval_join(-10, 10).join(), backend_name) as harness:
        right(harness, 100)
        harness.advance_watermark(95)
        assert left(harness, 94) == []
        assert pairs(left(harness, 95, 99)) == [(95, 100), (99, 100)], "in time, as in Flink"
        assert right(harness, 90) == []
        assert harness.rows_dropped == {"late": 2}


class Distance(ProcessJoinFunction):
    """Tells the distance of a pair, and how many there were of the key."""

    count = ValueState("count", types.INT64, default=0)

    def process(self, left, right, ctx):
        assert (ctx.left_timestamp, ctx.right_timestamp) == (left.n, right.n)
        assert ctx.timestamp == max(left.n, right.n)
        self.count.update(self.count.value() + 1)
        yield ctx.key, right.n - left.n, self.count.value() + 1000 * (ctx.watermark > 0)


def test_a_function_makes_rows_of_pairs_and_late_rows_go_to_side_outputs(backend_name):
    join = interval_join(-10, 10).side_output_late_data().process(Distance())
    with joining(join, backend_name, "k string, left long, right long") as harness:
        left(harness, 100)
        assert right(harness, 90, 110) == [("a", -10, 1), ("a", 10, 2)]
        harness.advance_watermark(100)
        assert left(harness, 99) == right(harness, 5) == []
        assert harness.side_output("late_left") == [("a", 99, at(99))]
        assert harness.side_output("late_right") == [(at(5), "a", 5)]
        assert right(harness, 105) == [("a", 5, 1003)]
        assert harness.rows_dropped == {}


class Aside(ProcessJoinFunction):
    def process(self, left, right, ctx):
        ctx.output("near" if left.n == right.n else "far", (left.n,))


def test_pairs_go_to_declared_side_outputs_and_to_no_other(backend_name):
    join = interval_join(0, 1).side_output("near", "n long").process(Aside())
    with joining(join, backend_name, "n long") as harness:
        left(harness, 1)
        assert right(harness, 1) == []
        assert harness.side_output("near") == [(1,)]
        with pytest.raises(UserFunctionError, match="declared are: 'near'"):
            right(harness, 2)


@pytest.mark.parametrize("missing", ["fail", "drop", "side output"])
def test_rows_without_event_time_go_where_the_policy_says(backend_name, missing):
    join = interval_join(0, 1, missing=missing).join()
    with joining(join, backend_name) as harness:
        if missing == "fail":
            with pytest.raises(
                UserFunctionError, match="the left input of the join cannot take a row that has no event time"
            ):
                left(harness, None)
            with pytest.raises(
                UserFunctionError,
                match="the right input of the join cannot take a row that has no event time",
            ):
                right(harness, None)
        elif missing == "drop":
            assert left(harness, None) + right(harness, None) == []
            assert harness.rows_dropped == {"timeless": 2}
        else:
            assert left(harness, None) == right(harness, None) == []
            assert harness.side_output("missing_left") == [("a", None, None)]
            assert harness.side_output("missing_right") == [(None, "a", None)]
        assert harness.num_entries() == 0


def test_buffers_and_their_timers_come_back_and_move_with_their_keys(backend_name):
    keys = [f"key-{number}" for number in range(30)]
    with joining(interval_join("-1 s", "1 s").join(), backend_name, parallelism=2) as harness:
        for number, key in enumerate(keys):
            left(harness, 1000 * number, key=key)
        harness.end_epoch()
        snapshot = harness.snapshot()
    with joining(interval_join("-1 s", "1 s").join(), "nested-map", parallelism=5, restore=snapshot) as other:
        assert pairs(right(other, 500, 2500, key="key-2")) == [(2000, 2500)]
        other.advance_watermark(16_000)
        assert sorted(other.keys("left-buffer")) == sorted(keys[16:])
        other.end_input()
        assert other.num_entries() == 0


def test_the_watermark_of_two_delays_cleans_up(backend_name):
    """WM-03."""
    with joining(interval_join(0, 10).join(), backend_name, delay=0, delay2=100) as harness:
        left(harness, 1000)
        right(harness, 1005)
        harness.end_epoch()
        assert harness.watermark == 904
        assert pairs(right(harness, 950, 1010)) == [(1000, 1010)]
        right(harness, 1111)
        harness.end_epoch()
        left(harness, 1012)
        harness.end_epoch()
        harness.end_epoch()
        assert harness.watermark == 1010
        assert harness.keys("left-buffer") == ["a"]
        assert list(harness.state("left-buffer", "a").keys()) == [1012]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("ab"), st.integers(0, 30)),
        st.tuples(st.just("watermark"), st.just(""), st.integers(0, 30)),
        st.tuples(st.just("restart"), st.just(""), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=40)
@given(steps=STEPS, bounds=st.tuples(st.integers(-8, 8), st.integers(-8, 8)).map(sorted))
def test_a_join_finds_each_pair_once_of_rows_that_are_not_late(steps, bounds):
    """Against a plain computation.  Watermarks are between the times of rows."""
    lower, upper = (10 * bound for bound in bounds)
    kept, expected, made, watermark = [], [], [], -1
    with joining(interval_join(lower, upper).join(), "heap-cow", parallelism=2) as harness:
        for step, key, number in steps:
            if step == "watermark":
                watermark = max(watermark, 10 * number + 5)
                made += harness.advance_watermark(10 * number + 5)
            elif step == "restart":
                harness.restore(harness.snapshot(), 3)
            else:
                time = 10 * number
                made += (left if step == "left" else right)(harness, time, key=key)
                if time < watermark:
                    continue
                for side, other, other_time in kept:
                    if side != step and other == key:
                        pair = (time, other_time) if step == "left" else (other_time, time)
                        if lower <= pair[1] - pair[0] <= upper:
                            expected.append((key, *pair))
                kept.append((step, key, time))
        assert sorted((row.k, row.left_n, row.right_n) for row in made) == sorted(expected)
        harness.end_input()
        assert harness.num_entries() == 0


# -- bounds in columns of the left row -------------------------------------------------------------------

BOUNDS = {"opens": types.TIMESTAMP, "ends": types.TIMESTAMP, "lasts": types.DURATION, "day": types.DATE}


def auctions(join, backend, **arguments):
    columns = {"k": types.STRING, "n": types.INT64, "at": types.TIMESTAMP, **BOUNDS}
    both = {"left_n": types.INT64, "left_at": types.TIMESTAMP, **BOUNDS}
    output = {"k": types.STRING, **both, "right_at": types.TIMESTAMP, "right_n": types.INT64}
    return joining(join, backend, output, schema=columns, **arguments)


def auction(harness, n, time, opens=None, ends=None, lasts=None, key="a"):
    lasts = None if lasts is None else dt.timedelta(milliseconds=lasts)
    return harness.process1((key, n, at(time), at(opens), at(ends), lasts, None))


def test_a_bound_may_be_a_column_of_the_left_row(backend_name):
    with auctions(interval_join(0, LeftColumn("ends")).join(), backend_name) as harness:
        auction(harness, 1, 10, ends=2020)
        auction(harness, 2, 10, ends=13)
        assert pairs(right(harness, 9, 13, 14, 2020, 2021)) == [(1, 13), (2, 13), (1, 14), (1, 2020)]
        assert auction(harness, 3, 10, ends=None) == auction(harness, 4, 10, ends=9) == []
        assert harness.rows_dropped == {"no interval": 2}
        harness.advance_watermark(1000)
        assert [row.n for rows in harness.state("left-buffer", "a").values() for row in rows] == [1]
        harness.advance_watermark(3000)
        assert harness.keys("left-buffer") == []
        harness.end_input()
        assert harness.num_entries() == 0


def test_bounds_may_be_durations_and_lie_before_the_row_as_far_as_lookback_says(backend_name):
    join = interval_join(LeftColumn("opens"), LeftColumn("lasts"), lower_exclusive=True, lookback=5)
    with auctions(join.join(), backend_name) as harness:
        right(harness, 1, 4, 5, 6, 12, 13, 994, 996)
        made = auction(harness, 1, 10, opens=5, lasts=2)
        assert pairs(made) == [(1, 6), (1, 12)]
        assert pairs(auction(harness, 2, 9, opens=0, lasts=0)) == [(2, 4), (2, 5), (2, 6)]
        harness.advance_watermark(1000)
        kept = list(harness.state("right-buffer", "a").keys())
        assert kept == [996], "an auction at 1000 looks back to 995"


def test_days_are_bounds_too(one_backend):
    with auctions(interval_join(0, LeftColumn("day")).join(), one_backend) as harness:
        day = 86_400_000
        harness.process1(("a", 1, at(10), None, None, None, dt.date(1970, 1, 2)))
        assert pairs(right(harness, day - 1, day, day + 1)) == [(1, day - 1), (1, day)]


AUCTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("left"), st.sampled_from("ab"), st.integers(0, 30), st.integers(-8, 8), st.integers(-8, 8)
        ),
        st.tuples(st.just("right"), st.sampled_from("ab"), st.integers(0, 30), st.just(0), st.just(0)),
        st.tuples(st.just("watermark"), st.just(""), st.integers(0, 30), st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.just(""), st.integers(1, 3), st.just(0), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=30)
@given(steps=AUCTIONS, lookback=st.sampled_from([0, 20, 80]))
def test_a_join_with_bounds_in_columns_equals_the_model_over_restarts(steps, lookback):
    """Watermarks lie between the times of rows."""
    join = interval_join(LeftColumn("opens"), LeftColumn("ends"), lookback=lookback).join()
    lefts, rights, expected, watermark = [], [], [], -1
    with auctions(join, "heap-cow", parallelism=2) as harness:
        for number, (step, key, where, before, after) in enumerate(steps):
            time = 10 * where
            if step == "watermark":
                watermark = max(watermark, time + 5)
                harness.advance_watermark(watermark)
            elif step == "restart":
                harness.restore(harness.snapshot(), where)
            elif step == "left":
                opens, ends = 10 * (where + before), 10 * (where + after)
                auction(harness, number, time, opens=opens, ends=ends, key=key)
                if time > watermark:
                    lefts.append((key, number, max(opens, time - lookback), ends))
                    expected += [
                        (number, other)
                        for its, other, when in rights
                        if its == key and lefts[-1][2] <= when <= ends
                    ]
            else:
                harness.process2((at(time), key, number))
                if time > watermark:
                    rights.append((key, number, time))
                    expected += [
                        (other, number)
                        for its, other, opens, ends in lefts
                        if its == key and opens <= time <= ends
                    ]
        harness.end_input()
        assert sorted(pairs(harness.outputs)) == sorted(expected)
        assert harness.num_entries() == 0


class One(ProcessJoinFunction):
    def process(self, left, right, ctx):
        return (left.k, 1)


def test_what_cannot_be_joined_is_refused(one_backend):
    with pytest.raises(InvalidJoinError, match="ends before it begins"):
        interval_join("1 hour", "-1 hour")
    with pytest.raises(InvalidJoinError, match="empty without its bounds"):
        interval_join(0, 0, upper_exclusive=True)
    with pytest.raises(InvalidJoinError, match="nearer bounds"):
        interval_join(0, 2**63)
    with pytest.raises(InvalidDurationError):
        interval_join("soon", "later")
    with pytest.raises(InvalidJoinError, match="no such policy"):
        interval_join(0, 1, missing="ignore")
    with pytest.raises(InvalidJoinError, match="call join"):
        interval_join(0, 1).process(lambda left, right: None)
    with pytest.raises(SideOutputNameError, match="another output"):
        interval_join(0, 1).side_output("late_left", "n long")
    with pytest.raises(InvalidJoinError, match="are missing"):
        interval_join(0, 1).side_output("x", None)
    with pytest.raises(InvalidJoinError, match="no columns are named"):
        joining(interval_join(0, 1).join(), one_backend, event_time=None, second=Input(RIGHT, key="k2"))
    with pytest.raises(InvalidJoinError, match="says it"):
        interval_join(0, 1, lookback=5)
    with pytest.raises(InvalidJoinError, match="is negative"):
        interval_join(LeftColumn("at"), 1, lookback=-5)
    with pytest.raises(InvalidJoinError, match=r"but k, n, at\. Name one with a time or a duration"):
        joining(interval_join(0, LeftColumn("ends")).join(), one_backend)
    with pytest.raises(InvalidJoinError, match="the column has the type int64"):
        joining(interval_join(0, LeftColumn("n")).join(), one_backend)
    with pytest.raises(InvalidFunctionError, match="does not know the columns"):
        interval_join(0, 1).join().states()
    with joining(interval_join(0, 1).process(One()), one_backend, "k string, n long") as harness:
        left(harness, 1)
        with pytest.raises(UserFunctionError, match="must yield its rows"):
            right(harness, 1)
