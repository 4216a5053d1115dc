"""Window joins and co-groups: every type against a plain model, late rows, sessions, refusals."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyedstate import local, types
from keyedstate.errors import (
    InvalidFunctionError,
    InvalidJoinError,
    InvalidWindowError,
    SideOutputNameError,
    UserFunctionError,
)
from keyedstate.joins import CoGroupFunction, windowed
from keyedstate.state import ValueState
from keyedstate.testing import Harness, Input
from keyedstate.time import EventTime
from keyedstate.windows import Count, CountTrigger, Session, Sliding, TimeEvictor, Tumbling

LEFT = "k string, n long, at timestamp"
RIGHT = "at timestamp, k2 string, n long, window_end long"
BOUNDS = "k string, window_start timestamp, window_end timestamp"
PAIRS = f"{BOUNDS}, left_n long, left_at timestamp, right_at timestamp, right_n long, right_window_end long"
ALL = ["inner", "left", "right", "full", "semi", "anti"]


def at(ms):
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    return None if ms is None else epoch + dt.timedelta(milliseconds=ms)


def joining(function, backend, output, timed=True, **arguments):
    event_time = EventTime("at") if timed else None
    second = Input(RIGHT, "k2", event_time)
    return Harness(
        function,
        key="k",
        schema=LEFT,
        event_time=event_time,
        second=second,
        output=output,
        backend=backend,
        **arguments,
    )


def output_of(how):
    return f"{BOUNDS}, n long, at timestamp" if how in ("semi", "anti") else PAIRS


def left(harness, *times, key="a"):
    return harness.process1_all([(key, time, at(time)) for time in times])


def right(harness, *times, key="a"):
    return harness.process2_all([(at(time), key, time, 0) for time in times])


def numbers(rows):
    return [(row.left_n, row.right_n) if "left_n" in row._fields else row.n for row in rows]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [(1, 2), (1, 3)]),
        ("left", [(1, 2), (1, 3), (12, None)]),
        ("right", [(1, 2), (1, 3), (None, 25)]),
        ("full", [(1, 2), (1, 3), (12, None), (None, 25)]),
        ("semi", [1]),
        ("anti", [12]),
    ],
)
def test_the_rows_of_a_window_meet_when_it_fires(backend_name, how, expected):
    with joining(windowed(Tumbling.of(10)).join(how), backend_name, output_of(how)) as harness:
        assert left(harness, 1) + right(harness, 2, 3, 25) + left(harness, 12) == []
        assert left(harness, 14, key="b") == []
        made = harness.advance_watermark(29)
        of_b = [row for row in made if row.k == "b"]
        made = [row for row in made if row.k == "a"]
        assert numbers(made) == expected
        assert len(of_b) == (how in ("left", "full", "anti"))
        for row in made:
            assert row.window_start == at((row.n if how in ("semi", "anti") else row[3] or row[6]) // 10 * 10)
            assert row.window_end - row.window_start == dt.timedelta(milliseconds=10)
        assert harness.num_entries() == 0


@pytest.mark.parametrize("how", ALL)
def test_null_keys_match_nothing_in_a_window(one_backend, how):
    with joining(windowed(Tumbling.of(10)).join(how), one_backend, output_of(how)) as harness:
        left(harness, 1, key=None)
        right(harness, 2, key=None)
        kept = {"left": [(1, None)], "right": [(None, 2)], "full": [(1, None), (None, 2)], "anti": [1]}
        assert numbers(harness.advance_watermark(10)) == kept.get(how, [])
        assert sum(harness.rows_dropped.values()) == 2 - len(kept.get(how, []))


class Totals(CoGroupFunction):
    """Tells the sums of both sides, and the number of firings of the key."""

    firings = ValueState("firings", types.INT64, default=0)

    def process(self, left, right, ctx):
        self.firings.update(self.firings.value() + 1)
        yield ctx.key, sum(row.n for row in left), sum(row.n for row in right), self.firings.value()
        if not right:
            ctx.output("alone", (ctx.window.start, len(left)))


TOTALS = "k string, of_left long, of_right long, firings long"


def test_a_function_gets_all_rows_of_a_window_and_a_late_row_fires_it_again(backend_name):
    windows = windowed(Tumbling.of(10)).allowed_lateness(5).side_output_late_data()
    function = windows.side_output("alone", "start long, rows int").cogroup(Totals())
    with joining(function, backend_name, TOTALS) as harness:
        left(harness, 1, 2)
        right(harness, 3, key=None)
        made = harness.advance_watermark(9)
        assert sorted(made, key=repr) == [("a", 3, 0, 1), (None, 0, 3, 1)], "a null key is a key here"
        assert harness.side_output("alone") == [(0, 2)]
        assert right(harness, 4) == [("a", 3, 4, 2)], "late, and in time for the window"
        harness.advance_watermark(14)
        assert left(harness, 5) == right(harness, 6) == []
        assert harness.side_output("late_left") == [("a", 5, at(5))]
        assert harness.side_output("late_right") == [(at(6), "a", 6, 0)]


def test_sessions_of_both_inputs_merge(backend_name):
    with joining(windowed(Session.with_gap(10)).join("full"), backend_name, PAIRS) as harness:
        left(harness, 0, 18)
        right(harness, 9, 40)
        made = harness.advance_watermark(100)
        assert numbers(made) == [(0, 9), (18, 9), (None, 40)]
        assert (made[0].window_start, made[0].window_end) == (at(0), at(28))
        assert harness.num_entries() == 0


def test_windows_without_bounds_and_evictors_join_too(one_backend):
    columns = "k string, left_n long, left_at timestamp, right_at timestamp, right_n long, window_end long"
    with joining(windowed(Count.of(3)).join(), one_backend, columns, timed=False) as harness:
        left(harness, 1, 2)
        assert numbers(right(harness, 3)) == [(1, 3), (2, 3)]
    windows = windowed(Tumbling.of(100)).trigger(CountTrigger.of(3)).evictor(TimeEvictor.of(10))
    with joining(windows.join(), one_backend, PAIRS) as harness:
        left(harness, 1, 50)
        assert numbers(right(harness, 55)) == [(50, 55)]


def test_rows_without_event_time_go_where_the_policy_says(one_backend):
    for missing in ("fail", "drop", "side output"):
        with joining(windowed(Tumbling.of(10), missing=missing).join(), one_backend, PAIRS) as harness:
            if missing == "fail":
                with pytest.raises(UserFunctionError, match="the right input of the join cannot take a row"):
                    right(harness, None)
                continue
            assert left(harness, None) + right(harness, None) == []
            if missing == "drop":
                assert harness.rows_dropped == {"timeless": 2}
            else:
                assert harness.side_output("missing_left") == [("a", None, None)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["left", "right"]), st.sampled_from(["a", "b", None]), st.integers(0, 40)),
        st.tuples(st.just("watermark"), st.just(""), st.integers(0, 40)),
        st.tuples(st.just("restart"), st.sampled_from(["heap-cow", "nested-map"]), st.integers(1, 3)),
    ),
    max_size=30,
)


def expected_rows(how, rows):
    """Join the rows of all windows: lists of left and of right times by key and start."""
    out = []
    for (key, start), (ours, theirs) in rows.items():
        matching = key is not None and ours and theirs
        if matching and how not in ("semi", "anti"):
            out += [(key, start, one, other) for one in ours for other in theirs]
        elif matching:
            out += [(key, start, one) for one in ours if how == "semi"]
        else:
            if how == "anti":
                out += [(key, start, one) for one in ours]
            if how in ("left", "full"):
                out += [(key, start, one, None) for one in ours]
            if how in ("right", "full"):
                out += [(key, start, None, other) for other in theirs]
    return out


@settings(max_examples=25)
@given(steps=STEPS, how=st.sampled_from(ALL), slide=st.sampled_from([10, 5]))
def test_every_window_join_equals_the_model_over_restarts_and_rescaling(steps, how, slide):
    windows, watermark, made = defaultdict(lambda: ([], [])), -1, []
    assigner = Tumbling.of(10) if slide == 10 else Sliding.of(10, 5)
    harness = joining(windowed(assigner).join(how), "heap-cow", output_of(how), parallelism=2)
    for step, key, number in steps:
        if step == "watermark":
            watermark = max(watermark, number)
            made += harness.advance_watermark(watermark)
        elif step == "restart":
            snapshot = harness.snapshot()
            harness.close()
            function = windowed(assigner).join(how)
            harness = joining(function, key, output_of(how), parallelism=number, restore=snapshot)
        else:
            for start in range(number // slide * slide, number - 10, -slide):
                if start + 9 > watermark:
                    windows[key, start][step == "right"].append(number)
            made += (left if step == "left" else right)(harness, number, key=key)
    made += harness.end_input()
    assert harness.num_entries() == 0
    harness.close()
    found = [
        (
            row.k,
            round(row.window_start.timestamp() * 1000),
            *([row.n] if "n" in row._fields else numbers([row])[0]),
        )
        for row in made
    ]
    assert Counter(found) == Counter(expected_rows(how, windows))


# -- on the local runner ------------------------------------------------------------------------------------


def inputs():
    def table(name, *rows):
        keys, times = zip(*rows, strict=True)
        return pa.table({name: keys, "at": pa.array(times, pa.timestamp("ms", "UTC"))})

    return (
        local.keyed(table("id", ("a", 1), ("a", 11), ("b", 2)), "id", event_time=EventTime("at", delay=0)),
        local.keyed(table("id2", ("a", 5), ("c", 3)), "id2", event_time=EventTime("at", delay=0)),
    )


def test_windows_of_connected_inputs_have_columns_of_their_own(backend_name):
    windows = local.connect(*inputs(), config={"backend": backend_name}).window(Tumbling.of(10))
    made = windows.join("full").to_table()
    assert made.column_names == ["id", "window_start", "window_end", "left_at", "right_at"]
    assert sorted(made["id"].to_pylist()) == ["a", "a", "b", "c"]
    assert made.select(["left_at", "right_at"]).to_pylist().count({"left_at": at(1), "right_at": at(5)}) == 1
    assert windows.join("anti").to_table().column_names == ["id", "window_start", "window_end", "at"]

    class Sizes(CoGroupFunction):
        def process(self, left, right, ctx):
            return [(ctx.key, ctx.window.start, len(left), len(right))]

    made = windows.cogroup(Sizes(), "id string, start long, of_left int, of_right int").to_table()
    rows = sorted(tuple(row.values()) for row in made.to_pylist())
    assert rows == [("a", 0, 1, 1), ("a", 10, 1, 0), ("b", 0, 1, 0), ("c", 0, 0, 1)]


def test_what_cannot_be_declared_is_refused(one_backend):
    windows = windowed(Tumbling.of(10))
    with pytest.raises(InvalidJoinError, match="there is no such join"):
        windows.join("outer")
    with pytest.raises(InvalidJoinError, match="did you forget"):
        windows.cogroup(Totals)
    with pytest.raises(InvalidFunctionError, match="define process"):
        windows.cogroup(CoGroupFunction())
    with pytest.raises(InvalidWindowError, match="no assigner"):
        windowed("1 hour")
    with pytest.raises(InvalidWindowError, match="by the clock"):
        windowed(Tumbling.of(10, processing_time=True)).side_output_late_data()
    with pytest.raises(SideOutputNameError, match="another output"):
        windows.side_output("late_left", "n long")
    with pytest.raises(InvalidJoinError, match="are missing"):
        windows.side_output("x", None)
    with pytest.raises(InvalidWindowError, match="and they have none"):
        joining(windows.join(), one_backend, PAIRS, timed=False)

    class Clash(CoGroupFunction):
        contents = ValueState("window-contents", types.INT64)

        def process(self, left, right, ctx):
            return None

    with pytest.raises(InvalidWindowError, match="windows use that name"):
        windows.cogroup(Clash())
