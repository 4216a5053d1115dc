"""Results with row kinds: changes amount to the result, over aggregates and ranks that chain."""

from __future__ import annotations

import decimal
import math
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.mean import Mean

from keyedstate import types
from keyedstate.aggregates import (
    Aggregate,
    Aggregation,
    ChangingAggregation,
    aggregate_with,
    collect_set,
    count,
    max_,
    mean,
    sum_,
)
from keyedstate.errors import (
    InvalidAggregateError,
    InvalidRankingError,
    RowKindError,
    UserFunctionError,
)
from keyedstate.local import connect, keyed
from keyedstate.ranking import top_n
from keyedstate.state import Ttl
from keyedstate.testing import Harness
from keyedstate.windows import Tumbling

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("n", pa.int64()),
        ("real", pa.float64()),
        ("exact", pa.decimal128(6, 2)),
        ("chosen", pa.bool_()),
        ("kind", pa.string()),
    ]
)
TYPES = dict(zip(SCHEMA.names, SCHEMA.types, strict=True))
Row = tuple[Any, ...]


def rows_of(table: pa.Table) -> list[Row]:
    return [tuple(row.values()) for row in table.to_pylist()]


def with_changes(shown: Counter[Row], changes: list[Row]) -> Counter[Row]:
    """Return rows after changes, each of which must take back a row that is there."""
    for *row, kind in changes:
        if kind in ("+I", "+U"):
            shown[tuple(row)] += 1
        else:
            assert shown[tuple(row)] > 0, f"{row} is taken back and was never shown"
            shown[tuple(row)] -= 1
    return +shown


def summed(values: list[Any]) -> Any:
    present = [value for value in values if value is not None]
    return sum(present) if present else None


def results(rows: list[Row]) -> Row:
    """Return the aggregates of `AGGREGATES` over some rows of one key."""
    numbers = [row[1] for row in rows]
    total = summed(numbers)
    exact = summed([row[3] for row in rows])
    return (
        len(rows),
        sum(number is not None for number in numbers),
        total,
        None if total is None else total / sum(number is not None for number in numbers),
        summed([row[2] for row in rows]),
        exact,
        summed([row[1] for row in rows if row[4]]),
    )


AGGREGATES: dict[str, Aggregate] = {
    "rows": count(),
    "numbers": count("n"),
    "total": sum_("n"),
    "mean": mean("n"),
    "reals": sum_("real"),
    "exact": sum_("exact"),
    "some": sum_("n", where="chosen"),
}
OUTPUT = (
    "key string, rows long, numbers long, total long, mean double, reals double, "
    "exact decimal(16, 2), some long, kind string"
)

ROWS = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.none() | st.integers(-(2**40), 2**40),
    st.none() | st.sampled_from([0.0, 2.5, -1.25]),
    st.none() | st.integers(-500, 500).map(lambda cents: decimal.Decimal(cents) / 100),
    st.none() | st.booleans(),
)
STEPS = st.lists(
    st.lists(ROWS | st.integers(0, 20), min_size=1, max_size=8) | st.sampled_from(["restore", "rescale"]),
    max_size=8,
)


@pytest.mark.parametrize("by_columns", [False, True])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_changes_of_aggregates_amount_to_the_aggregates_of_the_rows_that_are_left(
    backend_name: str, by_columns: bool, steps: list[Any]
) -> None:
    # Decimals are no columns of numbers: without them the accumulators may be in a table of columns.
    chosen = {name: each for name, each in AGGREGATES.items() if not by_columns or name != "exact"}
    output = OUTPUT.replace("exact decimal(16, 2), ", "") if by_columns else OUTPUT
    function = ChangingAggregation(["key"], TYPES, chosen, None, "kind", "kind")
    rows: list[Row] = []
    shown: Counter[Row] = Counter()
    with Harness(function, key="key", schema=SCHEMA, output=output, backend=backend_name) as job:
        for step in steps:
            if step == "restore":
                job.restore(job.snapshot())
            elif step == "rescale":
                job.rescale(3 - job.parallelism)
            else:
                changes: list[Row] = []
                for one in step:
                    if isinstance(one, int):  # a row that is there is taken back
                        if rows:
                            changes.append((*rows.pop(one % len(rows)), "-D" if one % 2 else "-U"))
                    else:
                        rows.append(one)
                        changes.append((*one, "+U" if one[4] else "+I"))
                job.process_all(changes[:3])
                job.process_all(changes[3:])
                job.end_epoch()
                emitted = job.take_outputs()
                # Between epochs no more than one change of each key.
                assert all(times <= 2 for times in Counter(row[0] for row in emitted).values())
                shown = with_changes(shown, emitted)
            expected: Counter[Row] = Counter()
            for key in {row[0] for row in rows}:
                values = results([row for row in rows if row[0] == key])
                if by_columns:
                    values = values[:5] + values[6:]
                expected[(key, *values)] += 1
            assert shown == expected
        assert job.num_entries() == len({row[0] for row in rows})


