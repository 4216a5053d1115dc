"""Joins by key: every type against a plain model, the life of rows, late rows, null keys, refusals."""

from __future__ import annotations

import datetime as dt
import warnings
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyedstate import local
from keyedstate.errors import InvalidJoinError, UnboundedStateWarning, UserFunctionError
from keyedstate.joins import join
from keyedstate.state import Ttl, TtlClock, Visibility
from keyedstate.testing import Harness, Input
from keyedstate.time import EventTime

LEFT = "k string, n long, at timestamp"
RIGHT = "at timestamp, k2 string, n long"
PAIRS = "k string, left_n long, left_at timestamp, right_at timestamp, right_n long"
ALL = ["inner", "left", "right", "full", "semi", "anti"]
BY_WATERMARK = Ttl.of(10, clock=TtlClock.EVENT_TIME)


def at(ms):
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    return None if ms is None else epoch + dt.timedelta(milliseconds=ms)


def joining(how, backend, ttl=BY_WATERMARK, **arguments):
    declared = {name: arguments.pop(name) for name in ("late", "missing") if name in arguments}
    timed = EventTime("at") if arguments.pop("timed", True) else None
    return Harness(
        join(how, ttl=ttl, **declared),
        key="k",
        schema=LEFT,
        event_time=timed,
        second=Input(RIGHT, "k2", timed),
        output=LEFT if how in ("semi", "anti") else PAIRS,
        backend=backend,
        **arguments,
    )


def left(harness, *times, key="a"):
    return numbers(harness.process1_all([(key, time, at(time)) for time in times]))


def right(harness, *times, key="a"):
    return numbers(harness.process2_all([(at(time), key, time) for time in times]))


def numbers(rows):
    return [(row.left_n, row.right_n) if "left_n" in row._fields else row.n for row in rows]


@pytest.mark.parametrize(
    ("how", "at_once", "at_the_end"),
    [
        ("inner", [(1, 2), (3, 2)], []),
        ("left", [(1, 2), (3, 2)], [(8, None)]),
        ("right", [(1, 2), (3, 2)], [(None, 9)]),
        ("full", [(1, 2), (3, 2)], [(8, None), (None, 9)]),
        ("semi", [1, 3], []),
        ("anti", [], [8]),
    ],
)
def test_a_row_without_a_match_comes_out_at_the_end_of_its_life(backend_name, how, at_once, at_the_end):
    with joining(how, backend_name) as harness:
        made = left(harness, 1) + right(harness, 2) + left(harness, 3)
        made += left(harness, 8, key="b") + right(harness, 9, key="c")
        assert made == at_once
        assert numbers(harness.advance_watermark(17)) == []
        made = harness.advance_watermark(18)
        assert numbers(made + harness.advance_watermark(19)) == at_the_end
        assert all(row.k == {8: "b", 9: "c"}[row[1] or row[-1]] for row in made)
        assert harness.num_entries() == 0


@pytest.mark.parametrize("timed", [True, False])
def test_rows_live_by_the_clock_as_long_as_their_time_to_live(backend_name, timed):
    with joining("full", backend_name, Ttl.of(10), timed=timed) as harness:
        left(harness, 1)
        harness.advance_processing_time(5)
        right(harness, 2, key="b")
        assert right(harness, 3) == [(1, 3)]
        assert numbers(harness.advance_processing_time(5)) == []
        assert right(harness, 4) == [], "the left row is gone"
        assert sorted(numbers(harness.advance_processing_time(10))) == [(None, 2), (None, 4)]
        assert harness.num_entries() == 0


@pytest.mark.parametrize("how", ALL)
def test_null_keys_match_nothing(backend_name, how):
    with joining(how, backend_name) as harness:
        made = left(harness, 1, key=None) + right(harness, 2, key=None)
        kept = {"left": [(1, None)], "right": [(None, 2)], "full": [(1, None), (None, 2)], "anti": [1]}
        assert made == kept.get(how, [])
        assert harness.rows_dropped == ({"null key": 2 - len(made)} if len(made) < 2 else {})
        assert harness.num_entries() == 0


def test_a_row_is_late_when_its_life_is_over(backend_name):
    with joining("left", backend_name, late="side output") as harness:
        harness.advance_watermark(100)
        assert left(harness, 91, 90) == right(harness, 90) == []
        assert right(harness, 95) == [(91, 95)]
        assert harness.side_output("late_left") == [("a", 90, at(90))]
        assert harness.side_output("late_right") == [(at(90), "a", 90)]
    with joining("left", backend_name) as harness:
        harness.advance_watermark(100)
        assert left(harness, 90) == []
        assert harness.rows_dropped == {"late": 1}


def test_rows_without_event_time_go_where_the_policy_says(one_backend):
    for missing, dropped in (("fail", {}), ("drop", {"timeless": 2}), ("side output", {})):
        with joining("inner", one_backend, missing=missing) as harness:
            if missing == "fail":
                with pytest.raises(UserFunctionError, match="the left input of the join cannot take a row"):
                    left(harness, None)
                continue
            assert left(harness, None) == right(harness, None) == []
            assert harness.rows_dropped == dropped
            if missing == "side output":
                assert harness.side_output("missing_right") == [(None, "a", None)]
    with joining("inner", one_backend, Ttl.of(10)) as harness:
        assert left(harness, None) + right(harness, 1) == [(None, 1)], "by the clock no row needs a time"


