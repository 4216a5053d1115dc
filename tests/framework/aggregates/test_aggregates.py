"""Aggregates by columns against the same computed row by row, and their rules one by one."""

from __future__ import annotations

import datetime as dt
import math
import statistics
import sys
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.backends import backend_of

from keyedstate import types
from keyedstate.aggregates import (
    Aggregation,
    aggregate_with,
    all_,
    any_,
    approx_distinct,
    approx_quantiles,
    collect,
    collect_set,
    count,
    first,
    last,
    max_,
    mean,
    min_,
    stddev,
    sum_,
    variance,
)
from keyedstate.aggregates import function as aggregation
from keyedstate.errors import (
    AggregateOverflowError,
    InvalidAggregateError,
    MissingPackageError,
    UserFunctionError,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.murmur3 import key_groups
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.runners import OperatorSpec, keyed_operator
from keyedstate.state import AggregateFunction, ListState, ManualClock, Ttl
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

GROUPS = 8
GROUP_COLUMN = "__group"
BACKENDS = ("heap-cow", "nested-map", "rocksdb")
#: Databases live in memory where they can: each is opened with synchronized writes.
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("whole", pa.int64()),
        ("real", pa.float64()),
        ("exact", pa.decimal128(20, 2)),
        ("text", pa.string()),
        ("truth", pa.bool_()),
        ("time", pa.timestamp("us", "UTC")),
    ]
)


chosen = cache(backend_of)


class Job:
    """A function over one instance of a backend, epoch by epoch."""

    def __init__(self, backend: str = "heap-cow", *, keys=("key",), schema=SCHEMA, **settings: Any) -> None:
        self.keys = keys
        self.schema = schema
        self.backend = KeyedStateBackend.open(
            chosen(backend),
            KeySpace(
                key_serializer_for([schema.field(name).type for name in keys]),
                KeyGroupRange(0, GROUPS - 1),
                GROUPS,
            ),
            local_base=MEMORY,
            **settings,
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.backend.close()

    def run(self, function: Any, *batches: list[tuple[Any, ...]], output=None) -> list[tuple[Any, ...]]:
        """Run one epoch and return its output; batches without rows are left out."""
        function = cloudpickle.loads(cloudpickle.dumps(function))  # as it travels to the task
        operator = keyed_operator(
            function,
            self.backend,
            OperatorSpec(
                key_columns=self.keys,
                key_group_column=GROUP_COLUMN,
                output=OutputSchema(function.output if output is None else output),
                epoch=1,
            ),
        )
        operator.open()
        out = operator.process(self._batch(rows) for rows in batches if rows)
        made = [row for batch in out for row in zip(*batch.to_pydict().values(), strict=True)]
        operator.close()
        return made

    def _batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = [
            pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), self.schema, strict=True)
        ]
        batch = pa.record_batch(columns, schema=self.schema)
        groups = key_groups([batch.column(name) for name in self.keys], GROUPS)
        return batch.append_column(GROUP_COLUMN, pa.array(groups))


def aggregation_of(schema=SCHEMA, keys=("key",), ttl=None, **aggregates):
    return Aggregation(keys, dict(zip(schema.names, schema.types, strict=True)), aggregates, ttl)


# -- the same, row by row -----------------------------------------------------------------------------


def present(values):
    return [value for value in values if value is not None]


def largest(values, sign):
    """NaN is larger than any number."""
    ordered = sorted(present(values), key=lambda value: (value != value, 0 if value != value else value))
    return None if not ordered else ordered[-1 if sign > 0 else 0]


def spread(values, population, root):
    values = present(values)
    if len(values) < (1 if population else 2):
        return None
    if any(not math.isfinite(value) for value in values):
        return math.nan
    found = float((statistics.pvariance if population else statistics.variance)(values))
    return math.sqrt(found) if root else found


def half_up(values):
    return (sum(values) / len(values)).quantize(Decimal("0.000001"), ROUND_HALF_UP)


def of(column, function):
    """Compute from the values of a column; None if there are no values."""
    return lambda rows: function(present(rows[column])) if present(rows[column]) else None


