"""The first rows of each key by columns against the same row by row, and the rules."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyedstate import types
from keyedstate.aggregates import top_by
from keyedstate.errors import InvalidAggregateError, InvalidRankingError, UserFunctionError
from keyedstate.local import keyed
from keyedstate.ranking import top_n
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.state import Ttl, ValueState
from keyedstate.testing import Harness
from keyedstate.time import EventTime
from keyedstate.windows import ProcessWindowFunction, Session, Sliding, Tumbling, windowed

UTC = dt.timezone.utc
SCHEMA = "user string, n long, real double, text string, ts timestamp"
RANKED = SCHEMA + ", rank int not null"
IN_WINDOWS = SCHEMA + ", window_start timestamp, window_end timestamp, rank int not null"
DAY = dt.datetime(2024, 5, 1, tzinfo=UTC)


def comparable(row: Any, by: str) -> Any:
    value = row[("user", "n", "real", "text", "ts").index(by)]
    return (True, 0.0) if isinstance(value, float) and math.isnan(value) else (False, value)


def first_rows(rows: list[Any], n: int, by: list[str], descending: list[bool]) -> list[Any]:
    rows = [row for row in rows if all(comparable(row, name)[1] is not None for name in by)]
    for name, falls in zip(reversed(by), reversed(descending), strict=True):
        rows = sorted(rows, key=lambda row: comparable(row, name), reverse=falls)
    return rows[:n]


class RowByRow(KeyedProcessFunction):
    """Keeps all rows of a key and yields its first ones with their ranks, at each row."""

    rows = ValueState("rows", types.pickled(), default=[])

    def __init__(self, n: int, by: list[str], descending: list[bool]) -> None:
        self.order = n, by, descending

    def process(self, row: Any, ctx: Any) -> Any:
        rows = [*self.rows.value(), tuple(row)]
        self.rows.update(rows)
        for rank, first in enumerate(first_rows(rows, *self.order), 1):
            yield *first, rank


ROWS = st.tuples(
    st.sampled_from(["ann", "bob", None]),
    st.none() | st.integers(-2, 2),
    st.none() | st.sampled_from([0.0, 2.5, math.nan, 1.5]),
    st.none() | st.sampled_from(["", "a", "b"]),
    st.integers(-10, 40).map(lambda ms: DAY + dt.timedelta(milliseconds=ms)),
)
STEPS = st.lists(
    st.lists(ROWS, min_size=1, max_size=8) | st.sampled_from(["snapshot", "rescale"]), max_size=8
)


def changed(job: Harness, step: Any) -> None:
    """Restart a job."""
    if step == "snapshot":
        job.restore(job.snapshot())
    else:
        job.rescale(3 - job.parallelism)


def at_ranks(rows: list[Any], shown: dict[Any, str]) -> dict[Any, str]:
    """Return the rows that are shown at each key and rank, once some more have come."""
    for row in rows:
        shown[row[0], row[-1]] = repr(tuple(row))
    return shown


@pytest.mark.parametrize(
    ("n", "by", "descending"),
    [(1, ["n"], [True]), (2, ["real"], [False]), (3, ["text", "n"], [False, True])],
    ids=str,
)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
@pytest.mark.slow
def test_columns_and_rows_show_the_same_at_each_rank(
    backend_name: str, n: int, by: Any, descending: Any, steps: Any
) -> None:
    arguments: Any = {"key": "user", "schema": SCHEMA, "output": RANKED}
    by_rows: dict[Any, str] = {}
    by_columns: dict[Any, str] = {}
    with (
        Harness(RowByRow(n, by, descending), **arguments) as rows,
        Harness(top_n(n, by=by, descending=descending), **arguments, backend=backend_name) as columns,
    ):
        for step in steps:
            for job in (rows, columns):
                if isinstance(step, list):
                    job.process_all(step[:2])
                    job.process_all(step[2:])
                    job.end_epoch()
                else:
                    changed(job, step)
            at_ranks(rows.take_outputs(), by_rows)
            assert at_ranks(columns.take_outputs(), by_columns) == by_rows


class FirstOfWindow(ProcessWindowFunction):
    """Yields the first rows of a window."""

    def process(self, elements: Any, ctx: Any) -> Any:
        bounds = (dt.datetime.fromtimestamp(ms / 1000, UTC) for ms in (ctx.window.start, ctx.window.end))
        start, end = bounds
        for rank, row in enumerate(first_rows(list(map(tuple, elements)), 2, ["n", "ts"], [True, False]), 1):
            yield *row, start, end, rank


@pytest.mark.parametrize("assigner", [Tumbling.of(10), Sliding.of(9, 3), Session.with_gap(4)], ids=repr)
@settings(max_examples=5, deadline=None)
@given(
    st.lists(
        st.lists(ROWS, min_size=1, max_size=6, unique_by=lambda row: (row[0], row[4])) | st.just("rescale"),
        max_size=8,
    )
)
def test_the_first_rows_of_windows_are_those_of_all_their_rows(assigner: Any, steps: Any) -> None:
    arguments: Any = {"key": "user", "schema": SCHEMA, "output": IN_WINDOWS, "event_time": EventTime("ts")}
    made = top_n(2, by=["n", "ts"], descending=[True, False], within=assigner)
    with (
        Harness(windowed(assigner).process(FirstOfWindow()), **arguments) as rows,
        Harness(made, **arguments) as columns,
    ):
        for step in steps:
            for job in (rows, columns):
                if isinstance(step, list):
                    job.process_all(step)
                else:
                    changed(job, step)
        for job in (rows, columns):
            job.advance_watermark(DAY + dt.timedelta(days=1))
        # Rows that are equal in the order may come in another one where sessions merge.
        found, expected = (
            sorted(repr((row[0], row[1], *row[4:])) for row in job.take_outputs()) for job in (columns, rows)
        )
        assert found == expected
        assert columns.num_entries() == 0


BIDS = pa.table({"bidder": ["ann", "bob", "eve", "joe"], "auction": [1, 1, 2, 1], "price": [10, 12, 7, 11]})


def test_only_ranks_with_another_row_are_emitted_or_all_of_a_key() -> None:
    schema = "k string, v long"
    ranked = schema + ", rank int not null"
    for emit, expected in (("changed", [("a", 6, 2)]), ("all", [("a", 9, 1), ("a", 6, 2)])):
        with Harness(top_n(2, by="v", emit=emit), key="k", schema=schema, output=ranked) as job:
            job.process_all([("a", 9), ("a", 5), ("b", 1)])
            assert len(job.end_epoch()) == 3
            job.process_all([("a", 6), ("b", None)])
            assert job.end_epoch() == expected
            job.process_all([("a", 2)])
            assert job.end_epoch() == []


@pytest.mark.parametrize(
    ("order", "shown"),
    [
        ({"by": "n", "descending": False}, "n ascending"),
        ({"by": "real"}, "real descending"),
        ({"by": ["n", "real"], "descending": [True, False]}, "n descending, real ascending"),
    ],
)
def test_another_order_refuses_the_first_rows_of_the_former_one(
    backend_name: str, order: dict[str, Any], shown: str
) -> None:
    arguments: Any = {"key": "user", "schema": SCHEMA, "output": RANKED, "backend": backend_name}
    with Harness(top_n(2, by="n"), **arguments) as job:
        job.process_all([("ann", n, 0.0, "", DAY) for n in (1, 5, 9)])
        job.end_epoch()
        snapshot = job.snapshot()
    refused = f"the order is {shown}, and the restored state has the first rows by n descending.*a new uid"
    with pytest.raises(UserFunctionError, match=refused):
        Harness(top_n(2, **order), **arguments, restore=snapshot)
    with Harness(top_n(1, by="n"), **arguments, restore=snapshot) as job:
        job.process(("ann", 10, 0.0, "", DAY))
        assert [(row.n, row.rank) for row in job.end_epoch()] == [(10, 1)]


def test_windows_may_be_in_processing_time() -> None:
    """WIN-01 by the clock."""
    schema, output = "k string, v long", "k string, v long, window_start timestamp, window_end timestamp"
    function = top_n(1, by="v", within=Tumbling.of("5 s", processing_time=True))
    with Harness(function, key="k", schema=schema, output=output + ", rank int not null") as job:
        job.process_all([("a", 5), ("a", 9), ("b", 1)])
        job.restore(job.snapshot())
        job.process_all([("a", 7)])
        fired = job.advance_processing_time("5 s")
        assert sorted((row[0], row[1], row[4]) for row in fired) == [("a", 9, 1), ("b", 1, 1)]
        job.process_all([("a", 2)])
        assert [(row[0], row[1]) for row in job.advance_processing_time("5 s")] == [("a", 2)]
        assert job.num_entries() == 0


def test_rows_are_forgotten_after_a_time_to_live() -> None:
    schema = "k string, v long"
    function = top_n(1, by="v", ttl=Ttl.of("5 s"))
    with Harness(function, key="k", schema=schema, output=schema + ", rank int not null") as job:
        job.process(("a", 9))
        job.end_epoch()
        job.advance_processing_time("6 s")
        job.process(("a", 5))
        assert job.end_epoch() == [("a", 5, 1)]


def test_a_local_run_returns_whole_rows_and_an_aggregate_arrays_of_them() -> None:
    out = keyed(BIDS, "auction").top_n(2, by="price", rank="place").to_table()
    assert out.schema.names == ["bidder", "auction", "price", "place"]
    assert out.column("bidder").to_pylist() == ["bob", "joe", "eve"]
    arrays = keyed(BIDS, "auction").aggregate(top=top_by(2, "bidder", by="price")).to_table()
    assert arrays.column("top").to_pylist() == [[{"bidder": "bob"}, {"bidder": "joe"}], [{"bidder": "eve"}]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n=0 is no number of rows. Give a number from 1"),
        ({"by": []}, "it is given by=..; name a column"),
        ({"by": "prize"}, "no column 'prize', but bidder, auction, price, list. Name one of these"),
        ({"by": "list"}, "needs values with an order"),
        ({"descending": [True, False]}, "descending=.True, False.; give a boolean, or one for each of price"),
        ({"emit": "some"}, "emit='some' is no choice"),
        ({"rank": "price"}, "a column 'price' already. Name the column of the rank with rank="),
        ({"rank": ""}, "rank='' is no name"),
        ({"ttl": 5}, "its ttl is 5"),
        ({"within": Tumbling.of(5), "emit": "all"}, "have no use with within="),
        ({"within": Session.with_gap(5, processing_time=True)}, "is not computed by columns"),
    ],
)
def test_what_cannot_be_declared_is_refused_with_the_way_out(options: Any, message: str) -> None:
    rows = keyed(BIDS.append_column("list", pa.array([[1]] * 4)), "auction")
    arguments = {"n": 2, "by": "price", **options}
    with pytest.raises(InvalidRankingError, match=message):
        rows.top_n(arguments.pop("n"), **arguments)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: top_by(0, by="price"), "k=0; give a number from 1"),
        (lambda: top_by(1, by="price", descending=1), "descending=1; give a boolean"),
        (lambda: top_by(1, 5, by="price"), "name a column"),
    ],
)
def test_a_wrong_aggregate_is_refused(declare: Any, message: str) -> None:
    with pytest.raises(InvalidAggregateError, match=message):
        declare()