BIDS = [("a", 1, 10), ("a", 1, 12), ("b", 2, 7), ("a", 3, 4), ("b", 2, 5), ("a", 3, 9)]


def bids(rows: list[tuple[str, int, int]]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(("category", "auction", "price"), row, strict=True)) for row in rows],
        schema=pa.schema([("category", pa.string()), ("auction", pa.int64()), ("price", pa.int64())]),
    )


def test_the_mean_of_largest_prices_follows_them_through_a_chain_of_operators(tmp_path: Any) -> None:
    """Nexmark's query 4: the mean per category of what each auction fetched, while bids come."""
    shown: Counter[Row] = Counter()
    for end in (2, 4, 6):
        config = {"checkpoint.dir": str(tmp_path)}
        best = keyed(bids(BIDS[:end]), "category", "auction", uid="best", config=config).aggregate(
            price=max_("price"), row_kind="kind"
        )
        means = keyed(best, "category", uid="means", config=config, row_kind="kind").aggregate(
            auctions=count(), mean=mean("price")
        )
        shown = with_changes(shown, rows_of(means.to_table()))
    assert shown == Counter([("a", 2, 10.5), ("b", 1, 7.0)])


def test_an_epoch_emits_pairs_and_nothing_for_a_result_that_stays() -> None:
    function = ChangingAggregation(["key"], TYPES, {"most": max_("n")}, None, "change", None)
    with Harness(function, key="key", schema=SCHEMA, output="key string, most long, change string") as job:
        for numbers, expected in (
            ([3, 1], [("a", 3, "+I")]),
            ([2], []),
            ([5, 4], [("a", 3, "-U"), ("a", 5, "+U")]),
        ):
            for number in numbers:
                job.process_all([("a", number, None, None, None, None)])
            job.end_epoch()
            assert job.take_outputs() == expected


def test_a_key_that_was_forgotten_is_new_and_takes_no_row_back() -> None:
    function = ChangingAggregation(["key"], TYPES, {"rows": count()}, Ttl.of("1 s"), "kind", "kind")
    with Harness(function, key="key", schema=SCHEMA, output="key string, rows long, kind string") as job:
        job.process_all([("a", 1, None, None, None, "+I")])
        job.end_epoch()
        job.advance_processing_time("2 s")
        job.process_all([("a", 1, None, None, None, "-D")])
        job.end_epoch()
        job.process_all([("a", 1, None, None, None, "+I")])
        job.end_epoch()
        assert job.take_outputs() == [("a", 1, "+I"), ("a", 1, "+I")]


def test_rows_that_are_taken_back_of_an_unknown_key_are_left_out_one_by_one() -> None:
    function = ChangingAggregation(["key"], TYPES, {"total": sum_("n")}, None, "kind", "kind")
    with Harness(function, key="key", schema=SCHEMA, output="key string, total long, kind string") as job:
        job.process_all([("a", n, None, None, None, kind) for n, kind in ((10, "-U"), (12, "+U"), (5, "+I"))])
        job.end_epoch()
        assert job.take_outputs() == [("a", 17, "+I")]


def test_an_operator_begins_empty_where_its_rows_have_row_kinds_from_now_on() -> None:
    aggregates = {"total": sum_("n"), "mean": mean("n"), "rows": count()}
    arguments: Any = {"key": "key", "schema": SCHEMA}
    output = "key string, total long, mean double, rows long"
    with Harness(Aggregation(["key"], TYPES, aggregates), **arguments, output=output) as job:
        job.process_all([("a", n, None, None, None, "+I") for n in (1, 2, 3)])
        job.end_epoch()
        before = job.snapshot()
    function = ChangingAggregation(["key"], TYPES, aggregates, None, "kind", "kind")
    with Harness(function, **arguments, output=output + ", kind string") as job:
        job.restore(before)
        job.process_all([("a", 3, None, None, None, "-D"), ("a", 5, None, None, None, "+I")])
        job.end_epoch()
        assert job.take_outputs() == [("a", 5, 5.0, 1, "+I")]


def test_means_of_whole_numbers_stay_exact_when_rows_are_taken_back() -> None:
    function = ChangingAggregation(["key"], TYPES, {"mean": mean("n")}, None, "kind", "kind")
    with Harness(function, key="key", schema=SCHEMA, output="key string, mean double, kind string") as job:
        for n, kind in ((2**60, "+I"), (1, "+I"), (2**60, "-D")):
            job.process_all([("a", n, None, None, None, kind)])
            job.end_epoch()
        assert job.take_outputs()[-1] == ("a", 1.0, "+U")