ALL_OF_THEM = {
    "rows": (count(), len),
    "texts": (count("text"), lambda rows: len(present(rows["text"]))),
    "whole_sum": (sum_("whole"), of("whole", sum)),
    "real_sum": (sum_("real"), of("real", sum)),
    "exact_sum": (sum_("exact"), of("exact", sum)),
    "whole_mean": (mean("whole"), of("whole", statistics.fmean)),
    "exact_mean": (mean("exact"), of("exact", half_up)),
    "whole_variance": (variance("whole"), lambda rows: spread(rows["whole"], False, False)),
    "real_stddev": (stddev("real", population=True), lambda rows: spread(rows["real"], True, True)),
    "text_min": (min_("text"), of("text", min)),
    "text_max": (max_("text"), of("text", max)),
    "real_min": (min_("real"), lambda rows: largest(rows["real"], -1)),
    "real_max": (max_("real"), lambda rows: largest(rows["real"], +1)),
    "exact_max": (max_("exact"), of("exact", max)),
    "time_min": (min_("time"), of("time", min)),
    "truth_max": (max_("truth"), of("truth", max)),
    "first_text": (first("text"), lambda rows: rows["text"][0]),
    "last_whole": (last("whole"), lambda rows: rows["whole"][-1]),
    "first_whole": (first("whole", ignore_nulls=True), of("whole", lambda values: values[0])),
    "last_exact": (last("exact", ignore_nulls=True), of("exact", lambda values: values[-1])),
    "any_truth": (any_("truth"), of("truth", any)),
    "all_truth": (all_("truth"), of("truth", all)),
    "texts_seen": (collect("text"), lambda rows: present(rows["text"])),
    "wholes_seen": (collect_set("whole"), lambda rows: list(dict.fromkeys(present(rows["whole"])))),
}
EVERYTHING = aggregation_of(**{name: aggregate for name, (aggregate, _) in ALL_OF_THEM.items()})


class RowByRow(KeyedProcessFunction):
    """Keeps all rows of a key, and computes everything again from them at each row."""

    rows = ListState("rows", types.infer(SCHEMA))

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.rows.add(row)
        columns = {name: [getattr(one, name) for one in self.rows.get()] for name in SCHEMA.names}
        class_of = type("Rows", (dict,), {"__len__": lambda self: len(columns["key"])})
        yield ctx.key, *(plain(class_of(columns)) for _, plain in ALL_OF_THEM.values())


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6) or (one != one and other != other)
    return one == other and type(one) is type(other)


REALS = st.one_of(
    st.floats(-1e4, 1e4, width=32), st.sampled_from([0.0, -0.0, math.nan]), st.sampled_from([1e9, 1e9 + 1])
)
ROWS = st.tuples(
    st.sampled_from(["a", "b", "", None]),
    st.none() | st.integers(-(2**40), 2**40),
    st.none() | REALS,
    st.none() | st.decimals(-(10**17), 10**17, places=2),
    st.none() | st.text(max_size=3),
    st.none() | st.booleans(),
    st.none()
    | st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2100, 1, 1), timezones=st.just(dt.timezone.utc)),
)
EPOCHS = st.lists(st.lists(st.lists(ROWS, max_size=6), max_size=3), min_size=1, max_size=3)


@pytest.mark.parametrize("backend", BACKENDS)
@given(epochs=EPOCHS)
@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@pytest.mark.slow
def test_aggregates_are_those_that_a_process_function_computes_row_by_row(backend, epochs):
    with Job(backend) as by_columns, Job(backend) as by_rows:
        for batches in epochs:
            plain = {row[0]: row for row in by_rows.run(RowByRow(), *batches, output=EVERYTHING.output)}
            found = by_columns.run(EVERYTHING, *batches)
            assert len(found) == len(plain), "one row for each key that the epoch had rows of"
            for row in found:
                for name, one, other in zip(EVERYTHING.output.names, row, plain[row[0]], strict=True):
                    assert alike(one, other), f"{name} of {row[0]!r}: {one!r} by columns, {other!r} by rows"


# -- the rules ----------------------------------------------------------------------------------------


def rows_of(**columns: list[Any]) -> tuple[pa.Schema, list[tuple[Any, ...]]]:
    table = pa.table(columns)
    return table.schema, list(zip(*table.to_pydict().values(), strict=True))


def once(column: pa.Array, *, function=None, backend="heap-cow", **aggregates: Any) -> tuple[Any, ...]:
    """Return the aggregates of a column ``v`` over all rows, each row in an epoch of its own."""
    schema = pa.schema([("key", pa.string()), ("v", column.type)])
    with Job(backend, schema=schema) as job:
        made = aggregation_of(schema, **aggregates)
        for value in column.to_pylist():
            (row,) = job.run(made, [("k", value)])
        return row[1:]


