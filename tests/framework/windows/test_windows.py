"""Windows as process functions in the harness: what comes out, what goes aside, restarts, and user errors."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from keyedstate import types
from keyedstate.aggregates import count, max_, mean, sum_
from keyedstate.errors import (
    InvalidAggregateError,
    InvalidFunctionError,
    InvalidWindowError,
    SideOutputNameError,
    UserFunctionError,
)
from keyedstate.state import AggregateFunction, ValueState
from keyedstate.testing import Harness
from keyedstate.time import EventTime
from keyedstate.windows import (
    ContinuousEventTimeTrigger,
    Count,
    CountEvictor,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    Evictor,
    Global,
    ProcessingTimeoutTrigger,
    Session,
    Sliding,
    Tumbling,
    windowed,
)
from keyedstate.windows.declaration.function import ProcessWindowFunction

SCHEMA = "user string, v long, ts timestamp"
REDUCED = "user string, window_start timestamp, window_end timestamp, v long, ts timestamp"
COUNTED = "user string, window_start timestamp, window_end timestamp, n long, total long, mean double"
UTC = dt.timezone.utc
MINUTE = 60_000
Make = Callable[..., Harness]


def at(minute: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(minute * 60, UTC)


def row(user: str | None, minute: float | None, v: int | None = 1) -> tuple[Any, ...]:
    return user, v, None if minute is None else at(minute)


def summed(one: Any, other: Any) -> Any:
    return one._replace(v=one.v + other.v)


@pytest.fixture
def harness(backend_name: str) -> Iterator[Make]:
    with ExitStack() as opened:

        def make(function: Any, output: str, **more: Any) -> Harness:
            event_time = EventTime("ts", more.pop("delay", None))
            arguments = {
                "key": "user",
                "schema": SCHEMA,
                "event_time": event_time,
                "backend": backend_name,
                **more,
            }
            return opened.enter_context(Harness(function, output=output, **arguments))

        yield make


def test_windows_fire_when_the_watermark_passes_and_say_their_bounds(harness: Make) -> None:
    """WIN-02, through the whole operator, with epochs, a restart and another number of instances."""
    job = harness(windowed(Tumbling.of("3 min")).reduce(summed), REDUCED, delay="1 min")
    assert job.process_all([row("ann", 0, 5), row("bob", 1), row("ann", 2.9, 7), row("ann", 3)]) == []
    assert job.end_epoch() == []
    job.process(row("bob", 4))
    assert job.end_epoch() == []
    assert sorted(job.advance_watermark(at(3))) == [
        ("ann", at(0), at(3), 12, at(0)),
        ("bob", at(0), at(3), 1, at(1)),
    ]
    job.rescale(3)
    assert sorted(job.advance_watermark(at(9))) == [
        ("ann", at(3), at(6), 1, at(3)),
        ("bob", at(3), at(6), 1, at(4)),
    ]
    assert job.num_entries() == 0


class Range(AggregateFunction[Any, Any, Any]):
    def create_accumulator(self) -> Any:
        return None, None

    def add(self, value: Any, accumulator: Any) -> Any:
        low, high = accumulator
        return (
            value.v if low is None else min(low, value.v),
            value.v if high is None else max(high, value.v),
        )

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, first: Any, second: Any) -> Any:
        return min(first[0], second[0]), max(first[1], second[1])


BOTH = types.tuple_of(types.nullable(types.INT64), types.nullable(types.INT64))


def test_sessions_aggregate_and_merge(harness: Make) -> None:
    function = windowed(Session.with_gap("10 min")).aggregate_with(Range(), BOTH)
    job = harness(function, "user string, window_start timestamp, window_end timestamp, low long, high long")
    job.process_all([row("ann", 0, 5), row("ann", 15, 9), row("ann", 8, -3)])
    job.restore(job.snapshot())
    assert job.advance_watermark(at(25)) == [("ann", at(0), at(25), -3, 9)]
    assert job.num_entries() == 0


class Rates(ProcessWindowFunction):
    """Rows of a window against the window before, kept for the key."""

    last = ValueState("last", types.INT64, default=0)

    def process(self, elements: Any, ctx: Any) -> Any:
        rows = len(elements)
        if rows > 2:
            ctx.output("many", (ctx.key, rows))
        yield {"user": ctx.key, "rows": rows, "more": rows - self.last.value()}
        self.last.update(rows)


def test_side_outputs_are_apart_from_the_rows_of_the_function(harness: Make) -> None:
    """WIN-16: late rows aside; and rows without time, and what the function puts aside."""
    function = (
        windowed(Tumbling.of("1 min"), missing="side output")
        .side_output("many", "user string, rows long")
        .side_output_late_data()
        .process(Rates())
    )
    job = harness(function, "user string, rows long, more long")
    assert job.process(row("ann", None)) == []
    assert job.side_output("missing") == [row("ann", None)]
    job.process_all([row("ann", 0), row("ann", 0.1), row("ann", 0.2), row("ann", 1)])
    assert job.advance_watermark(at(1)) == [("ann", 3, 3)]
    assert job.side_output("many") == [("ann", 3)]
    assert job.process(row("ann", 0.5)) == []
    assert job.side_output("late") == [row("ann", 0.5)]
    assert job.advance_watermark(at(2)) == [("ann", 1, -2)]


def test_an_undeclared_side_output_is_refused(harness: Make) -> None:
    job = harness(windowed(Tumbling.of("1 min")).process(Rates()), "user string, rows long, more long")
    job.process_all([row("ann", 0), row("ann", 0.1), row("ann", 0.2)])
    with pytest.raises(UserFunctionError, match="the side output 'many' was not declared"):
        job.advance_watermark(at(1))


def test_late_and_timeless_rows_are_counted_where_they_go_nowhere(harness: Make) -> None:
    for assigner in (Tumbling.of("1 min"), Session.with_gap("1 min")):
        for by_columns in (False, True):
            windows = windowed(assigner, missing="drop")
            made = windows.aggregate(v=sum_("v"), ts=max_("ts")) if by_columns else windows.reduce(summed)
            job = harness(made, REDUCED)
            job.advance_watermark(at(5))
            assert job.process_all([row("ann", 1), row("ann", None), row("ann", 2)]) == []
            assert job.rows_dropped == {"late": 2, "timeless": 1}
            job.end_epoch()
            job.restore(job.snapshot())
            job.process(row("bob", 3))
            assert job.rows_dropped == {"late": 3, "timeless": 1}
            assert job.num_entries() == 0


def test_a_row_without_event_time_stops_the_epoch_by_default(harness: Make) -> None:
    """WIN-26."""
    for declared in (
        windowed(Session.with_gap(5)).reduce(summed),
        windowed(Tumbling.of(5)).aggregate(v=sum_("v"), ts=max_("ts")),
    ):
        job = harness(declared, REDUCED)
        with pytest.raises(UserFunctionError, match="missing='drop'"):
            job.process(row("ann", None))


class Grumpy(EventTimeTrigger):
    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> Any:
        if element.v == 13:
            raise ArithmeticError("not that one")
        return super().on_element(element, timestamp, window, ctx)


def test_a_trigger_that_raises_is_reported_with_the_key_and_a_snapshot_continues(harness: Make) -> None:
    job = harness(windowed(Tumbling.of("1 min")).trigger(Grumpy()).reduce(summed), REDUCED)
    job.process(row("ann", 0))
    snapshot = job.snapshot()
    with pytest.raises(UserFunctionError, match=r"not that one. Raised in .* for the key 'bob'") as raised:
        job.process(row("bob", 0, 13))
    assert isinstance(raised.value.__cause__, ArithmeticError) and raised.value.key == "bob"
    job.restore(snapshot)
    assert job.advance_watermark(at(1)) == [("ann", at(0), at(1), 1, at(0))]


def test_windows_without_bounds_give_the_key_and_the_result_alone(harness: Make) -> None:
    job = harness(
        windowed(Count.of(2)).aggregate(n=count(), most=max_("v")), "user string, n long, most long"
    )
    assert job.process_all([row("ann", 0, 3), row("bob", 0, 1), row("ann", 1, 4)]) == [("ann", 2, 4)]
    sliding = harness(
        windowed(Count.of(3, 2)).aggregate(n=count(), t=sum_("v")), "user string, n long, t long"
    )
    given = sliding.process_all([row("ann", 0, 10**place) for place in range(4)])
    assert given == [("ann", 2, 11), ("ann", 3, 1110)]


def test_windows_by_the_clock_need_no_event_time(harness: Make) -> None:
    declared = windowed(Tumbling.of("1 min", processing_time=True)).trigger(
        ProcessingTimeoutTrigger.of(CountTrigger.of(3), "10 s")
    )
    job = harness(declared.reduce(summed), REDUCED, event_time=None)
    job.process_all([row("ann", None), row("ann", None)])
    job.restore(job.snapshot())
    assert job.advance_processing_time("10 s") == [("ann", at(0), at(1), 2, None)]
    assert job.advance_processing_time("1 min") == []
    assert job.num_entries() == 0


def test_the_end_of_bounded_input_fires_every_window(harness: Make) -> None:
    """WIN-09."""
    job = harness(windowed(Global.at_end_of_stream()).reduce(summed), "user string, v long, ts timestamp")
    job.process_all([row("ann", 0), row("bob", 1), row("ann", 2)])
    assert sorted(job.end_input()) == [("ann", 2, at(0)), ("bob", 1, at(1))]


def test_declared_aggregates_come_out_of_every_kind_of_window(harness: Make) -> None:
    rows = [row("ann", 0, 4), row("ann", 1, None), row("ann", 2.5, 6), row("bob", 0.5, 1)]
    aggregates = {"n": count(), "total": sum_("v"), "mean": mean("v")}
    expected = [("ann", at(0), at(3), 3, 10, 5.0), ("bob", at(0), at(3), 1, 1, 1.0)]
    for declared in (
        windowed(Tumbling.of("3 min")),
        windowed(Sliding.of("3 min", "3 min")).allowed_lateness("1 min"),
        windowed(Tumbling.of("3 min")).evictor(CountEvictor.of(100)),
    ):
        job = harness(declared.aggregate(aggregates), COUNTED)
        job.process_all(rows)
        assert sorted(job.advance_watermark(at(10))) == expected
        assert job.num_entries() == 0
    sessions = harness(windowed(Session.with_gap("2 min")).aggregate(**aggregates), COUNTED)
    sessions.process_all(rows)
    assert sorted(sessions.advance_watermark(at(10))) == [
        ("ann", at(0), at(4.5), 3, 10, 5.0),
        ("bob", at(0.5), at(2.5), 1, 1, 1.0),
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: windowed("1 hour"), "is no assigner"),
        (lambda: windowed(Tumbling.of(1), missing="ignore"), "Give 'fail', 'drop' or 'side output'"),
        (
            lambda: windowed(Tumbling.of(1, processing_time=True), missing="side output"),
            "missing='side output' cannot be used",
        ),
        (
            lambda: windowed(Tumbling.of(1, processing_time=True)).side_output_late_data(),
            "a side output of late rows cannot be used",
        ),
        (lambda: windowed(Session.with_gap(1)).trigger(DeltaTrigger.of(1, max)), "cannot merge"),
        (lambda: windowed(Tumbling.of(1)).side_output("main", "a long"), "columns of their own"),
        (lambda: windowed(Tumbling.of(1)).side_output_late_data().side_output("late", ""), "another output"),
        (lambda: windowed(Tumbling.of(1)).process(Rates), "Give an instance of a ProcessWindowFunction"),
        (
            lambda: windowed(Tumbling.of(1)).reduce(summed, Rates),
            "Give an instance of a ProcessWindowFunction",
        ),
        (lambda: windowed(Tumbling.of(1)).reduce(3), r"reduce\(\) cannot be used"),
        (lambda: windowed(Tumbling.of(1)).aggregate(), "it names no aggregate"),
        (lambda: windowed(Tumbling.of(1)).aggregate(n=5), "it is 5"),
        (lambda: windowed(Tumbling.of(1)).aggregate({"n": count()}, n=count()), "given twice"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_declared(make: Any, message: str) -> None:
    with pytest.raises((InvalidWindowError, InvalidAggregateError, SideOutputNameError), match=message):
        make()


def test_aggregates_of_columns_that_are_not_there_are_refused() -> None:
    for declared, message in (
        (windowed(Tumbling.of(1)).aggregate(t=sum_("w")), "the rows have no column 'w'"),
        (windowed(Tumbling.of(1)).aggregate(window_end=count()), "the window's bounds are named so"),
        (windowed(Session.with_gap(1)).aggregate(user=count()), "a key column has the same name"),
    ):
        with pytest.raises(InvalidAggregateError, match=message):
            Harness(declared, key="user", schema=SCHEMA, output=REDUCED, event_time=EventTime("ts"))


def test_a_function_without_its_columns_cannot_be_opened() -> None:
    function = windowed(Tumbling.of(1)).reduce(summed)
    with pytest.raises(InvalidFunctionError, match=r"keyed\(\.\.\.\)\.window"):
        function.open(None)


@pytest.mark.parametrize("lateness", [0, MINUTE])
@pytest.mark.parametrize("minute", [0, 1, -2, 3.5, 5.5])
def test_a_session_that_is_over_fires_before_the_rows_of_the_next_epoch(
    harness: Make, lateness: int, minute: float
) -> None:
    """WIN-16, WIN-22: so these are late, whether they are within the session, at its edges, or before it."""
    sessions = windowed(Session.with_gap("3 min")).allowed_lateness(lateness).side_output_late_data()
    job = harness(sessions.reduce(summed), REDUCED, delay=0)
    job.process_all([row("ann", 0, 5), row("ann", 2, 7), row("bob", 30)])
    assert job.end_epoch() == []
    assert job.process(row("ann", minute, 100)) == [("ann", at(0), at(5), 12, at(0))]
    assert job.side_output("late") == [("ann", 100, at(minute))]
    assert job.end_epoch() == []
    assert job.advance_watermark(at(60)) == [("bob", at(30), at(33), 1, at(30))]
    assert job.num_entries() == 0


def test_a_row_that_touches_a_session_that_is_over_begins_another_one(harness: Make) -> None:
    """WIN-22."""
    job = harness(windowed(Session.with_gap("3 min")).reduce(summed), REDUCED, delay=0)
    job.process_all([row("ann", 0, 5), row("bob", 4)])
    assert job.end_epoch() == []
    assert job.process(row("ann", 2, 100)) == [("ann", at(0), at(3), 5, at(0))]
    assert job.end_epoch() == []
    assert sorted(job.advance_watermark(at(60))) == [
        ("ann", at(2), at(5), 100, at(2)),
        ("bob", at(4), at(7), 1, at(4)),
    ]
    assert job.num_entries() == 0


def test_a_late_row_gives_an_update_and_not_the_result_in_time_twice(harness: Make) -> None:
    """WIN-14: it comes in the epoch by whose watermark its window ends."""
    windows = windowed(Tumbling.of("5 min")).allowed_lateness("1 hour")
    job = harness(windows.reduce(summed), REDUCED, delay=0)
    job.process_all([row("ann", 0, 5), row("bob", 6)])
    assert job.end_epoch() == []
    assert job.process(row("ann", 1, 100)) == [
        ("ann", at(0), at(5), 5, at(0)),
        ("ann", at(0), at(5), 105, at(0)),
    ]
    assert job.end_epoch() == []


class Removing(Evictor[Any]):
    """Deletes rows from the very list that it is given, as Flink's evictors do."""

    def __init__(self, after: bool) -> None:
        self._after = after

    def evict_before(self, elements: Any, window: Any, ctx: Any) -> Any:
        if not self._after:
            del elements[0]
        return elements

    def evict_after(self, elements: Any, window: Any, ctx: Any) -> Any:
        if self._after:
            elements.clear()
        return elements


