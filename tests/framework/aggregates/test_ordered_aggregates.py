"""Aggregates by the order of other columns, distinct counts, largest values and conditions, row by row."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyedstate.aggregates import (
    Aggregate,
    Aggregation,
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
    stddev,
    sum_,
    top_k,
)
from keyedstate.aggregates.declaration import over_columns
from keyedstate.errors import InvalidAggregateError
from keyedstate.local import keyed
from keyedstate.testing import Harness
from keyedstate.time import EventTime
from keyedstate.windows import ProcessWindowFunction, Session, Sliding, Tumbling, windowed

UTC = dt.timezone.utc
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("n", pa.int64()),
        ("real", pa.float64()),
        ("text", pa.string()),
        ("pair", pa.struct([("x", pa.int64()), ("y", pa.string())])),
        ("chosen", pa.bool_()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)
Row = tuple[Any, ...]
PLACE = {name: place for place, name in enumerate(SCHEMA.names)}


def test_a_nan_that_was_restored_counts_once_with_that_of_new_rows(backend_name: str) -> None:
    aggregates = {
        "n": count_distinct("real"),
        "pairs": count_distinct("real", "text"),
        "set": collect_set("real"),
    }
    types = dict(zip(SCHEMA.names, SCHEMA.types, strict=True))
    output = "key string, n long, pairs long, set array<double>"
    row = ("ann", None, math.nan, "a", None, None, None)
    with Harness(
        Aggregation(["key"], types, aggregates), key="key", schema=SCHEMA, output=output, backend=backend_name
    ) as job:
        for _ in range(2):
            job.process(row)
            job.end_epoch()
            ((_, n, pairs, found),) = job.take_outputs()
            assert (n, pairs, len(found)) == (1, 1, 1)
            job.restore(job.snapshot())


def test_structs_are_counted_once_each() -> None:
    rows = pa.table({"k": ["a"] * 3, "part": pa.array([{"u": 1.0}, {"u": 1.0}, {"u": 2.0}])})
    assert keyed(rows, "k").aggregate(n=count_distinct("part")).to_table().column("n").to_pylist() == [2]


# -- the same in plain Python -------------------------------------------------------------------------


def rank(value: Any) -> Any:
    """Return what values are compared by: a null first, NaN last."""
    if isinstance(value, float):
        return (True, 0.0) if math.isnan(value) else (False, value)
    if isinstance(value, tuple):
        return tuple(() if part is None else (rank(part),) for part in value)
    return value


def the_best(rows: list[Row], values: list[str], by: list[str], largest: bool, ties: str = "first") -> Any:
    found: Any = None
    for row in rows:
        order = [row[PLACE[name]] for name in by]
        if None in order:
            continue
        order = [rank(value) for value in order]
        if (
            found is None
            or (order > found[0] if largest else order < found[0])
            or (order == found[0] and ties == "last")
        ):
            found = order, row
    if found is None:
        return None
    picked = tuple(found[1][PLACE[name]] for name in values)
    return picked[0] if len(picked) == 1 else picked


def those_of(rows: list[Row], column: str) -> list[Any]:
    return [row[PLACE[column]] for row in rows if row[PLACE[column]] is not None]


def chosen(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row[PLACE["chosen"]]]


def total(rows: list[Row]) -> Any:
    return sum(those_of(rows, "n")) if those_of(rows, "n") else None


ALL = SCHEMA.names
AGGREGATES: dict[str, tuple[Aggregate, Callable[[list[Row]], Any]]] = {
    "a": (max_by("text", by="n"), lambda r: the_best(r, ["text"], ["n"], True)),
    "b": (max_by("n", by="real", ties="last"), lambda r: the_best(r, ["n"], ["real"], True, "last")),
    "c": (min_by("n", "text", by="text"), lambda r: the_best(r, ["n", "text"], ["text"], False)),
    "d": (max_by(by=["n", "text"]), lambda r: the_best(r, ALL, ["n", "text"], True)),
    "e": (min_by(by="pair", ties="last"), lambda r: the_best(r, ALL, ["pair"], False, "last")),
    "f": (first("text", by="ts"), lambda r: the_best(r, ["text"], ["ts"], False)),
    "g": (last("n", by="ts"), lambda r: the_best(r, ["n"], ["ts"], True, "last")),
    "h": (
        last("n", by=["ts"], ignore_nulls=True),
        lambda r: the_best([row for row in r if row[PLACE["n"]] is not None], ["n"], ["ts"], True, "last"),
    ),
    "i": (max_("pair"), lambda r: max(those_of(r, "pair"), key=rank, default=None)),
    "j": (min_("pair"), lambda r: min(those_of(r, "pair"), key=rank, default=None)),
    "k": (count_distinct("text"), lambda r: len(set(those_of(r, "text")))),
    "l": (count_distinct("real"), lambda r: len({rank(value) for value in those_of(r, "real")})),
    "m": (
        count_distinct("n", "text"),
        lambda r: len({(row[1], row[3]) for row in r if row[1] is not None and row[3] is not None}),
    ),
    "o": (top_k("n", 2), lambda r: sorted(those_of(r, "n"), reverse=True)[:2]),
    "p": (
        top_k("pair", 3, smallest=True),
        lambda r: sorted(those_of(r, "pair"), key=rank)[:3],
    ),
    "q": (count(where="chosen"), lambda r: len(chosen(r))),
    "r": (sum_("n", where="chosen"), lambda r: total(chosen(r))),
    "s": (collect("text", where="chosen"), lambda r: those_of(chosen(r), "text")),
    "t": (max_("text", where="chosen"), lambda r: max(those_of(chosen(r), "text"), default=None)),
    "u": (last("n", where="chosen"), lambda r: chosen(r)[-1][1] if chosen(r) else None),
    "v": (max_by("text", by="n", where="chosen"), lambda r: the_best(chosen(r), ["text"], ["n"], True)),
    "w": (count_distinct("text", where="chosen"), lambda r: len(set(those_of(chosen(r), "text")))),
    "x": (any_("chosen", where="chosen"), lambda r: True if chosen(r) else None),
}
#: Those whose accumulators may be columns.
NUMBERS: dict[str, tuple[Aggregate, Callable[[list[Row]], Any]]] = {
    "a": (max_by("real", by="n"), lambda r: the_best(r, ["real"], ["n"], True)),
    "b": (
        min_by("n", "ts", by=["real", "ts"], ties="last"),
        lambda r: the_best(r, ["n", "ts"], ["real", "ts"], False, "last"),
    ),
    "c": (sum_("n", where="chosen"), lambda r: total(chosen(r))),
    "d": (count("n", where="chosen"), lambda r: len(those_of(chosen(r), "n"))),
    "e": (max_("n", where="chosen"), lambda r: max(those_of(chosen(r), "n"), default=None)),
    "f": (last("n", by="ts"), lambda r: the_best(r, ["n"], ["ts"], True, "last")),
}
#: Windows do not keep the order in which rows came when they merge, so none of these depends on it.
OF_SESSIONS = {name: AGGREGATES[name] for name in "iklmopqrtwx"}
#: Nor do sliding windows, which consist of panes; in these, rows of one time keep their order.
OF_PANES = {name: NUMBERS[name] for name in "bcdef"}


def plain(value: Any) -> Any:
    """Return a value in which rows are tuples, and that equals another one with the same NaN."""
    if isinstance(value, dict):
        return tuple(plain(part) for part in value.values())
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def function_of(aggregates: Any) -> Aggregation:
    made = over_columns({name: aggregate for name, (aggregate, _) in aggregates.items()}, SCHEMA.names)
    return Aggregation(["key"], dict(zip(SCHEMA.names, SCHEMA.types, strict=True)), made)


def time_of(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, UTC)


REALS = st.sampled_from([0.0, -0.0, math.nan, 1.5, -1.5, math.inf])
VALUES = (
    st.none() | st.integers(-2, 2),
    st.none() | REALS,
    st.none() | st.sampled_from(["", "a", "b", "\U0001f600", "\uffff"]),
    st.none() | st.tuples(st.none() | st.integers(0, 1), st.none() | st.sampled_from("ab")),
    st.none() | st.booleans(),
)
KEYS = st.sampled_from(["ann", "bob", None])
ROWS = st.tuples(KEYS, *VALUES, st.none() | st.integers(0, 5).map(time_of))
STEPS = st.lists(
    st.lists(ROWS, min_size=1, max_size=8) | st.sampled_from(["epoch", "snapshot", "rescale"]), max_size=8
)


def changed(job: Harness, step: Any) -> None:
    """Restart a job, or end its epoch."""
    if step == "snapshot":
        job.restore(job.snapshot())
    elif step == "rescale":
        job.rescale(3 - job.parallelism)
    else:
        job.end_epoch()


@pytest.mark.parametrize("aggregates", [AGGREGATES, NUMBERS], ids=["objects", "columns"])
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
@pytest.mark.slow
def test_aggregates_over_epochs_and_restarts_are_those_of_all_rows(
    backend_name: str, aggregates: Any, steps: Any
) -> None:
    function = function_of(aggregates)
    seen: dict[Any, list[Row]] = {}
    with Harness(function, key="key", schema=SCHEMA, output=function.output, backend=backend_name) as job:
        for step in steps:
            if not isinstance(step, list):
                changed(job, step)
                continue
            job.end_epoch()
            job.take_outputs()
            job.process_all(step)
            for row in step:
                seen.setdefault(row[0], []).append(row)
            job.end_epoch()
            found = {row[0]: row[1:] for row in job.take_outputs()}
            assert set(found) == {row[0] for row in step}
            for key, values in found.items():
                for (name, (aggregate, by_rows)), value in zip(aggregates.items(), values, strict=True):
                    assert plain(value) == plain(by_rows(seen[key])), f"{name}: {aggregate}"


class AllAtOnce(ProcessWindowFunction):
    """Computes everything from all rows of a window."""

    def __init__(self, aggregates: Any) -> None:
        self.aggregates = aggregates

    def process(self, elements: Any, ctx: Any) -> Any:
        values = [by_rows(list(elements)) for _, by_rows in self.aggregates.values()]
        yield ctx.key, time_of(ctx.window.start), time_of(ctx.window.end), *values


TIMED = st.tuples(KEYS, *VALUES, st.integers(-10, 40).map(time_of))
WINDOW_STEPS = st.lists(
    st.lists(TIMED, min_size=1, max_size=6)
    | st.integers(-10, 60)
    | st.sampled_from(["epoch", "snapshot", "rescale"]),
    max_size=10,
)


@pytest.mark.parametrize(
    ("assigner", "aggregates"),
    [
        (Tumbling.of(10), AGGREGATES),
        (Sliding.of(9, 3), OF_PANES),
        (Session.with_gap(4), OF_SESSIONS),
        (Session.with_dynamic_gap(lambda row: 4), OF_SESSIONS),
    ],
    ids=["tumbling", "sliding in columns", "sessions", "sessions row by row"],
)
@settings(max_examples=15, deadline=None)
@given(WINDOW_STEPS)
@pytest.mark.slow
def test_aggregates_of_windows_are_those_of_all_their_rows(
    assigner: Any, aggregates: Any, steps: Any
) -> None:
    schema = function_of(aggregates).output
    bounds = [pa.field(name, SCHEMA.field("ts").type) for name in ("window_start", "window_end")]
    output = pa.schema([schema.field(0), *bounds, *list(schema)[1:]])
    arguments: Any = {"key": "key", "schema": SCHEMA, "output": output, "event_time": EventTime("ts")}
    made = windowed(assigner).aggregate({name: aggregate for name, (aggregate, _) in aggregates.items()})
    with (
        Harness(windowed(assigner).process(AllAtOnce(aggregates)), **arguments) as rows,
        Harness(made, **arguments) as columns,
    ):
        for step in [*steps, 10_000]:
            for job in (rows, columns):
                if isinstance(step, list):
                    job.process_all(step)
                elif isinstance(step, int):
                    job.advance_watermark(step)
                else:
                    changed(job, step)
            by_row, by_column = rows.take_outputs(), columns.take_outputs()
            assert sorted(repr(plain(tuple(row))) for row in by_column) == sorted(
                repr(plain(tuple(row))) for row in by_row
            )
        assert columns.num_entries() == 0


# -- the rules ----------------------------------------------------------------------------------------

SALES = pa.table(
    {
        "shop": ["n", "s", "n", "n"],
        "article": ["tea", "rice", "salt", "oil"],
        "amount": [3, 5, 9, 9],
        "paid": [True, None, False, True],
    }
)


def made_of(aggregate: Aggregate, rows: pa.Table = SALES) -> list[Any]:
    return keyed(rows, "shop").aggregate(value=aggregate).to_table().column("value").to_pylist()


def test_whole_rows_are_structs_with_all_columns_under_their_names() -> None:
    assert made_of(max_by(by="amount")) == [
        {"shop": "n", "article": "salt", "amount": 9, "paid": False},
        {"shop": "s", "article": "rice", "amount": 5, "paid": None},
    ]


def test_a_condition_that_no_row_meets_leaves_counts_at_zero_and_the_rest_null() -> None:
    rows = SALES.set_column(3, "paid", pa.array([None, False, None, False], pa.bool_()))
    for aggregate, nothing in (
        (count(where="paid"), 0),
        (count_distinct("article", where="paid"), 0),
        (top_k("amount", 2, where="paid"), []),
        (sum_("amount", where="paid"), None),
        (mean("amount", where="paid"), None),
        (stddev("amount", where="paid"), None),
        (max_by("article", by="amount", where="paid"), None),
        (max_by(by="amount", where="paid"), None),
        (first("article", where="paid"), None),
    ):
        assert made_of(aggregate, rows) == [nothing, nothing], aggregate


def test_a_name_shows_the_order_the_condition_and_the_ties() -> None:
    assert repr(max_by("a", "b", by=["c", "d"], ties="last", where="e")) == (
        "max_by(a, b by c, d ties last where e)"
    )
    assert repr(min_by(by="c")) == "min_by(* by c)"
    assert repr(sum_("a", where="e")) == "sum(a where e)"
    assert repr(top_k("a", 3, smallest=True)) == "top_k(a smallest 3)"


def test_a_column_that_is_added_to_whole_rows_is_null_in_older_ones(tmp_path: Any) -> None:
    config = {"checkpoint.dir": str(tmp_path)}
    rows = SALES.select(["shop", "amount"])
    keyed(rows, "shop", uid="best", config=config).aggregate(value=max_by(by="amount")).to_table()
    new = pa.table({"shop": ["n", "s"], "amount": [1, 7], "article": ["tea", "rice"]})
    both = pa.concat_tables([rows, new], promote_options="default")
    made = keyed(both, "shop", uid="best", config=config).aggregate(value=max_by(by="amount")).to_table()
    assert made.column("value").to_pylist() == [
        {"shop": "n", "amount": 9, "article": None},
        {"shop": "s", "amount": 7, "article": "rice"},
    ]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: max_by("article", by=[]), r"max_by\(\) is given by=\[\]; name a column"),
        (lambda: max_by("article", by=5), "max_by.* is given 5; name a column"),
        (lambda: max_by("article", by="amount", ties="any"), "ties='any'; give 'first' or 'last'"),
        (lambda: min_by(5, by="amount"), "name a column"),
        (lambda: min_by("article", by="list"), "needs values with an order"),
        (lambda: max_("list"), "needs values with an order"),
        (lambda: max_by("article", by="price"), "the rows have no column 'price'"),
        (lambda: count_distinct(), "count_distinct.. has no column"),
        (lambda: count_distinct("list"), "values that have a hash"),
        (lambda: top_k("amount", 0), "k=0; give a number from 1"),
        (lambda: top_k("amount", True), "k=True; give a number from 1"),
        (lambda: top_k("list", 1), "needs values with an order"),
        (lambda: count(where="amount"), "where='amount' needs booleans, .* int64"),
        (lambda: count(where="paied"), "no column 'paied', but .*paid.* Did you mean 'paid'"),
        (lambda: sum_("amount", where=5), "name a column"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_the_way_out(declare: Any, message: str) -> None:
    rows = SALES.append_column("list", pa.array([[1]] * 4))
    with pytest.raises(InvalidAggregateError, match=message):
        made_of(declare(), rows)