def test_a_sum_beyond_a_long_is_an_error_that_names_the_key_and_nothing_wraps_around():
    with pytest.raises(UserFunctionError, match=r"sum\(v\) of the key 'k' is too large for INT64.*decimal"):
        once(pa.array([2**62, 2**62]), total=sum_("v"))
    schema = pa.schema([("key", pa.string()), ("v", pa.int64())])
    with Job(schema=schema) as job, pytest.raises(UserFunctionError) as caught:
        job.run(aggregation_of(schema, total=sum_("v")), [("a", 1), ("k", -(2**63)), ("k", -1)])
    assert isinstance(caught.value.__cause__, AggregateOverflowError)
    assert caught.value.__cause__.key == "k"


@pytest.mark.parametrize("limit", [2**63 - 1, -(2**63)])
def test_a_sum_is_exact_up_to_the_limits_of_a_long(limit):
    step = 1 if limit > 0 else -1
    schema = pa.schema([("key", pa.string()), ("v", pa.int64())])
    with Job(schema=schema) as job:
        function = aggregation_of(schema, total=sum_("v"))
        rows = [("k", limit - 3 * step), ("k", step), ("k", limit), ("k", -limit), ("k", 2 * step)]
        if limit < 0:
            rows[3] = ("k", 2**63 - 1)
            rows.append(("k", 1))
        assert job.run(function, rows) == [("k", limit)]


def test_decimals_are_summed_exactly_and_beyond_38_digits_with_an_error():
    nines = Decimal(10**28 - 1)
    assert once(pa.array([nines, nines], pa.decimal128(28, 0)), total=sum_("v")) == (
        Decimal(2 * (10**28 - 1)),
    )
    nines = Decimal(10**38 - 1)
    assert once(pa.array([nines, nines.copy_negate(), nines], pa.decimal128(38, 0)), total=sum_("v")) == (
        nines,
    )
    with pytest.raises(UserFunctionError, match="too large for decimal"):
        once(pa.array([nines, Decimal(1)], pa.decimal128(38, 0)), total=sum_("v"))


def test_integers_of_all_widths_and_floats_of_both_are_summed():
    for arrow_type in (pa.int8(), pa.int16(), pa.int32(), pa.int64()):
        assert once(pa.array([100, None, 100], arrow_type), total=sum_("v"), mean=mean("v")) == (200, 100.0)
    assert once(pa.array([0.5, 0.25], pa.float32()), total=sum_("v"), least=min_("v")) == (0.75, 0.25)


def test_large_values_of_little_variance_lose_no_digits():
    values = [1e9 + step for step in (4.0, 7.0, 13.0, 16.0)]
    assert once(pa.array(values), spread=variance("v"), root=stddev("v", population=True)) == pytest.approx(
        (30.0, math.sqrt(22.5)), rel=1e-12
    )


def test_nan_is_the_largest_number_and_zeros_of_both_signs_are_one():
    assert once(pa.array([1.0, math.nan, 2.0]), least=min_("v"), most=max_("v"))[0] == 1.0
    assert math.isnan(once(pa.array([1.0, math.nan, math.inf]), most=max_("v"))[0])
    assert math.isnan(once(pa.array([math.nan, math.nan]), least=min_("v"))[0])
    (distinct,) = once(pa.array([math.nan, 0.0, -0.0, math.nan, 1.0]), distinct=collect_set("v"))
    assert len(distinct) == 3


def test_only_nulls_leave_counts_at_zero_arrays_empty_and_everything_else_null():
    chosen = {
        "rows": count(), "values": count("v"), "total": sum_("v"), "mean": mean("v"), "least": min_("v"),
        "spread": variance("v", population=True), "first": first("v"), "last": last("v", ignore_nulls=True),
        "all": collect("v"), "each": collect_set("v"),
    }  # fmt: skip
    made = once(pa.array([None, None], pa.int64()), **chosen)
    assert made == (2, 0, None, None, None, None, None, None, [], [])