class Numbers(ProcessWindowFunction):
    def process(self, elements: Any, ctx: Any) -> Any:
        yield ctx.key, len(elements)


@pytest.mark.parametrize(("after", "seen"), [(False, [1, 2]), (True, [2, 2])])
def test_what_an_evictor_deletes_in_place_is_gone_from_the_window(
    harness: Make, after: bool, seen: list[int]
) -> None:
    windows = windowed(Global.of()).trigger(CountTrigger.of(2)).evictor(Removing(after))
    job = harness(windows.process(Numbers()), "user string, n long")
    assert [fired.n for fired in job.process_all([row("ann", 0)] * 4)] == seen
    assert job.num_entries("window-contents") == (0 if after else 1)


@pytest.mark.parametrize(
    "name", ["window-contents", "merging-window-set", "window-first-time", "trigger.count"]
)
def test_a_function_cannot_have_a_state_of_a_name_that_windows_use(name: str) -> None:
    """It would be given the operator's own."""

    class Declares(ProcessWindowFunction):
        mine = ValueState(name, types.INT64)

        def process(self, elements: Any, ctx: Any) -> Any:
            return None

    class Asks(ProcessWindowFunction):
        def __init__(self, asked: str) -> None:
            self.asked = asked

        def process(self, elements: Any, ctx: Any) -> Any:
            getattr(ctx, self.asked)(ValueState(name, types.INT64))

    minutes = windowed(Tumbling.of("1 min"))
    with pytest.raises(InvalidWindowError, match=f"the state '{name}' cannot be used: windows use"):
        minutes.process(Declares())
    for asked in ("window_state", "global_state"):
        with Harness(
            minutes.process(Asks(asked)),
            key="user",
            schema=SCHEMA,
            output=REDUCED,
            event_time=EventTime("ts"),
        ) as job:
            job.process(row("ann", 0))
            with pytest.raises(UserFunctionError, match=f"the state '{name}' cannot be used"):
                job.advance_watermark(at(1))


def test_a_continuous_trigger_fires_twice_at_the_end_of_input(harness: Make) -> None:
    """Flink's ``BatchExecutionInternalTimeService`` ignores what timers register behind the last row."""
    hours = windowed(Tumbling.of("1 h")).trigger(ContinuousEventTimeTrigger.of("10 min"))
    jobs = [harness(hours.reduce(summed), REDUCED) for _ in range(2)]
    for job in jobs:
        job.process_all([row("ann", 3, 5), row("ann", 25, 7)])
    every_ten_minutes = [("ann", at(0), at(60), 12, at(3))] * 6
    assert jobs[0].advance_watermark(at(60)) == every_ten_minutes
    assert jobs[1].end_input() == every_ten_minutes[:2]
