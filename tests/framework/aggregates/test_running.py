"""Running values: by columns as row by row, over random rows, restarts and other backends."""

from __future__ import annotations

import random
from decimal import Decimal
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keyedstate as ks
from keyedstate import local, types
from keyedstate.aggregates import (
    Aggregation,
    RunningAggregation,
    aggregate_with,
    all_,
    any_,
    collect,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    max_,
    max_by,
    mean,
    min_,
    min_by,
    running,
    stddev,
    sum_,
    top_k,
    variance,
)
from keyedstate.errors import AggregateOverflowError, InvalidAggregateError, RowKindError, UserFunctionError
from keyedstate.state import ManualClock
from keyedstate.testing import Harness

BACKENDS = ("heap-cow", "nested-map", "rocksdb")
SCHEMA = pa.schema(
    [
        ("whole", pa.int64()),
        ("k", pa.string()),
        ("real", pa.float64()),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("money", pa.decimal128(9, 2)),
    ]
)
NUMBERS = {
    "n": count(),
    "wholes": count("whole"),
    "flagged": count(where="flag"),
    "total": sum_("whole"),
    "real_total": sum_("real"),
    "average": mean("real"),
    "low": min_("real"),
    "high": max_("real"),
    "least": min_("whole"),
    "most": max_("whole", where="flag"),
}


class Longest(ks.AggregateFunction):
    def create_accumulator(self):
        return ""

    def add(self, value, accumulator):
        return max(accumulator, value or "", key=len)

    def merge(self, first, second):
        return max(first, second, key=len)

    def get_result(self, accumulator):
        return accumulator


OTHERS = {
    "spread": variance("real"),
    "deviation": stddev("whole", population=True),
    "any": any_("flag"),
    "all": all_("flag"),
    "first": first("text"),
    "last": last("text", ignore_nulls=True),
    "largest": max_("text"),
    "rich": max_by("text", by="whole"),
    "poor": min_by("real", by=["real", "whole"]),
    "texts": collect("text"),
    "kinds": collect_set("text"),
    "different": count_distinct("text"),
    "top": top_k("whole", 2),
    "sum_money": sum_("money"),
    "mean_money": mean("money"),
    "longest": aggregate_with(Longest(), "text", accumulator=types.STRING, result=types.STRING),
}

wholes = st.none() | st.integers(-5, 5) | st.integers(-(2**40), 2**40)
reals = st.none() | st.sampled_from([0.0, -0.0, 0.1, 1e300, float("nan"), float("inf")]) | st.floats(width=32)
texts = st.none() | st.text("abc", max_size=3)
money = st.none() | st.decimals(-100, 100, places=2)
rows = st.tuples(wholes, st.sampled_from(["a", "b", None]), reals, st.none() | st.booleans(), texts, money)
batches = st.lists(st.lists(rows, min_size=1, max_size=12), min_size=1, max_size=4)
# Below it keys are merged side by side, above it each key is accumulated.
borders = st.sampled_from([0, 2, 64])


class RowByRow(ks.KeyedProcessFunction):
    """The aggregates of NUMBERS as a user would write them without columns."""

    kept = ks.ValueState("kept", types.list_of(types.nullable(types.infer("double"))))
    exact = ks.ValueState("exact", types.list_of(types.nullable(types.INT64)))

    def process(self, row, ctx):
        n, wholes, flagged, total, least, most, reals = self.exact.value() or [0, 0, 0, None, None, None, 0]
        real_total, low, high = self.kept.value() or [None] * 3
        n += 1
        flagged += bool(row.flag)
        if row.whole is not None:
            wholes += 1
            total = row.whole if total is None else total + row.whole
            least = row.whole if least is None else min(least, row.whole)
            if row.flag:
                most = row.whole if most is None else max(most, row.whole)
        if row.real is not None:
            reals += 1
            real = row.real
            real_total = (real_total or 0.0) + real
            low = real if low is None or low != low or real < low else low
            high = real if high is None or real != real or real > high else high
        self.exact.update([n, wholes, flagged, total, least, most, reals])
        self.kept.update([real_total, low, high])
        average = real_total / reals if reals else None
        yield *row, n, wholes, flagged, total, real_total, average, low, high, least, most


def harness_of(function, output, **options):
    return Harness(function, key="k", schema=SCHEMA, output=output, **options)


def shown(found):
    """Return rows so that NaN and the signs of zeros compare."""
    return [repr(tuple(row)) for row in found]