def test_the_first_value_may_be_null_and_stays_first():
    column = pa.array([None, 1, 2, None], pa.int64())
    made = once(
        column, f=first("v"), l=last("v"), fn=first("v", ignore_nulls=True), ln=last("v", ignore_nulls=True)
    )
    assert made == (None, None, 1, 2)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([b"a", b"\xff", b""]),
        pa.array([dt.date(2020, 1, 2), dt.date(2019, 1, 1)]),
        pa.array([dt.datetime(2020, 1, 2), dt.datetime(2021, 1, 1)], pa.timestamp("us")),
        pa.array([dt.timedelta(days=1), dt.timedelta(-1)], pa.duration("us")),
        pa.array([dt.time(1), dt.time(0)], pa.time64("us")),
        pa.array(["ä", "z", "\U0001f600", "\uffff"]),
        pa.array([Decimal("1.5"), Decimal("-1.5")], pa.decimal128(5, 1)),
        pa.array([False, True]),
        pa.array([1.5, -1.5], pa.float32()),
    ],
)
def test_values_of_every_ordered_type_have_a_least_and_a_largest(values):
    plain = values.to_pylist()
    schema = pa.schema([("key", pa.string()), ("v", values.type)])
    rows = [("k", value) for value in plain]
    with Job(schema=schema) as job:
        made = aggregation_of(schema, least=min_("v"), most=max_("v"), seen=collect("v"))
        assert job.run(made, rows) == [("k", min(plain), max(plain), plain)]
        assert job.run(made, rows[::-1]) == [("k", min(plain), max(plain), plain + plain[::-1])]


def test_keys_of_several_columns_floats_and_structs_are_those_of_group_by():
    struct = pa.struct([("x", pa.int32()), ("y", pa.float64())])
    schema = pa.schema([("a", pa.float64()), ("b", struct), ("v", pa.int64())])
    keys = [
        (0.0, {"x": 1, "y": -0.0}),
        (-0.0, {"x": 1, "y": 0.0}),
        (math.nan, None),
        (math.nan, None),
        (math.nan, {"x": None, "y": None}),
        (None, {"x": None, "y": math.nan}),
    ]
    with Job(keys=("a", "b"), schema=schema) as job:
        function = aggregation_of(schema, ("a", "b"), rows=count(), total=sum_("v"))
        rows = [(*key, 1) for key in keys]
        assert [row[-2:] for row in job.run(function, rows)] == [(2, 2), (2, 2), (1, 1), (1, 1)]
        made = job.run(function, rows[::-1])
        assert [row[-2:] for row in made] == [(2, 2), (2, 2), (4, 4), (4, 4)]
        assert made[-1][:2] == (0.0, {"x": 1, "y": 0.0}) and math.copysign(1, made[-1][0]) == 1
        assert job.backend.num_entries() == 4


def test_an_epoch_without_rows_puts_out_nothing():
    with Job() as job:
        assert job.run(EVERYTHING) == []
        assert job.run(EVERYTHING, []) == []


@pytest.mark.parametrize("limit", ["batch_rows", "batch_bytes"])
def test_an_epoch_of_many_rows_goes_into_the_state_in_steps_and_puts_out_each_key_once(monkeypatch, limit):
    monkeypatch.setattr(Aggregation, limit, 3)
    monkeypatch.setattr(aggregation, "OUTPUT_ROWS", 2)
    schema = pa.schema([("key", pa.string()), ("v", pa.int64())])
    function = aggregation_of(schema, rows=count(), total=sum_("v"), last=last("v"))
    batches = [[(key, number) for key in ("a", "b", None, "c")][: number % 4 + 1] for number in range(9)]
    rows = [row for batch in batches for row in batch]
    expected = {
        (key, len(values), sum(values), values[-1])
        for key in ("a", "b", None, "c")
        for values in [[number for other, number in rows if other == key]]
    }
    with Job(schema=schema) as job:
        made = job.run(function, *batches)
    assert len(made) == 4 and set(made) == expected


def test_two_aggregates_of_the_same_share_an_accumulator():
    function = aggregation_of(a=count(), b=count(), c=variance("real"), d=stddev("real", population=True))
    assert function.accumulators.serializer.names == (
        "count(*)", "variance(real).count", "variance(real).mean", "variance(real).m2",
    )  # fmt: skip
    with Job() as job:
        row = ("k", 1, 2.0, None, None, None, None)
        assert job.run(function, [row]) == [("k", 1, 1, None, 0.0)]


