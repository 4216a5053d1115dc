"""Windows that are aggregated by columns give what the window operator gives row by row."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyedstate import types
from keyedstate.aggregates import collect, count, max_, mean, sum_
from keyedstate.state import AggregateFunction
from keyedstate.testing import Harness
from keyedstate.time import EventTime
from keyedstate.windows import Session, Sliding, Tumbling, windowed
from keyedstate.windows.columnar.aggregation import WindowedAggregation
from keyedstate.windows.columnar.session_aggregation import SessionAggregation

UTC = dt.timezone.utc
SCHEMA = "user string, v long, ts timestamp"
OUTPUT = "user string, window_start timestamp, window_end timestamp, n long, total long, most long"


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

    def merge(self, a: Any, b: Any) -> Any:
        (rows, total, most), (more, other, largest) = a, b
        if other is None or total is None:
            return rows + more, other if total is None else total, largest if most is None else most
        return rows + more, total + other, max(most, largest)


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


PROCESSING_WINDOWS = st.one_of(
    st.builds(lambda size: Tumbling.of(size, processing_time=True), st.integers(1, 12)),
    st.builds(
        lambda size, slide, offset: Sliding.of(size, slide, offset=offset % slide, processing_time=True),
        st.integers(1, 12),
        st.integers(2, 12),
        st.integers(0, 12),
    ),
)


def declared(assigner: Any, lateness: int) -> Any:
    windows = windowed(assigner, missing="side output").side_output_late_data()
    return windows.allowed_lateness(lateness)


def recorded(fired: list[Any]) -> tuple[dict[Any, Any], list[Any]]:
    """Return the last firing of each window, and which windows fired."""
    last = {(row[0], row[1], row[2]): tuple(row[3:]) for row in fired}
    return last, sorted(map(repr, last))


def aside(job: Harness) -> list[str]:
    """Return the rows that went aside."""
    return sorted(repr((name, row)) for name in ("missing", "late") for row in job.side_output(name))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WINDOWS, st.sampled_from([0, 1, 9]), STEPS)
@pytest.mark.slow
def test_columns_and_rows_give_the_same(backend_name: str, assigner: Any, lateness: int, steps: Any) -> None:
    """WIN-01, WIN-02, WIN-14, WIN-16 over random rows, out of order and late, with restarts.

    Rows of one call that come late to a window make one firing by columns, and one each row by row: what
    is compared after each step is the last firing of every window.
    """
    by_rows = declared(assigner, lateness).aggregate_with(Statistics(), SUMS)
    by_columns = declared(assigner, lateness).aggregate(n=count(), total=sum_("v"), most=max_("v"))
    arguments: Any = {
        "key": "user",
        "schema": SCHEMA,
        "output": OUTPUT,
        "event_time": EventTime("ts"),
        "backend": backend_name,
    }
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
            assert aside(rows) == aside(columns)
            assert recorded(rows.take_outputs()) == recorded(columns.take_outputs())
        assert rows.num_entries() == columns.num_entries() == 0


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PROCESSING_WINDOWS, STEPS)
@pytest.mark.slow
def test_columns_and_rows_give_the_same_in_processing_time(
    backend_name: str, assigner: Any, steps: Any
) -> None:
    """WIN-01, WIN-02 by the clock, with restarts."""
    by_rows = windowed(assigner).aggregate_with(Statistics(), SUMS)
    by_columns = windowed(assigner).aggregate(n=count(), total=sum_("v"), most=max_("v"))
    arguments: Any = {"key": "user", "schema": SCHEMA, "output": OUTPUT, "backend": backend_name}
    with Harness(by_rows, **arguments) as rows, Harness(by_columns, **arguments) as columns:
        assert isinstance(columns.instances[0].function, WindowedAggregation)
        for step in [*steps, 10_000]:
            for job in (rows, columns):
                if isinstance(step, list):
                    job.process_all(step)
                elif isinstance(step, int):
                    job.advance_processing_time(max(step, 0))
                elif step == "snapshot":
                    job.restore(job.snapshot())
                elif step == "rescale":
                    job.rescale(3 - job.parallelism)
                else:
                    job.end_epoch()
            assert sorted(map(repr, rows.take_outputs())) == sorted(map(repr, columns.take_outputs()))
        assert rows.num_entries() == columns.num_entries() == 0


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(WINDOWS, STEPS), min_size=2, max_size=3)
    | st.lists(st.tuples(PROCESSING_WINDOWS, STEPS), min_size=2, max_size=3)
)
def test_windows_that_an_earlier_run_declared_end_as_row_by_row(backend_name: str, runs: Any) -> None:
    """Each run has other windows than the one before, of another size, slide or offset."""
    snapshots: list[Any] = [None, None]
    arguments: Any = {"key": "user", "schema": SCHEMA, "output": OUTPUT, "event_time": EventTime("ts")}
    now = -10
    for number, (assigner, steps) in enumerate(runs):
        by_rows = declared(assigner, 0) if assigner.is_event_time else windowed(assigner)
        functions = (
            by_rows.aggregate_with(Statistics(), SUMS),
            by_rows.aggregate(n=count(), total=sum_("v"), most=max_("v")),
        )
        jobs = [
            Harness(function, **arguments, backend=backend_name, restore=snapshot)
            for function, snapshot in zip(functions, snapshots, strict=True)
        ]
        for step in [*steps, 10_000] if number == len(runs) - 1 else steps:
            outputs = []
            now = max(now, step) if isinstance(step, int) else now
            for job in jobs:
                if isinstance(step, list):
                    job.process_all(step)
                elif step == "snapshot":
                    job.restore(job.snapshot())
                elif step == "rescale":
                    job.rescale(3 - job.parallelism)
                elif step == "epoch":
                    job.end_epoch()
                elif assigner.is_event_time:
                    job.advance_watermark(now)
                else:
                    job.set_processing_time(max(now, 0))
                outputs.append(recorded(job.take_outputs()))
            assert outputs[0] == outputs[1]
        snapshots = [job.snapshot() for job in jobs]
        entries = [job.num_entries() for job in jobs]
        for job in jobs:
            job.close()
    assert entries == [0, 0]


def ended(outputs: list[Any]) -> dict[Any, Any]:
    """Return what sessions gave that did not become part of a later one."""
    last, _ = recorded(outputs)
    return {
        session: result
        for session, result in last.items()
        if not any(
            other != session and other[0] == session[0] and other[1] <= session[1] and other[2] >= session[2]
            for other in last
        )
    }


def walk(seed: int, steps: int) -> list[Any]:
    """Return rows around a watermark that advances, with restarts in between."""
    draw = random.Random(seed)
    made: list[Any] = []
    now = 0
    for _ in range(steps):
        kind = draw.random()
        if kind < 0.3:
            now += draw.randint(0, 12)
            made.append(now)
        elif kind < 0.35:
            made.append(draw.choice(["snapshot", "epoch", "rescale"]))
        else:
            times = [now + draw.randint(-25, 25) for _ in range(draw.randint(1, 8))]
            made.append(
                [
                    (
                        draw.choice(["ann", "bob", None]),
                        draw.choice([None, draw.randint(-9, 9)]),
                        None if draw.random() < 0.02 else dt.datetime.fromtimestamp(time / 1000, UTC),
                    )
                    for time in times
                ]
            )
    return made


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize(
    ("gap", "lateness"),
    [(3, 0), *(pytest.param(*pair, marks=pytest.mark.long) for pair in ((9, 0), (4, 1), (1, 30))), (5, 13)],
)
@pytest.mark.slow
def test_sessions_by_columns_and_by_rows_give_the_same(gap: int, lateness: int, one_by_one: bool) -> None:
    """MW-01, WIN-14, WIN-16 over random rows, out of order and late, with restarts.

    Row by row, and without lateness, both give the same at every step.  Late rows of one call make one firing
    by columns, of the sessions that are there behind them: those before it that became these are left out.
    """
    by_rows = declared(Session.with_gap(gap), lateness).aggregate_with(Statistics(), SUMS)
    by_columns = declared(Session.with_gap(gap), lateness).aggregate(
        n=count(), total=sum_("v"), most=max_("v")
    )
    arguments: Any = {
        "key": "user",
        "schema": SCHEMA,
        "output": OUTPUT,
        "event_time": EventTime("ts"),
        "backend": "heap-cow",
    }
    with Harness(by_rows, **arguments) as rows, Harness(by_columns, **arguments) as columns:
        assert isinstance(columns.instances[0].function, SessionAggregation)
        for step in [*walk(gap + lateness, 150), 10_000]:
            before = len(rows.outputs), len(columns.outputs)
            for job in (rows, columns):
                if isinstance(step, list):
                    for some in [[row] for row in step] if one_by_one else [step]:
                        job.process_all(some)
                elif isinstance(step, int):
                    job.advance_watermark(step)
                elif step == "snapshot":
                    job.restore(job.snapshot())
                elif step == "rescale":
                    job.rescale(3 - job.parallelism)
                else:
                    job.end_epoch()
            assert aside(rows) == aside(columns)
            by_row, by_column = rows.outputs[before[0] :], columns.outputs[before[1] :]
            if one_by_one or not lateness:
                assert sorted(map(repr, by_row)) == sorted(map(repr, by_column))
            else:
                (last, _), (other_last, _) = recorded(by_row), recorded(by_column)
                assert {session: last.get(session) for session in other_last} == other_last
        assert ended(rows.outputs) == ended(columns.outputs)
        assert rows.num_entries() == columns.num_entries() == 0


@pytest.fixture
def one_backend() -> str:
    """Any will do: what differs is above the backend."""
    return "heap-cow"


@pytest.mark.slow
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
        "event_time": EventTime("ts"),
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
    with Harness(
        function, key="user", schema=SCHEMA, event_time=EventTime("ts"), output=output, backend=backend_name
    ) as job:
        now = dt.datetime.fromtimestamp(0, UTC)
        job.process(("ann", 2**63 - 1, now))
        with pytest.raises(Exception, match=r"sum\(v\).*'ann'"):
            job.process(("ann", 1, now))


def test_a_lateness_beyond_the_end_of_time_keeps_windows_for_good() -> None:
    """WIN-15: no row is late, by columns as row by row."""
    windows = windowed(Sliding.of(5, 10)).allowed_lateness(2**64).aggregate(n=count())
    output = "user string, window_start timestamp, window_end timestamp, n long"
    with Harness(
        windows, key="user", schema=SCHEMA, output=output, event_time=EventTime("ts"), backend="heap-cow"
    ) as job:
        job.advance_watermark(1_000)
        assert [row.n for row in job.process(("ann", 1, dt.datetime.fromtimestamp(0, UTC)))] == [1]
        assert job.process(("ann", 1, dt.datetime.fromtimestamp(0.007, UTC))) == []
        assert job.rows_dropped == {}


@pytest.mark.parametrize("by_columns", [True, False])
def test_a_late_row_fires_once_although_an_earlier_window_ends_with_it(
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
        made, key="user", schema=SCHEMA, output=output, event_time=EventTime("ts", 0), backend="heap-cow"
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


@pytest.mark.slow
def test_sessions_of_many_keys_over_batches_out_of_order_and_a_rescaling(backend_name: str) -> None:
    """MW-01: rows bridge stored sessions, of keys with several columns, a NaN and nulls among them."""
    function = windowed(Session.with_gap("10 s")).aggregate(n=count(), mean=mean("v"), all=collect("v"))
    start = dt.datetime(2024, 5, 1, tzinfo=UTC)
    rooms = [0.5, None, float("nan"), float("-nan")]
    rows = [
        (
            f"user {number % 7}",
            rooms[number % 4],
            float(number),
            start + dt.timedelta(seconds=number * 37 % 6000),
        )
        for number in range(2000)
    ]
    arguments: Any = {
        "key": ("user", "room"),
        "schema": "user string, room double, v double, ts timestamp",
        "event_time": EventTime("ts"),
        "output": "user string, room double, window_start timestamp, window_end timestamp, n long, "
        "mean double, all array<double>",
    }
    with Harness(function, backend=backend_name, parallelism=2, **arguments) as job:
        assert isinstance(job.instances[0].function, SessionAggregation)
        for first in range(0, 1000, 250):
            job.process_all(rows[first : first + 250])
        job.end_epoch()
        job.rescale(1)
        job.process_all(rows[1000:])
        out = job.advance_watermark(start + dt.timedelta(days=1))
        assert job.num_entries() == 0
    by_key: dict[Any, list[tuple[dt.datetime, float]]] = {}
    for user, room, value, time in rows:
        by_key.setdefault((user, repr(room).strip("-")), []).append((time, value))
    expected: dict[Any, list[float]] = {}
    gap = dt.timedelta(seconds=10)
    for key, of_key in by_key.items():
        begin = last = None
        for time, value in sorted(of_key):
            if last is None or time - last > gap:
                begin = time
            last = time
            expected.setdefault((*key, begin), []).append(value)
    found = {(row.user, repr(row.room), row.window_start): row for row in out}
    assert len(found) == len(out)
    assert {key: sorted(row.all) for key, row in found.items()} == {
        key: sorted(values) for key, values in expected.items()
    }
    for key, row in found.items():
        assert (row.n, row.mean) == (len(expected[key]), pytest.approx(sum(expected[key]) / row.n))


def test_a_session_that_grows_with_every_batch_leaves_no_timer_behind_each() -> None:
    function = windowed(Session.with_gap("1 min")).aggregate(n=count())
    output = "user string, window_start timestamp, window_end timestamp, n long"
    with Harness(
        function,
        key="user",
        schema=SCHEMA,
        output=output,
        event_time=EventTime("ts", "5 s"),
        backend="heap-cow",
    ) as job:
        for second in range(0, 600, 10):
            job.process(("ann", 1, dt.datetime.fromtimestamp(second, UTC)))
            assert job.end_epoch() == []
            # The session and its timer.
            assert job.num_entries() == 2
        assert [row.n for row in job.end_input()] == [60]


def test_sessions_at_the_ends_of_time_and_overflowing_sums() -> None:
    """WIN-15: where times end, so does the window; bounds that no calendar has are null."""
    function = windowed(Session.with_gap("10 s")).allowed_lateness(2**64).aggregate(total=sum_("v"))
    output = "user string, window_start timestamp, window_end timestamp, total long"
    first, last = dt.datetime.min.replace(tzinfo=UTC), dt.datetime.max.replace(tzinfo=UTC)
    with Harness(
        function, key="user", schema=SCHEMA, event_time=EventTime("ts"), output=output, backend="heap-cow"
    ) as job:
        job.process_all([(f"user {number}", number, first if number % 2 else last) for number in range(9)])
        job.process_all([("user 8", 1, first), ("user 7", 2**63 - 8, last)])
        out = job.end_input()
        assert sorted((row.window_end is None, row.total) for row in out) == [
            (False, 1), (False, 1), (False, 3), (False, 5), (False, 7),
            *((True, total) for total in (0, 2, 4, 6, 8, 2**63 - 8)),
        ]  # fmt: skip
        # No row is late with such a lateness: the session continues.
        with pytest.raises(Exception, match=r"sum\(v\).*'user 7'"):
            job.process(("user 7", 8, last))