def in_runs(function, output, given, backends):
    """Return the output over batches, each in a run of its own on the next backend."""
    found, snapshot = [], None
    for number, batch in enumerate(given):
        backend = backends[number % len(backends)]
        with harness_of(function, output, backend=backend, restore=snapshot) as harness:
            found += harness.process_all(batch)
            harness.end_epoch()
            snapshot = harness.snapshot()
    return found


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches, borders, st.permutations(BACKENDS))
def test_numbers_are_those_of_a_function_of_rows(given, border, backends):
    function = RunningAggregation(SCHEMA, ["k"], NUMBERS)
    with mock.patch.object(running, "ROWS_SIDE_BY_SIDE", border):
        by_columns = in_runs(function, function.output, given, backends)
    assert shown(by_columns) == shown(in_runs(RowByRow(), function.output, given, ["heap-cow"]))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches, borders, st.permutations(BACKENDS), st.booleans())
def test_no_result_depends_on_the_cuts_between_batches(given, border, backends, numbers):
    # With numbers alone the accumulators may be columns.
    aggregates = NUMBERS | {name: OTHERS[name] for name in ("spread", "any", "all", "poor")}
    function = RunningAggregation(SCHEMA, ["k"], aggregates if numbers else NUMBERS | OTHERS)
    with mock.patch.object(running, "ROWS_SIDE_BY_SIDE", border):
        at_once = in_runs(function, function.output, given, backends)
    one_by_one = [[row] for batch in given for row in batch]
    with harness_of(function, function.output) as harness:
        found = [row for batch in one_by_one for row in harness.process_all(batch)]
    assert shown(at_once) == shown(found)


def test_many_rows_of_one_key_are_accumulated_by_themselves(one_backend):
    numbers = random.Random(7)
    given = [
        (numbers.randrange(-9, 9), numbers.choice("aaaaab"), numbers.random(), True, None, Decimal(1))
        for _ in range(700)
    ]
    function = RunningAggregation(SCHEMA, ["k"], NUMBERS)
    with harness_of(function, function.output, backend=one_backend) as harness:
        by_columns = harness.process_all(given[:400]) + harness.process_all(given[400:])
    with harness_of(RowByRow(), function.output) as harness:
        assert shown(by_columns) == shown(harness.process_all(given))


@pytest.mark.parametrize("rows_of_key", [2, 100])
def test_a_sum_beyond_its_type_names_the_key(one_backend, rows_of_key):
    function = RunningAggregation(SCHEMA, ["k"], {"total": sum_("whole")})
    row = (2**62, "a", None, None, None, None)
    with (
        harness_of(function, function.output, backend=one_backend) as harness,
        pytest.raises(UserFunctionError, match=r"sum\(whole\).*'a'") as caught,
    ):
        harness.process_all([(1, "b", None, None, None, None), *[row] * rows_of_key])
    assert isinstance(caught.value.__cause__, AggregateOverflowError)


def test_an_aggregation_becomes_a_running_one_whose_state_expires(one_backend):
    types_of = {"k": pa.string(), "v": pa.int64()}
    rows = pa.schema(list(types_of.items()))
    ttl = ks.Ttl.of("1 hour")
    per_epoch = Aggregation(["k"], types_of, {"total": sum_("v")}, ttl)
    per_row = RunningAggregation(rows, ["k"], {"total": sum_("v")}, ttl)
    clock = ManualClock()
    options = {"key": "k", "schema": rows, "backend": one_backend, "clock": clock}
    with Harness(per_epoch, output=per_epoch.output, **options) as harness:
        harness.process_all([("a", 1), ("b", 2)])
        assert sorted(harness.end_epoch()) == [("a", 1), ("b", 2)]
        snapshot = harness.snapshot()
    with Harness(per_row, output=per_row.output, restore=snapshot, **options) as harness:
        assert harness.process_all([("a", 2), ("b", 3), ("a", 4)]) == [("a", 2, 3), ("b", 3, 5), ("a", 4, 7)]
        harness.advance_processing_time("61 minutes")
        assert harness.process_all([("a", 5)]) == [("a", 5, 5)]


def test_a_local_run_adds_running_columns_to_its_rows():
    rows = pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3]})
    out = local.keyed(rows, "k").running(n=count(), total=sum_("v")).to_table()
    assert out.schema.names == ["k", "v", "n", "total"]
    assert sorted(tuple(row.values()) for row in out.to_pylist()) == [
        ("a", 1, 1, 1),
        ("a", 3, 2, 4),
        ("b", 2, 1, 2),
    ]


def test_columns_that_cannot_be_added_are_refused():
    rows = pa.table({"k": ["a"], "v": [1], "kind": ["+I"]})
    keyed = local.keyed(rows, "k")
    with pytest.raises(InvalidAggregateError, match="the rows have a column of that name"):
        keyed.running(v=count())
    with pytest.raises(InvalidAggregateError, match="no column 'w'"):
        keyed.running(n=count("w"))
    with pytest.raises(InvalidAggregateError, match="it names no aggregate"):
        keyed.running()
    with pytest.raises(RowKindError, match=r"running\(\) takes no row back"):
        local.keyed(rows, "k", row_kind="kind").running(n=count())