def test_a_semi_join_keeps_one_right_row_and_no_left_row_that_matched(backend_name):
    with joining("semi", backend_name) as harness:
        right(harness, 5, 3, 7, 4)
        assert left(harness, 1, 2) == [1, 2]
        assert harness.num_entries("left-rows") == 0
        assert dict(harness.state("right-rows", "a").items()).popitem()[1][0] == 17
        assert harness.state("right-rows", "a").size() == 1
        harness.advance_watermark(17)
        assert harness.num_entries() == 0


@pytest.mark.parametrize("row_kind", [None, "kind"])
@pytest.mark.parametrize("how", ["semi", "anti"])
def test_a_join_without_right_columns_ignores_their_names(one_backend, how, row_kind):
    columns = "k string, n long, left_n long"
    with Harness(
        join(how, row_kind=row_kind),
        key="k",
        schema=columns,
        second=Input("k2 string, n long", "k2"),
        output=columns if row_kind is None else f"{columns}, kind string",
        backend=one_backend,
    ) as harness:
        harness.process1_all([("a", 1, 2), ("b", 3, 4)])
        harness.process2(("a", 5))
        harness.end_input()
        found = {tuple(row)[:3] for row in harness.outputs}
        assert (("a", 1, 2) in found) is (how == "semi" or row_kind is not None)


def test_another_type_of_join_after_a_restart_keeps_what_it_knows(one_backend):
    with joining("inner", one_backend) as harness:
        left(harness, 1)
        snapshot = harness.snapshot()
    with joining("left", one_backend, restore=snapshot) as harness:
        left(harness, 2)
        assert numbers(harness.end_input()) == [(2, None)], "an inner join may have emitted the first row"
        assert harness.num_entries() == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["left", "right"]), st.sampled_from(["a", "b", None]), st.integers(0, 30)),
        st.tuples(st.just("watermark"), st.just(""), st.integers(0, 30)),
        st.tuples(st.just("restart"), st.sampled_from(["heap-cow", "nested-map"]), st.integers(1, 3)),
    ),
    max_size=30,
)


@pytest.mark.parametrize("how", ["anti", "left"])
def test_a_semi_join_that_becomes_another_one_keeps_the_left_rows_that_wait(one_backend, how):
    with joining("semi", one_backend) as harness:
        left(harness, 1)
        snapshot = harness.snapshot()
    with joining(how, one_backend, restore=snapshot) as harness:
        left(harness, 2)
        kept = numbers(harness.end_input())
    assert kept == ([1, 2] if how == "anti" else [(1, None), (2, None)])


class Model:
    """The join, row by row: all rows that live in one list."""

    def __init__(self, how, ttl):
        self.how, self.ttl, self.watermark = how, ttl, -1
        self.live, self.out = [], []

    def add(self, side, key, time):
        if time + self.ttl <= self.watermark:
            return
        row = {"side": side, "key": key, "time": time, "matched": False}
        for other in self.live:
            if other["side"] != side and other["key"] == key and key is not None:
                of_left, of_right = (row, other) if side == "left" else (other, row)
                if self.how == "semi" and not of_left["matched"]:
                    self.out.append((key, of_left["time"]))
                if self.how not in ("semi", "anti"):
                    self.out.append((key, of_left["time"], of_right["time"]))
                row["matched"] = other["matched"] = True
        self.live.append(row)

    def advance(self, watermark):
        self.watermark = max(self.watermark, watermark)
        for row in [row for row in self.live if row["time"] + self.ttl <= self.watermark]:
            self.live.remove(row)
            if row["matched"]:
                continue
            if row["side"] == "left" and self.how in ("left", "full"):
                self.out.append((row["key"], row["time"], None))
            if row["side"] == "right" and self.how in ("right", "full"):
                self.out.append((row["key"], None, row["time"]))
            if row["side"] == "left" and self.how == "anti":
                self.out.append((row["key"], row["time"]))


@settings(max_examples=30)
@given(steps=STEPS, how=st.sampled_from(ALL), ttl=st.sampled_from([30, 100, 1000]))
def test_every_join_equals_the_model_over_restarts_and_rescaling(steps, how, ttl):
    model, made = Model(how, ttl), []
    harness = joining(how, "heap-cow", Ttl.of(ttl, clock=TtlClock.EVENT_TIME), parallelism=2)
    for step, key, number in steps:
        if step == "watermark":
            made += harness.advance_watermark(max(harness.watermark, 10 * number + 5))
            model.advance(10 * number + 5)
        elif step == "restart":
            snapshot = harness.snapshot()
            harness.close()
            lives = Ttl.of(ttl, clock=TtlClock.EVENT_TIME)
            harness = joining(how, key, lives, parallelism=number, restore=snapshot)
        else:
            model.add(step, key, 10 * number)
            row = [(key, number, at(10 * number)), (at(10 * number), key, number)][step == "right"]
            made += (harness.process1 if step == "left" else harness.process2)(row)
    made += harness.end_input()
    model.advance(2**62)
    assert harness.num_entries() == 0
    harness.close()

    def times(row):
        found = [row.at] if how in ("semi", "anti") else [row.left_at, row.right_at]
        return row.k, *(None if time is None else round(time.timestamp() * 1000) for time in found)

    assert Counter(map(times, made)) == Counter(model.out)


