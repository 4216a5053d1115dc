"""Deduplication by columns against the same row by row, and its rules."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyedstate import types
from keyedstate.errors import InvalidRankingError, MissingTimestampError, UserFunctionError
from keyedstate.local import keyed
from keyedstate.ranking import deduplicate
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.state import Ttl, ValueState
from keyedstate.testing import Harness
from keyedstate.time import EventTime

UTC = dt.timezone.utc
SCHEMA = "user string, n long, real double, text string, ts timestamp"


def time_of(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, UTC)


def number_of(value: Any) -> Any:
    return (True, 0.0) if isinstance(value, float) and math.isnan(value) else (False, value)


class RowByRow(KeyedProcessFunction):
    """Yields a row where it is the first, or better than those before; the last one of an epoch counts."""

    kept = ValueState("kept", types.pickled())

    def __init__(self, keep: str, by: list[str]) -> None:
        self.keep, self.by = keep, by

    def process(self, row: Any, ctx: Any) -> Any:
        order = [getattr(row, name) for name in self.by]
        if None in order:
            return
        order = [number_of(value) for value in order]
        stored = self.kept.value()
        better = stored is None or (order >= stored if self.keep == "last" else order < stored)
        if better:
            self.kept.update(order)
            yield row


class FirstWithin(KeyedProcessFunction):
    """Yields the first row of a key, and rows that are not within a time of the one before."""

    time = ValueState("time", types.INT64)

    def process(self, row: Any, ctx: Any) -> Any:
        if ctx.timestamp < ctx.watermark:
            return
        stored = self.time.value()
        if stored is None or ctx.timestamp >= stored + 5:
            self.time.update(ctx.timestamp)
            yield row

    def on_timer(self, time: int, ctx: Any) -> Any:
        return []


ROWS = st.tuples(
    st.sampled_from(["ann", "bob", None]),
    st.none() | st.integers(-2, 2),
    st.none() | st.sampled_from([0.0, -0.0, math.nan, 1.5]),
    st.none() | st.sampled_from(["", "a", "b"]),
    st.integers(-10, 40).map(time_of),
)
STEPS = st.lists(
    st.lists(ROWS, min_size=1, max_size=8) | st.sampled_from(["snapshot", "rescale"]), max_size=8
)


def last_by_key(rows: list[Any]) -> list[str]:
    return sorted(map(repr, {row[0]: tuple(row) for row in rows}.values()))


def restarted(job: Harness, step: str) -> None:
    if step == "snapshot":
        job.restore(job.snapshot())
    elif step == "rescale":
        job.rescale(3 - job.parallelism)


@pytest.mark.parametrize(
    ("keep", "by"),
    [("first", None), ("last", None), ("last", ["n"]), ("first", ["real", "n"]), ("last", ["text", "real"])],
    ids=str,
)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
@pytest.mark.slow
def test_columns_and_rows_keep_the_same(backend_name: str, keep: str, by: Any, steps: Any) -> None:
    arguments: Any = {"key": "user", "schema": SCHEMA, "output": SCHEMA, "backend": backend_name}
    with (
        Harness(RowByRow(keep, by or []), **{**arguments, "backend": "heap-cow"}) as rows,
        Harness(deduplicate(keep=keep, by=by), **arguments) as columns,
    ):
        for step in steps:
            for job in (rows, columns):
                if isinstance(step, list):
                    job.process_all(step[:2])
                    job.process_all(step[2:])
                    job.end_epoch()
                else:
                    restarted(job, step)
            assert last_by_key(columns.take_outputs()) == last_by_key(rows.take_outputs())


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(ROWS, min_size=1, max_size=8) | st.integers(-10, 60) | st.just("rescale"), max_size=10)
)
def test_rows_within_a_time_of_a_kept_one_are_duplicates(backend_name: str, steps: Any) -> None:
    arguments: Any = {"key": "user", "schema": SCHEMA, "output": SCHEMA, "event_time": EventTime("ts")}
    with (
        Harness(FirstWithin(), **arguments) as rows,
        Harness(deduplicate(within=5), **arguments, backend=backend_name) as columns,
    ):
        for step in [*steps, 10_000]:
            for job in (rows, columns):
                if isinstance(step, list):
                    job.process_all(step)
                elif isinstance(step, int):
                    job.advance_watermark(step)
                else:
                    restarted(job, step)
            by_row, by_column = rows.take_outputs(), columns.take_outputs()
            assert sorted(map(repr, map(tuple, by_column))) == sorted(map(repr, map(tuple, by_row)))
        assert columns.num_entries() == 0


@pytest.mark.parametrize("before", [{}, {"by": "n"}, {"by": "n", "keep": "last"}])
def test_a_key_without_a_time_is_new_where_rows_within_a_time_are_duplicates(
    backend_name: str, before: dict[str, str]
) -> None:
    snapshot = None
    found = []
    for arguments, times in (({"within": 5}, [1]), (before, [2]), ({"within": 5}, [10, 11, 15])):
        with Harness(
            deduplicate(**arguments),
            key="user",
            schema=SCHEMA,
            output=SCHEMA,
            event_time=EventTime("ts"),
            backend=backend_name,
            restore=snapshot,
        ) as job:
            job.process_all([("ann", time, None, None, time_of(time)) for time in times])
            job.end_epoch()
            found = [row.n for row in job.take_outputs()]
            snapshot = job.snapshot()
            job.advance_watermark(100)
            entries = job.num_entries()
    assert found == [10, 15]
    assert entries == 0


@pytest.mark.parametrize(("later", "ends"), [(5, 20), (20, 30)])
def test_the_time_within_which_rows_are_duplicates_may_change(later: int, ends: int) -> None:
    """Also that of a key which never returns: its state goes in the end."""
    arguments: Any = {"key": "user", "schema": SCHEMA, "output": SCHEMA, "event_time": EventTime("ts")}
    with Harness(deduplicate(within=10), **arguments) as before:
        before.process(("ann", 1, 1.0, "", time_of(10)))
        snapshot = before.snapshot()
    with Harness(deduplicate(within=later), **arguments) as job:
        job.restore(snapshot)
        job.advance_watermark(ends - 2)
        assert job.num_entries("kept-row") == 1
        job.advance_watermark(ends + 1)
        assert job.num_entries() == 0


def test_in_processing_time_a_key_is_forgotten_after_the_time() -> None:
    with Harness(deduplicate(within="5 s"), key="user", schema="user string", output="user string") as job:
        assert len(job.process_all([("ann",), ("bob",), ("ann",)])) == 2
        job.advance_processing_time("4 s")
        assert job.process(("ann",)) == []
        job.advance_processing_time("2 s")
        assert job.process(("ann",)) == [("ann",)]


def test_keys_that_are_forgotten_after_a_time_to_live_are_kept_again() -> None:
    function = deduplicate(keep="last", by="n", ttl=Ttl.of("5 s"))
    schema = "user string, n long"
    with Harness(function, key="user", schema=schema, output=schema) as job:
        job.process(("ann", 3))
        assert job.end_epoch() == [("ann", 3)]
        job.process(("ann", 2))
        assert job.end_epoch() == []
        job.advance_processing_time("6 s")
        job.process(("ann", 2))
        assert job.end_epoch() == [("ann", 2)]


def test_a_local_run_returns_whole_rows_with_several_key_columns() -> None:
    rows = pa.table({"a": [1, 1, 2, 1], "b": ["x", "y", "x", "x"], "v": [1.0, 2.0, 3.0, 4.0]})
    out = keyed(rows, "a", "b").deduplicate(keep="last", by="v").to_table()
    assert out.schema == rows.schema
    assert sorted(out.column("v").to_pylist()) == [2.0, 3.0, 4.0]


def test_a_row_without_event_time_is_refused() -> None:
    with (
        Harness(
            deduplicate(within=5), key="user", schema=SCHEMA, output=SCHEMA, event_time=EventTime("ts")
        ) as job,
        pytest.raises(UserFunctionError) as caught,
    ):
        job.process(("ann", 1, 1.0, "", None))
    assert isinstance(caught.value.__cause__, MissingTimestampError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "any"}, "keep='any' is no choice. Give 'first' or 'last'"),
        ({"within": 0}, "within=0 is no time"),
        ({"within": 5, "keep": "last"}, "within= is for the first row"),
        ({"within": 5, "ttl": Ttl.of("1 s")}, "ttl= has no use here. Give one of both"),
        ({"keep": "last", "ttl": Ttl.of("1 s")}, "ttl= has no use here. Leave it out"),
        ({"ttl": 5}, "its ttl is 5"),
        ({"by": "price"}, "no column 'price', but a, list. Name one of these"),
        ({"by": "list"}, "needs values with an order"),
        ({"by": 5}, "is given 5"),
    ],
)
def test_what_cannot_be_declared_is_refused_with_the_way_out(options: Any, message: str) -> None:
    rows = keyed(pa.table({"a": [1], "list": [[1]]}), "a")
    with pytest.raises(InvalidRankingError, match=message):
        rows.deduplicate(**options)