def test_aggregates_may_be_added_renamed_and_left_out_of_a_restored_state():
    old = aggregation_of(rows=count(), total=sum_("whole"))
    new = aggregation_of(amount=sum_("whole"), last=last("text"), mean=mean("whole"))
    restored = types.SerializerSnapshot.from_json(old.accumulators.serializer.snapshot().to_json())
    verdict = new.accumulators.serializer.resolve_compatibility(restored)
    assert verdict.is_after_migration
    convert = new.accumulators.serializer.conversion_from(restored.restore_serializer())
    assert convert((5, 70)) == (70, None, None, None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_aggregates_of_a_key_expire_a_time_to_live_after_its_last_row(backend):
    clock = ManualClock(1000)
    function = aggregation_of(ttl=Ttl(100), rows=count())
    row = ("k", 1, None, None, None, None, None)
    with Job(backend, clock=clock) as job:
        assert job.run(function, [row]) == [("k", 1)]
        clock.advance(99)
        assert job.run(function, [row]) == [("k", 2)]
        clock.advance(99)
        assert job.run(function, [row]) == [("k", 3)]
        clock.advance(100)
        assert job.run(function, [row]) == [("k", 1)]


class Longest(AggregateFunction):
    """The longest text and how many there were; what is merged is changed in place."""

    def create_accumulator(self):
        return ["", 0]

    def add(self, value, accumulator):
        return self.merge(accumulator, [value or "", 1])

    def merge(self, first, second):
        first[0] = max(first[0], second[0], key=len)
        first[1] += second[1]
        return first

    def get_result(self, accumulator):
        return f"{accumulator[0]} of {accumulator[1]}"


def longest(function=None, **more):
    accumulator = types.list_of(types.pickled())
    return aggregate_with(function or Longest(), "v", accumulator=accumulator, result=types.STRING, **more)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_of_the_users_own_is_merged_into_a_copy_that_no_snapshot_shows(backend):
    schema = pa.schema([("key", pa.string()), ("v", pa.string())])
    function = aggregation_of(schema, longest=longest())
    with Job(backend, schema=schema) as job:
        assert job.run(function, [("a", "x"), ("a", "abc"), ("b", None)]) == [
            ("a", "abc of 2"),
            ("b", " of 1"),
        ]
        handle = job.backend.get_state(function.accumulators)
        before = handle.get_many(["a"])[0][0]
        assert job.run(function, [("a", "ab")]) == [("a", "abc of 3")]
        assert before == ["abc", 2]


class Range(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        raise AssertionError("add_all is there")

    def add_all(self, values, accumulator):
        return accumulator + sum(a * b for a, b in values)

    def merge(self, first, second):
        return first + second

    def get_result(self, accumulator):
        return accumulator / 2


def test_a_function_of_several_columns_is_given_tuples_all_of_a_key_at_once():
    schema = pa.schema([("key", pa.string()), ("a", pa.int64()), ("b", pa.int64())])
    half = aggregate_with(Range(), "a", "b", accumulator=types.INT64, result=pa.float64())
    with Job(schema=schema) as job:
        function = aggregation_of(schema, half=half)
        assert job.run(function, [("k", 1, 2), ("k", 3, 4)]) == [("k", 7.0)]
        assert job.run(function, [("k", 1, 1)]) == [("k", 7.5)]
        with pytest.raises(UserFunctionError, match="INT64"):
            job.run(function, [("k", 2**40, 2**40)])


def test_two_functions_of_one_class_need_a_name_each():
    schema = pa.schema([("key", pa.string()), ("v", pa.string())])
    with pytest.raises(InvalidAggregateError, match=r"'two'.*Longest\(v\) too; name one with.*name="):
        aggregation_of(schema, one=longest(), two=longest())
    aggregation_of(schema, one=longest(), two=longest(name="other"))
    function = Longest()
    assert (
        len(
            aggregation_of(schema, one=longest(function), two=longest(function)).accumulators.serializer.names
        )
        == 1
    )


class NoMerge(Longest):
    merge = AggregateFunction.merge


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: longest(5), "5 is no AggregateFunction"),
        (lambda: longest(NoMerge()), r"NoMerge has no merge\(\)"),
        (
            lambda: aggregate_with(Longest(), accumulator=types.INT64, result=types.INT64),
            "Longest has no column",
        ),
        (
            lambda: aggregate_with(Longest(), "v", accumulator=int, result=types.INT64),
            "give one of keyedstate.types",
        ),
        (lambda: aggregate_with(Longest(), "v", accumulator=types.INT64, result=5), "result type of Longest"),
        (lambda: approx_distinct("v", precision=3), "precision 3"),
        (lambda: approx_quantiles("v", [0.5, 2]), "no list of numbers from 0 to 1"),
        (lambda: approx_quantiles("v", 0.5), "no list of numbers"),
        (lambda: approx_quantiles("v", [0.5], k=1), "k=1"),
    ],
)
def test_a_wrong_parameter_of_an_aggregate_is_refused_where_it_is_given(make, message):
    with pytest.raises(InvalidAggregateError, match=message):
        make()


