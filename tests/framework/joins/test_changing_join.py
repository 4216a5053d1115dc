"""Joins by key with row kinds: changes amount to the join of every type, over restarts and ends of lives."""

from __future__ import annotations

import datetime as dt
import warnings
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyedstate import local
from keyedstate.aggregates import count, max_, sum_
from keyedstate.errors import (
    InvalidJoinError,
    RowKindError,
    UnboundedStateWarning,
    UserFunctionError,
)
from keyedstate.joins import interval_join, join, versioned_join, windowed
from keyedstate.runtime import KeyedCoProcessFunction
from keyedstate.state import Ttl, TtlClock
from keyedstate.testing import Harness, Input
from keyedstate.time import EventTime
from keyedstate.windows import Tumbling

LEFT = "k string, n double, kind string, at timestamp"
RIGHT = "at timestamp, op string, k2 string, n double"
PAIRS = "k string, left_n double, left_at timestamp, right_at timestamp, right_n double, kind string"
ALONE = "k string, n double, at timestamp, kind string"
ALL = ["inner", "left", "right", "full", "semi", "anti"]
OF_LEFT = ("semi", "anti")


def at(ms):
    return dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(milliseconds=ms)


def joining(how, backend, ttl=None, **arguments):
    return Harness(
        join(how, ttl=ttl, row_kind="kind"),
        key="k",
        schema=LEFT,
        event_time=EventTime("at"),
        row_kind="kind",
        second=Input(RIGHT, "k2", EventTime("at"), row_kind="op"),
        output=ALONE if how in OF_LEFT else PAIRS,
        backend=backend,
        **arguments,
    )


def left(harness, kind, n, key="a", ms=0):
    return changes(harness.process1((key, n, kind, at(ms))))


def right(harness, kind, n, key="a", ms=0):
    return changes(harness.process2((at(ms), kind, key, n)))


def changes(rows):
    return [(row.kind, row.n) if "n" in row._fields else (row.kind, row.left_n, row.right_n) for row in rows]


def test_a_row_of_an_outer_side_comes_back_with_nulls_when_its_last_match_leaves(backend_name):
    with joining("full", backend_name) as harness:
        assert left(harness, "+I", 1) == [("+I", 1, None)]
        assert right(harness, "+I", 2) == [("-D", 1, None), ("+I", 1, 2)]
        assert right(harness, "+I", 3) == [("+I", 1, 3)]
        assert left(harness, "+I", 4) == [("+I", 4, 2), ("+I", 4, 3)]
        assert right(harness, "-U", 2) == [("-D", 1, 2), ("-D", 4, 2)]
        assert right(harness, "-D", 3) == [("-D", 1, 3), ("-D", 4, 3), ("+I", 1, None), ("+I", 4, None)]
        assert left(harness, "-D", 1) == [("-D", 1, None)]
        assert left(harness, "-U", 4) + left(harness, "+U", 5) == [("-D", 4, None), ("+I", 5, None)]
        assert right(harness, "+U", 6, key="b") == [("+I", None, 6)]
        assert left(harness, "-D", 5) + right(harness, "-D", 6, key="b") == [
            ("-D", 5, None),
            ("-D", None, 6),
        ]
        assert harness.num_entries() == 0


def test_semi_and_anti_joins_decide_again_with_each_first_and_last_match(backend_name):
    for how, first, last in (("semi", "+I", "-D"), ("anti", "-D", "+I")):
        with joining(how, backend_name) as harness:
            assert left(harness, "+I", 1) == ([] if how == "semi" else [("+I", 1)])
            assert right(harness, "+I", 7) == [(first, 1)]
            assert right(harness, "+I", 7) == []
            assert left(harness, "+U", 2) == ([("+I", 2)] if how == "semi" else [])
            assert right(harness, "-D", 7) == []
            assert right(harness, "-D", 7) == [(last, 1), (last, 2)]
            assert left(harness, "-U", 2) == ([] if how == "semi" else [("-D", 2)])


def test_equal_rows_are_taken_back_one_by_one(backend_name):
    with joining("inner", backend_name) as harness:
        for n in (float("nan"), float("nan"), None):
            left(harness, "+I", n)
        assert len(right(harness, "+I", 1)) == 3
        assert len(left(harness, "-D", float("nan"))) == len(left(harness, "-U", None)) == 1
        assert len(right(harness, "+I", 2)) == 1
        assert left(harness, "-D", 5) == [], "no such row came, or it has ended"