def test_a_function_of_the_user_is_not_asked_for_results_without_rows() -> None:
    pair = types.tuple_of(types.INT64, types.INT64)
    made = aggregate_with(Mean(), "n", accumulator=pair, result=float)
    function = ChangingAggregation(["key"], TYPES, {"mean": made}, None, "kind", None)
    with Harness(function, key="key", schema=SCHEMA, output="key string, mean double, kind string") as job:
        for n in (1, 2):
            job.process_all([("a", n, None, None, None, None), ("b", n, None, None, None, None)][: 3 - n])
            job.end_epoch()
        expected = [("a", 1.0, "+I"), ("b", 1.0, "+I"), ("a", 1.0, "-U"), ("a", 1.5, "+U")]
        assert job.take_outputs() == expected


def test_a_result_with_a_nan_inside_that_stays_is_not_emitted(tmp_path: Any) -> None:
    rows = pa.table({"k": pa.array([{"u": math.nan}]), "real": [math.nan]})
    config = {"checkpoint.dir": str(tmp_path)}
    counts = []
    for number in (1, 2):
        stream = keyed(pa.concat_tables([rows] * number), "k", uid="nan", config=config)
        counts.append(stream.aggregate(found=collect_set("real"), row_kind="kind").to_table().num_rows)
    assert counts == [1, 0]


def test_first_rows_may_have_structs_with_fields_that_are_never_null() -> None:
    fields = pa.struct([pa.field("n", pa.int32(), nullable=False)])
    rows = pa.table({"k": ["a"], "v": [1], "part": pa.array([{"n": 1}], fields)})
    assert keyed(rows, "k").top_n(1, by="v", row_kind="kind").to_table().column("kind").to_pylist() == ["+I"]


def test_changes_of_ranks_take_back_the_rows_that_they_replace(tmp_path: Any) -> None:
    shown: Counter[Row] = Counter()
    emitted: list[Row] = []
    for end in (1, 2, 6):
        config = {"checkpoint.dir": str(tmp_path)}
        stream = keyed(bids(BIDS[:end]), "category", uid="top", config=config)
        emitted = rows_of(stream.top_n(2, by="price", row_kind="kind").to_table())
        shown = with_changes(shown, emitted)
    expected = [("a", 1, 12, 1), ("a", 1, 10, 2), ("b", 2, 7, 1), ("b", 2, 5, 2)]
    assert shown == Counter(expected)
    # The ranks of "a" have not changed.
    assert {row[0] for row in emitted} == {"b"}


def test_a_smaller_number_of_ranks_deletes_the_others() -> None:
    arguments: Any = {
        "key": "key",
        "schema": SCHEMA,
        "output": pa.schema([*SCHEMA, ("rank", pa.int32()), ("change", pa.string())]),
    }
    with Harness(top_n(2, by="n", row_kind="change"), **arguments) as job:
        job.process_all([("a", n, None, None, None, None) for n in (1, 2)])
        job.end_epoch()
        before = job.snapshot()
    with Harness(top_n(1, by="n", row_kind="change"), **arguments) as job:
        job.restore(before)
        job.process_all([("a", 0, None, None, None, None)])
        job.end_epoch()
        assert [(row[1], *row[-2:]) for row in job.take_outputs()] == [(1, 2, "-D")]


@pytest.mark.parametrize(
    ("declare", "error", "message"),
    [
        (lambda rows: rows.aggregate(most=max_("price")), InvalidAggregateError, "cannot take a row back"),
        (lambda rows: rows.aggregate(kind=count()), InvalidAggregateError, "named as the row kinds"),
        (lambda rows: rows.window(Tumbling.of(5)), RowKindError, r"window\(\) takes no row back"),
        (lambda rows: rows.deduplicate(), RowKindError, "takes no row back"),
        (lambda rows: connect(rows, rows, rows).join(), RowKindError, "two inputs takes no row back"),
    ],
)
def test_an_operator_that_takes_no_row_back_refuses_row_kinds(declare: Any, error: Any, message: str) -> None:
    table = bids(BIDS).append_column("kind", pa.array(["+I"] * len(BIDS)))
    with pytest.raises(error, match=message):
        declare(keyed(table, "category", row_kind="kind"))


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (pa.array(["+I", "insert"]), r"a row has 'insert', and the kinds are \+I, -U, \+U, -D"),
        (pa.array([None, "+I"]), "a row has None"),
        (pa.array([1, 2]), "the column has the type int64"),
        (None, "the rows have no such column"),
    ],
)
def test_a_wrong_row_kind_is_named(kinds: Any, message: str) -> None:
    table = bids(BIDS[:2])
    if kinds is not None:
        table = table.append_column("kind", kinds)
    # What the rows have is found in the operator, and what they do not have when it is declared.
    with pytest.raises((RowKindError, UserFunctionError), match=message):
        keyed(table, "category", row_kind="kind").aggregate(n=count()).to_table()


def test_row_kinds_of_ranks_that_cannot_be_had_are_refused() -> None:
    for wrong in (
        {"emit": "all", "row_kind": "k"},
        {"row_kind": "rank"},
        {"row_kind": "k", "within": Tumbling.of(5)},
    ):
        with pytest.raises(InvalidRankingError):
            top_n(1, by="price", **wrong)  # type: ignore[arg-type]
