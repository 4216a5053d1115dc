"""Windows that are aggregated by columns give what the window operator gives row by row."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyedstate import types
from keyedstate.runtime.aggregates import collect, count, max_, mean, sum_
from keyedstate.runtime.windows import windowed
from keyedstate.runtime.windows.aggregation import WindowedAggregation
from keyedstate.state import AggregateFunction
from keyedstate.testing import Harness
from keyedstate.window import Sliding, Tumbling

UTC = dt.timezone.utc
SCHEMA = "user string, v long, ts timestamp"
RESULT = "user: string, window_start: timestamp, window_end: timestamp, n: long, total: long, most: long"
OUTPUT = (
    f"output string, main struct<{RESULT}>, missing struct<user: string, v: long, ts: timestamp>, "
    "late struct<user: string, v: long, ts: timestamp>"
)


class Statistics(AggregateFunction[Any, Any, Any]):
    """Row by row, in plain Python: number, sum and maximum."""

    def create_accumulator(self) -> Any:
        return 0, None, None

    def add(self, value: Any, accumulator: Any) -> Any:
        rows, total, most = accumulator
        if value.v is None:
            return rows + 1, total, most
        return rows + 1, (total or 0) + value.v, value.v if most is None else max(most, value.v)

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


SUMS = types.tuple_of(types.INT64, types.nullable(types.INT64), types.nullable(types.INT64))

ROWS = st.tuples(
    st.sampled_from(["ann", "bob", None, "eve"]),
    st.none() | st.integers(-100, 100),
    st.none() | st.integers(-10, 40).map(lambda ms: dt.datetime.fromtimestamp(ms / 1000, UTC)),
)
STEPS = st.lists(
    st.lists(ROWS, min_size=1, max_size=8)
    | st.integers(-10, 60)
    | st.sampled_from(["snapshot", "epoch", "rescale"]),
    max_size=12,
)
WINDOWS = st.one_of(
    st.builds(
        lambda size, offset: Tumbling.of(size, offset=offset % size),
        st.integers(1, 12),
        st.integers(0, 12),
    ),
    st.builds(
        lambda size, slide, offset: Sliding.of(size, slide, offset=offset % slide),
        st.integers(1, 12),
        st.integers(2, 12),
        st.integers(0, 12),
    ),
)


def declared(assigner: Any, lateness: int) -> Any:
    windows = windowed(assigner, missing="side output").side_output_late_data()
    return windows.allowed_lateness(lateness)


def told(outputs: list[Any]) -> tuple[list[Any], dict[Any, Any], list[Any]]:
    """Return the rows that went aside, the last firing of each window, and which windows fired."""
    aside = sorted(repr(row) for row in outputs if row[0] != "main")
    fired = [row[1] for row in outputs if row[0] == "main"]
    last = {(row[0], row[1], row[2]): tuple(row[3:]) for row in fired}
    return aside, last, sorted(map(repr, last))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WINDOWS, st.sampled_from([0, 1, 9]), STEPS)
def test_columns_and_rows_give_the_same(one_backend: str, assigner: Any, lateness: int, steps: Any) -> None:
    """WIN-01, WIN-02, WIN-14, WIN-16 over random rows, out of order and late, with restarts.

    Rows of one call that come late to a window make one firing by columns, and one each row by row: what
    is compared after each step is the last firing of every window.
    """
    by_rows = declared(assigner, lateness).aggregate_with(Statistics(), SUMS)
    by_columns = declared(assigner, lateness).aggregate(n=count(), total=sum_("v"), most=max_("v"))
    arguments: Any = {"key": "user", "schema": SCHEMA, "output": OUTPUT, "time": "ts", "backend": one_backend}
    with Harness(by_rows, **arguments) as rows, Harness(by_columns, **arguments) as columns:
        assert isinstance(columns.instances[0].function, WindowedAggregation)
        for step in [*steps, 10_000]:
            for job in (rows, columns):
                if isinstance(step, list):
                    job.process_all(step)
                elif isinstance(step, int):
                    job.advance_watermark(step)
                elif step == "snapshot":
                    job.restore(job.snapshot())
                elif step == "rescale":
                    job.rescale(3 - job.parallelism)
                else:
                    job.end_epoch()
            assert told(rows.take_outputs()) == told(columns.take_outputs())
        assert rows.num_entries() == columns.num_entries() == 0


@pytest.fixture
def one_backend() -> str:
    """Any will do: what differs is above the backend."""
    return "heap-cow"


def test_a_batch_over_many_windows_and_keys_of_several_columns(backend_name: str) -> None:
    function = windowed(Sliding.of("10 s", "2 s")).aggregate(n=count(), mean=mean("v"), all=collect("v"))
    start = dt.datetime(2024, 5, 1, tzinfo=UTC)
    rows = [
        (f"user {number % 7}", number % 3 or None, float(number), start + dt.timedelta(seconds=number % 100))
        for number in range(2000)
    ]
    arguments: Any = {
        "key": ("user", "room"),
        "schema": "user string, room int, v double, ts timestamp",
        "time": "ts",
        "output": "user string, room int, window_start timestamp, window_end timestamp, n long, mean double, "
        "all array<double>",
    }
    with Harness(function, backend=backend_name, parallelism=2, **arguments) as job:
        job.process_all(rows)
        job.rescale(1)
        out = job.advance_watermark(start + dt.timedelta(days=1))
        assert job.num_entries() == 0
    expected: dict[Any, list[float]] = {}
    for user, room, value, time in rows:
        second = int((time - start).total_seconds())
        for first in range(second - second % 2, second - 10, -2):
            begin = start + dt.timedelta(seconds=first)
            expected.setdefault((user, room, begin), []).append(value)
    assert {row[:3]: row[4] for row in out} == {key: len(values) for key, values in expected.items()}
    for row in out:
        values = expected[row[:3]]
        assert row.mean == pytest.approx(sum(values) / len(values)) and row.all == values


def test_sums_that_leave_their_type_are_refused_with_the_key(backend_name: str) -> None:
    function = windowed(Tumbling.of(10)).aggregate(total=sum_("v"))
    output = "user string, window_start timestamp, window_end timestamp, total long"
    with Harness(function, key="user", schema=SCHEMA, time="ts", output=output, backend=backend_name) as job:
        now = dt.datetime.fromtimestamp(0, UTC)
        job.process(("ann", 2**63 - 1, now))
        with pytest.raises(Exception, match=r"sum\(v\).*'ann'"):
            job.process(("ann", 1, now))


def test_a_lateness_beyond_the_end_of_time_keeps_windows_for_good() -> None:
    """WIN-15: no row is late, by columns as row by row."""
    windows = windowed(Sliding.of(5, 10)).allowed_lateness(2**64).aggregate(n=count())
    output = "user string, window_start timestamp, window_end timestamp, n long"
    with Harness(windows, key="user", schema=SCHEMA, output=output, time="ts", backend="heap-cow") as job:
        job.advance_watermark(1_000)
        assert [row.n for row in job.process(("ann", 1, dt.datetime.fromtimestamp(0, UTC)))] == [1]
        assert job.process(("ann", 1, dt.datetime.fromtimestamp(0.007, UTC))) == []
        assert job.instances[0].function.late_rows_dropped == 0


@pytest.mark.parametrize("by_columns", [True, False])
def test_a_late_row_makes_one_firing_although_a_window_before_goes_at_the_end_of_its_own(
    by_columns: bool,
) -> None:
    """WIN-14: the timer that lets the first window go is due when the second one has begun late."""
    windows = windowed(Tumbling.of(10)).allowed_lateness(10)
    output = "user string, window_start timestamp, window_end timestamp, n long, total long, most long"
    made = (
        windows.aggregate(n=count(), total=sum_("v"), most=max_("v"))
        if by_columns
        else windows.aggregate_with(Statistics(), SUMS)
    )

    def row(user: str, ms: int) -> Any:
        return user, 1, dt.datetime.fromtimestamp(ms / 1000, UTC)

    with Harness(
        made, key="user", schema=SCHEMA, output=output, time="ts", backend="heap-cow", delay=0
    ) as job:
        job.process_all([row("ann", 5), row("bob", 12), row("eve", 21)])
        assert job.end_epoch() == []
        fired = job.process_all([row("ann", 15), row("bob", 13)])
        assert sorted((one.user, one.window_start.microsecond, one.n) for one in fired) == [
            ("ann", 0, 1),
            ("ann", 10_000, 1),
            ("bob", 10_000, 1),
            ("bob", 10_000, 2),
        ]
        assert job.end_epoch() == []
        job.process(row("ann", 16))
        assert job.end_epoch() == []
        assert [one.user for one in job.advance_watermark(100)] == ["eve"]
        assert job.num_entries() == 0