def test_a_null_key_matches_nothing_and_keeps_no_state(backend_name):
    with joining("left", backend_name) as harness:
        assert left(harness, "+I", 1, key=None) + right(harness, "+I", 2, key=None) == [("+I", 1, None)]
        assert left(harness, "-D", 1, key=None) == [("-D", 1, None)]
        assert harness.rows_dropped == {"null key": 1}
        assert harness.num_entries() == 0


@pytest.mark.parametrize("clock", list(TtlClock))
def test_the_end_of_a_life_changes_no_result(backend_name, clock):
    with joining("left", backend_name, Ttl.of(10, clock=clock)) as harness:
        advance = harness.advance_watermark if clock is TtlClock.EVENT_TIME else harness.set_processing_time
        advance(1)
        left(harness, "+I", 1, ms=5)
        right(harness, "+I", 2, ms=1)
        advance(5)
        assert left(harness, "+I", 3, ms=6) == [("+I", 3, 2)]
        assert advance(11) == [], "the right row has ended"
        assert right(harness, "-D", 2, ms=1) == []
        assert left(harness, "-D", 1, ms=5) == [], "its pair is final"
        assert right(harness, "+I", 4, ms=12) == [("+I", 3, 4)]
        assert right(harness, "-D", 4, ms=12) == [("-D", 3, 4)], "it has a match that has ended"
        assert advance(40) == []
        assert harness.num_entries() == 0


ROWS = st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 1.0, None]), st.integers(0, 9))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["left", "right"]), ROWS),
        st.tuples(st.just("take back"), st.integers(0, 100)),
        st.tuples(st.just("take back"), st.integers(0, 100)),
        st.tuples(st.just("watermark"), st.integers(0, 15)),
        st.tuples(st.just("restart"), st.tuples(st.sampled_from(["heap-cow", "nested-map"]), st.just(2))),
    ),
    max_size=40,
)


class Model:
    """The join, row by row: all rows that live in one list, each with the number of pairs that it has."""

    def __init__(self, how, ttl):
        self.how, self.ttl, self.watermark = how, ttl, -1
        self.live, self.shown = [], Counter()

    def result(self, left, right):
        key = (left or right)["row"][0]
        if self.how in OF_LEFT:
            return left["row"]
        (_, n, ms), (_, other_n, other_ms) = (
            each["row"] if each else (key, None, None) for each in (left, right)
        )
        return key, n, ms, other_n, other_ms

    def show_alone(self, row, by):
        """Count the row where the join has it alone."""
        of_left, has_pairs = row["side"] == "left", row["pairs"] > 0
        if self.how in OF_LEFT:
            shown = of_left and has_pairs == (self.how == "semi")
        else:
            shown = not has_pairs and self.how in ("full", row["side"])
        if shown:
            self.shown[self.result(row, None) if of_left else self.result(None, row)] += by

    def pair(self, row, by):
        for other in self.live:
            if other is row or other["side"] == row["side"] or other["row"][0] != row["row"][0]:
                continue
            self.show_alone(other, -1)
            other["pairs"] += by
            row["pairs"] += by
            self.show_alone(other, 1)
            if self.how not in OF_LEFT:
                sides = (row, other) if row["side"] == "left" else (other, row)
                self.shown[self.result(*sides)] += by

    def is_over(self, row):
        return self.ttl is not None and row[2] + self.ttl <= self.watermark

    def add(self, side, row):
        if not self.is_over(row):
            self.live.append({"side": side, "row": row, "pairs": 0})
            self.pair(self.live[-1], 1)
            self.show_alone(self.live[-1], 1)

    def take_back(self, place):
        """Take back the newest row that equals the one of a place."""
        chosen = self.live[place % len(self.live)]
        chosen = [row for row in self.live if (row["side"], row["row"]) == (chosen["side"], chosen["row"])][
            -1
        ]
        self.show_alone(chosen, -1)
        self.pair(chosen, -1)
        self.live.remove(chosen) if self.live[-1] is not chosen else self.live.pop()
        return chosen["side"], chosen["row"]

    def advance(self, watermark):
        self.watermark = max(self.watermark, watermark)
        self.live = [row for row in self.live if not self.is_over(row["row"])]