# -- on the local runner ------------------------------------------------------------------------------------

ORDERS = pa.table({"id": [1, 2, 3, None], "who": ["ann", "bob", "cid", "dan"]})
PAYMENTS = pa.table({"order_id": [3, 1, 1, 4], "who": ["x", "y", "z", "v"]})


def connected(uid=None, **config):
    return local.connect(
        local.keyed(ORDERS, "id"), local.keyed(PAYMENTS, "order_id"), uid=uid, config=config or None
    )


@pytest.mark.parametrize("how", ALL)
def test_a_batch_is_joined_as_arrow_joins_tables(backend_name, how):
    made = connected(backend=backend_name).join(how).to_table()
    types = {"inner": "inner", "left": "left outer", "right": "right outer", "full": "full outer"}
    theirs = {"semi": "left semi", "anti": "left anti", **types}[how]
    expected = ORDERS.join(PAYMENTS, "id", "order_id", theirs, right_suffix="_2")
    names = [name for name in ("id", "order_id", "who", "who_2") if name in expected.column_names]
    tables = made, expected.select(names)
    rows, wanted = (Counter(zip(*table.to_pydict().values(), strict=True)) for table in tables)
    assert rows == wanted
    of_pairs = ["id", "left_who", "right_who"]
    assert made.column_names == (["id", "who"] if how in ("semi", "anti") else of_pairs)


def test_a_stream_without_a_time_to_live_is_refused_or_warned_of(tmp_path, one_backend):
    config = {"backend": one_backend, "checkpoint.dir": str(tmp_path)}
    for how in ("left", "right", "full", "anti"):
        with pytest.raises(InvalidJoinError, match="never comes in a stream"):
            connected("orders", **config).join(how)
    with pytest.warns(UnboundedStateWarning, match="the inner join keeps every row for ever") as caught:
        joined = connected("orders", **config).join()
    assert caught[0].filename == __file__
    assert len(joined.to_table()) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        connected("others", **config).join("left", ttl=Ttl.of("1 hour"))
        connected(backend=one_backend).join("left")


def test_a_stream_continues_with_the_rows_that_live(tmp_path, backend_name):
    config = {"backend": backend_name, "checkpoint.dir": str(tmp_path)}

    came = [], []

    def run(*new):
        sides = []
        for rows, more in zip(came, new, strict=True):
            rows += more
            keys, times = zip(*rows, strict=True)
            table = pa.table({"id": keys, "at": pa.array(times, pa.timestamp("ms", "UTC"))})
            sides.append(local.keyed(table, "id", event_time=EventTime("at", delay=0)))
        joined = local.connect(*sides, uid="orders", config=config).join("left", ttl=BY_WATERMARK)
        pairs = joined.to_table().select(["left_at", "right_at"]).to_pylist()
        return [tuple(time and time.microsecond // 1000 for time in pair.values()) for pair in pairs]

    assert run([("a", 1), ("a", 5)], [("a", 2)]) == [(1, 2), (5, 2)]
    assert run([("b", 30)], [("c", 31)]) == []
    assert run([("a", 40)], [("a", 39)]) == [(40, 39)], "the watermark was 29"
    assert run([("d", 60)], [("d", 62)]) == [(60, 62), (30, None)]


def test_what_cannot_be_joined_is_refused(one_backend):
    with pytest.raises(InvalidJoinError, match=r"Give one of 'inner', .* Did you mean 'inner'"):
        join("iner")
    with pytest.raises(InvalidJoinError, match="there is no such join"):
        join(None)
    with pytest.raises(InvalidJoinError, match="no time to live"):
        join(ttl="1 day")
    with pytest.raises(InvalidJoinError, match="its life begins once"):
        join(ttl=Ttl.of(10, visibility=Visibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP))
    with pytest.raises(InvalidJoinError, match="'drop' or 'side output'"):
        join(ttl=BY_WATERMARK, late="keep")
    with pytest.raises(InvalidJoinError, match="no such policy"):
        join(ttl=BY_WATERMARK, missing="ignore")
    with pytest.raises(InvalidJoinError, match="never late"):
        join(ttl=Ttl.of(10), late="side output")
    with pytest.raises(
        InvalidJoinError, match="time to live of the join cannot be used: it is in event time"
    ):
        joining("inner", one_backend, timed=False)
    twice = pa.table({"order_id": [1], "left_who": ["x"], "who": ["y"]})
    with pytest.raises(InvalidJoinError, match="'left_who' cannot be used: two columns"):
        local.connect(local.keyed(ORDERS, "id"), local.keyed(twice, "order_id")).join()