@pytest.mark.parametrize(
    "values",
    [
        pa.array(range(5000)),
        pa.array([f"v{n}" for n in range(5000)]),
        pa.array([n / 7 for n in range(5000)]),
        pa.array([n.to_bytes(2, "big") for n in range(5000)]),
        pa.array([dt.date.fromordinal(700000 + n) for n in range(5000)]),
        pa.array([Decimal(n) / 4 for n in range(5000)], pa.decimal128(9, 2)),
    ],
)  # fmt: skip
def test_distinct_values_are_counted_approximately_over_epochs_and_batches(values):
    schema = pa.schema([("key", pa.string()), ("v", values.type)])
    function = aggregation_of(schema, about=approx_distinct("v"))
    plain = values.to_pylist()
    with Job(schema=schema) as job:
        job.run(function, [("k", value) for value in plain[:3000]], [("k", None)])
        made = dict(job.run(function, [("k", value) for value in plain[1000:]], [("few", plain[0])] * 9))
        assert abs(made["k"] - 5000) < 5000 * 4 * 0.0163 and made["few"] == 1
    assert once(pa.array([None], values.type), about=approx_distinct("v")) == (0,)


def test_an_empty_string_counts_as_a_value_and_so_do_booleans():
    assert once(pa.array(["", "a", "", None]), about=approx_distinct("v")) == (2,)
    assert once(pa.array([True, False, None, True]), about=approx_distinct("v")) == (2,)


def test_quantiles_are_exact_for_few_values_and_near_for_many():
    schema = pa.schema([("key", pa.string()), ("v", pa.float64())])
    ranks = [0.0, 0.25, 0.5, 1.0]
    function = aggregation_of(schema, q=approx_quantiles("v", ranks), none=approx_quantiles("v", [0.5]))
    with Job(schema=schema) as job:
        numbers = np.random.default_rng(1).permutation(20_000).astype(float).tolist()
        job.run(function, [("k", number) for number in numbers[:9000]])
        rows = [("k", number) for number in numbers[9000:]] + [
            ("few", x) for x in (3.0, 1.0, 2.0, math.nan, None)
        ]
        made = {row[0]: row[1:] for row in job.run(function, [*rows, ("none", None)])}
        assert made["few"] == ([1.0, 1.0, 2.0, 3.0], [2.0]) and made["none"] == (None, None)
        for rank, found in zip(ranks, made["k"][0], strict=True):
            assert abs(found - rank * 20_000) < 20_000 * 0.04


def test_without_the_library_of_sketches_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'keyedstate\[sketches\]'"):
        approx_distinct("v")


@pytest.mark.parametrize(
    ("aggregates", "message"),
    [
        ({}, "it names no aggregate; give at least one"),
        ({"key": count()}, "'key' cannot be computed: a key column has the same name"),
        ({"n": 5}, "'n' cannot be computed: it is 5; give one of"),
        ({"n": count}, "give one of keyedstate.aggregates"),
        ({"n": sum_("text")}, r"sum\(text\) needs numbers, and the column has the Arrow type string"),
        ({"n": sum_("truth")}, "needs numbers"),
        ({"n": mean("time")}, "needs numbers"),
        ({"n": stddev("text")}, r"stddev\(text\) needs numbers"),
        ({"n": any_("whole")}, "needs booleans"),
        ({"n": min_("list")}, "needs values with an order"),
        ({"n": collect_set("map")}, "values that have a hash"),
        ({"n": approx_distinct("list")}, "needs single values"),
        ({"n": approx_quantiles("text", [0.5])}, "needs whole numbers or floats"),
        ({"n": collect("unsigned")}, "values that have a type in state"),
    ],
)
def test_an_aggregate_that_cannot_be_computed_is_refused_with_its_name_and_the_way_out(aggregates, message):
    nested = [
        ("list", pa.list_(pa.int64())),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("unsigned", pa.uint64()),
    ]
    schema = pa.schema([*SCHEMA, *(pa.field(*field) for field in nested)])
    with pytest.raises(InvalidAggregateError, match=message):
        aggregation_of(schema, **aggregates)


@pytest.mark.parametrize(
    "function", [sum_, min_, max_, mean, variance, stddev, first, last, any_, all_, collect]
)
def test_a_column_is_given_by_its_name(function):
    with pytest.raises(InvalidAggregateError, match=r"name a column of the DataFrame"):
        function(5)