@settings(max_examples=25)
@given(steps=STEPS, how=st.sampled_from(ALL), ttl=st.sampled_from([None, 3, 8]))
def test_changes_amount_to_the_model_over_restarts_and_rescaling(steps, how, ttl):
    model, shown = Model(how, ttl), Counter()
    lives = None if ttl is None else Ttl.of(ttl, clock=TtlClock.EVENT_TIME)
    harness = joining(how, "heap-cow", lives)

    def give(side, row, kind):
        key, n, ms = row
        made = (
            harness.process1((key, n, kind, at(ms)))
            if side == "left"
            else harness.process2((at(ms), kind, key, n))
        )
        for *values, change in made:
            if how not in OF_LEFT:
                values = [*values[:3], *reversed(values[3:])]
            found = tuple(
                round(1000 * each.timestamp()) if isinstance(each, dt.datetime) else each for each in values
            )
            shown[found] += {"+I": 1, "-D": -1}[change]
            assert shown[found] >= 0, f"{found} is taken back and was never shown"

    for step, what in steps:
        if step == "watermark":
            assert harness.advance_watermark(max(harness.watermark, what)) == []
            model.advance(what)
        elif step == "restart":
            backend, parallelism = what
            snapshot = harness.snapshot()
            harness.close()
            harness = joining(how, backend, lives, parallelism=parallelism, restore=snapshot)
        elif step != "take back":
            model.add(step, what)
            give(step, what, "+U")
        elif model.live:
            give(*model.take_back(what), "-U")
        assert +shown == +model.shown
    while model.live:
        give(*model.take_back(0), "-D")
    assert +shown == +model.shown
    assert ttl is not None or not shown.total()
    assert harness.num_entries() == 0
    harness.close()


# -- on the local runner ------------------------------------------------------------------------------------


def best_of(rows, uid, config):
    return local.keyed(rows, "auction", uid=uid, config=config).aggregate(
        price=max_("price"), row_kind="kind"
    )


@pytest.mark.filterwarnings("ignore::keyedstate.errors.UnboundedStateWarning")
def test_a_join_of_changing_results_chains_with_an_aggregate_over_restarts(tmp_path, backend_name):
    auctions = pa.table({"id": [1, 2, 3], "category": ["tea", "tea", "rice"]})
    config = {"backend": backend_name, "checkpoint.dir": str(tmp_path)}
    bids = {"auction": [], "price": []}

    def run(*more):
        for auction, price in more:
            bids["auction"].append(auction)
            bids["price"].append(price)
        best = best_of(pa.table(bids), "best", config)
        joined = local.connect(
            local.keyed(auctions, "id"),
            local.keyed(best, "auction", row_kind="kind"),
            uid="joined",
            config=config,
        ).join("left", row_kind="change")
        assert joined.schema.names == ["id", "category", "price", "change"]
        totals = local.keyed(joined, "category", uid="totals", config=config, row_kind="change").aggregate(
            auctions=count(), total=sum_("price")
        )
        return sorted(totals.to_table().to_pylist(), key=lambda row: (row["category"], row["change"] != "-U"))

    def rows(*made):
        return [dict(zip(("category", "auctions", "total", "change"), row, strict=True)) for row in made]

    assert run((1, 5), (2, 7)) == rows(("rice", 1, None, "+I"), ("tea", 2, 12, "+I"))
    assert run((1, 4)) == []
    assert run((2, 9), (3, 1)) == rows(
        ("rice", 1, None, "-U"), ("rice", 1, 1, "+U"), ("tea", 2, 12, "-U"), ("tea", 2, 14, "+U")
    )
    assert run((1, 6)) == rows(("tea", 2, 14, "-U"), ("tea", 2, 15, "+U"))


def test_row_kinds_are_named_after_the_first_input_that_has_some_and_a_stream_needs_no_ttl(
    tmp_path, one_backend
):
    rows = pa.table({"k": ["a", "a"], "v": [1, 1], "op": ["+I", "-D"]})
    others = pa.table({"k2": ["a"], "op": ["x"], "kind": ["+I"]})
    config = {"backend": one_backend, "checkpoint.dir": str(tmp_path)}

    def connected(first, second):
        return local.connect(
            local.keyed(rows, "k", row_kind=first),
            local.keyed(others, "k2", row_kind=second),
            uid="joined",
            config=config,
        )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        joined = connected("op", "kind").join("full")
        assert joined.schema.names == ["k", "v", "right_op", "op"]
    net = Counter()
    for *row, kind in (tuple(row.values()) for row in joined.to_table().to_pylist()):
        net[tuple(row)] += 1 if kind == "+I" else -1
    assert +net == Counter({("a", None, "x"): 1})
    with pytest.warns(UnboundedStateWarning):
        assert connected(None, "kind").join().schema.names == ["k", "v", "left_op", "right_op", "kind"]


def test_a_join_by_key_refuses_the_state_of_one_with_final_rows(one_backend):
    with joining("inner", one_backend) as harness:
        left(harness, "+I", 1)
        snapshot = harness.snapshot()
    with pytest.raises(UserFunctionError, match="value type of the state 'left-rows'"):
        Harness(
            join(),
            key="k",
            schema=LEFT,
            second=Input(RIGHT, "k2"),
            output=PAIRS,
            backend=one_backend,
            restore=snapshot,
        )


@pytest.mark.parametrize("how", ALL[1:])
def test_another_type_of_join_refuses_the_state_of_an_inner_one(backend_name, how):
    with joining("inner", backend_name) as harness:
        left(harness, "+I", 1)
        snapshot = harness.snapshot()
    refused = rf"join\('{how}'\) with row kinds cannot be used: .* another how=.*give it a new uid"
    with pytest.raises(UserFunctionError, match=refused):
        joining(how, backend_name, restore=snapshot)
    with joining("inner", backend_name, restore=snapshot) as harness:
        assert right(harness, "+I", 2) == [("+I", 1, 2)]


def test_row_kinds_refuse_the_state_of_a_join_with_final_rows(one_backend):
    arguments = {"key": "k", "schema": "k string, n long", "output": "k string, n long, m long"}
    second = Input("k2 string, m long", "k2")
    with Harness(join(), **arguments, second=second, backend=one_backend) as harness:
        harness.process1(("a", 1))
        snapshot = harness.snapshot()
    arguments["output"] += ", change string"
    with pytest.raises(UserFunctionError, match="or without row kinds, which emitted other rows"):
        Harness(join(row_kind="change"), **arguments, second=second, backend=one_backend, restore=snapshot)


@pytest.mark.parametrize(
    ("columns", "value"), [("n long", (1,)), ("n int, c string", (1, None)), ("n long, c string", (1, None))]
)
def test_a_row_from_before_a_change_of_its_columns_is_taken_back(backend_name, columns, value):
    def of(columns, **arguments):
        return Harness(
            join("left", row_kind="kind"),
            key="k",
            schema=f"k string, {columns}, kind string",
            row_kind="kind",
            second=Input("k2 string, m int", "k2"),
            output=f"k string, {columns}, m int, kind string",
            backend=backend_name,
            **arguments,
        )

    with of("n int") as harness:
        for n in (1, 2, 1):
            harness.process1(("a", n, "+I"))
        snapshot = harness.snapshot()
    with of(columns, restore=snapshot) as harness:
        assert harness.process1(("a", *value, "+U")) == [("a", *value, None, "+I")]
        for _ in range(3):
            assert harness.process1(("a", *value, "-D")) == [("a", *value, None, "-D")]
        assert harness.process1(("a", *value, "-D")) == []
        assert [row.n for row in harness.process2(("a", 7))] == [2, 2]


class Copies(KeyedCoProcessFunction):
    def process1(self, row, ctx):
        yield row

    def process2(self, row, ctx):
        yield ctx.key, row.n, row.op, row.at


def test_other_joins_refuse_rows_that_take_others_back_and_a_function_sees_them(one_backend):
    others = {
        "interval_join": interval_join("-1 s", "1 s").join(),
        "versioned_join": versioned_join(),
        "window": windowed(Tumbling.of("1 s")).join(),
        "without row_kind=": join(),
    }
    second = Input(RIGHT, "k2", EventTime("at"), row_kind="op")
    inputs = {"key": "k", "schema": LEFT, "event_time": EventTime("at"), "second": second}
    for name, function in others.items():
        with pytest.raises(RowKindError, match=rf"'op' cannot be used: .*{name}.* takes no row back"):
            Harness(function, **inputs, output=PAIRS, backend=one_backend)
    with Harness(Copies(), **inputs, output=LEFT, backend=one_backend) as harness:
        assert harness.process2((at(0), "-D", "a", 1)) == [("a", 1, "-D", at(0))]
    rows = pa.table({"k": ["a"], "kind": ["+I"]})
    plain, changing = local.keyed(rows, "k"), local.keyed(rows, "k", row_kind="kind")
    with pytest.raises(RowKindError, match="more than two inputs takes no row back"):
        local.connect(plain, plain, changing).join()
    with pytest.raises(InvalidJoinError, match="more than two inputs has no row kinds"):
        local.connect(plain, plain, plain).join(row_kind="kind")
    with pytest.raises(RowKindError, match="column of the key"):
        local.connect(plain, local.keyed(rows, "kind", row_kind="kind")).join()
    with pytest.raises(InvalidJoinError, match="row_kind=5 cannot be used: it is no name"):
        join(row_kind=5)
    with pytest.raises(InvalidJoinError, match="'k' cannot be used: two columns"):
        local.connect(plain, plain).join(row_kind="k")
    with joining("inner", one_backend) as harness, pytest.raises(UserFunctionError, match="a row has '\\+X'"):
        left(harness, "+X", 1)
