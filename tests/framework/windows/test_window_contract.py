"""What the window operator does with each thing that a trigger may say, as ``WindowOperatorContractTest``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from keyedstate import types
from keyedstate.errors import InvalidWindowError
from keyedstate.state import AggregateFunction, ReducingState, ValueState
from keyedstate.state.clock import END_OF_TIME
from keyedstate.types import TimeWindow
from keyedstate.windows import (
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    Global,
    MergingWindowAssigner,
    Session,
    Sliding,
    Trigger,
    TriggerResult,
    Tumbling,
    WindowAssigner,
)
from keyedstate.windows.declaration.contents import AggregatedRows, AllRows, ReducedRows
from keyedstate.windows.declaration.definition import WindowDefinition
from keyedstate.windows.declaration.function import ProcessWindowFunction

Jobs = Callable[..., Any]
CONTINUE, FIRE, PURGE = TriggerResult.CONTINUE, TriggerResult.FIRE, TriggerResult.PURGE
FIRE_AND_PURGE = TriggerResult.FIRE_AND_PURGE


class Recorder(Trigger[Any]):
    """Says what a test wants, and notes what it is asked."""

    can_merge = True

    def __init__(self) -> None:
        self.answers: dict[str, TriggerResult] = {}
        self.asked: list[tuple[Any, ...]] = []
        self.timers: dict[str, list[int]] = {"event": [], "processing": []}

    def _say(self, step: str, *what: Any) -> TriggerResult:
        self.asked.append((step, *what))
        return self.answers.get(step, CONTINUE)

    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> TriggerResult:
        ctx.state(ReducingState("rows", max, types.INT64)).add(element.value)
        for time in self.timers["event"]:
            ctx.register_event_time_timer(time)
        for time in self.timers["processing"]:
            ctx.register_processing_time_timer(time)
        return self._say("element", window)

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return self._say("event", time, window)

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return self._say("processing", time, window)

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.merge_state(ReducingState("rows", max, types.INT64))
        self._say("merge", window, tuple(ctx.merged))

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.state(ReducingState("rows", max, types.INT64)).clear()
        for time in self.timers["event"]:
            ctx.delete_event_time_timer(time)
        self._say("clear", window)


@pytest.fixture(params=["tumbling", "session"])
def assigner(request: pytest.FixtureRequest) -> WindowAssigner[Any]:
    """Windows in which a row at 5 is until 14 or 9; the latter after a merge."""
    return Tumbling.of(10) if request.param == "tumbling" else Session.with_gap(5)


@pytest.mark.parametrize("step", ["element", "event", "processing"])
@pytest.mark.parametrize("answer", list(TriggerResult))
def test_contents_are_shown_and_kept_as_the_trigger_says(
    jobs: Jobs, assigner: Any, step: str, answer: TriggerResult
) -> None:
    """WIN-22."""
    trigger = Recorder()
    trigger.timers = {"event": [7], "processing": [7]}
    job = jobs(assigner, trigger=trigger, lateness=100)
    job.row("key1", 5)
    trigger.answers[step] = answer
    if step == "element":
        out = job.row("key1", 5)
    else:
        job.row("key1", 5)
        out = job.watermark(7) if step == "event" else job.time(7)
    assert out == ([("key1", 2, 9)] if answer in (FIRE, FIRE_AND_PURGE) else [])
    kept = answer in (CONTINUE, FIRE)
    assert ("window-contents" in job.entries) is kept
    # Only the contents go: the trigger's state, the mapping and the timer at the window's end stay.
    assert job.entries["trigger.rows"] == 1
    assert ("merging-window-set" in job.entries) is isinstance(assigner, Session)
    trigger.answers.clear()
    trigger.answers["element"] = FIRE
    assert job.row("key1", 5) == [("key1", 3 if kept else 1, 9)]
    job.watermark(109)
    assert job.entries == {}


@pytest.mark.parametrize("step", ["element", "event", "processing"])
def test_no_function_is_called_without_contents(jobs: Jobs, assigner: Any, step: str) -> None:
    """WIN-22: for a window that was purged."""
    trigger = Recorder()
    trigger.timers = {"event": [7], "processing": [7]}
    trigger.answers = {"element": PURGE, "event": FIRE, "processing": FIRE}
    job = jobs(assigner, trigger=trigger)
    job.row("key1", 5)
    assert job.watermark(7) == job.time(7) == []
    assert [asked[0] for asked in trigger.asked] == ["element", "event", "processing"]


class Counting(Tumbling):
    calls = 0

    def assign_windows(self, element: Any, timestamp: Any, context: Any) -> Any:
        type(self).calls += 1
        return super().assign_windows(element, timestamp, context)


def test_the_assigner_is_asked_once_for_each_row(jobs: Jobs) -> None:
    """WIN-22."""
    Counting.calls = 0
    job = jobs(Counting.of(10))
    job.rows(("key1", 1), ("key1", 2), ("key2", 3))
    assert Counting.calls == 3


def test_windows_do_not_interfere(jobs: Jobs) -> None:
    """WIN-22: the trigger is asked for each window of a row, and contents are those of one."""
    trigger = Recorder()
    trigger.answers["element"] = FIRE
    job = jobs(Sliding.of(10, 5), trigger=trigger)
    assert job.row("key1", 7) == [("key1", 1, 14), ("key1", 1, 9)]
    assert job.row("key1", 12) == [("key1", 1, 19), ("key1", 2, 14)]
    assert [window for _, window in trigger.asked] == [(5, 15), (0, 10), (10, 20), (5, 15)]


def test_at_its_end_a_window_loses_everything(jobs: Jobs, assigner: Any) -> None:
    """WIN-22: contents, trigger state, the function's state and the mapping, with or without a firing."""
    cleared = []

    class Function(ProcessWindowFunction):
        def process(self, elements: Any, ctx: Any) -> Any:
            yield 1

        def clear(self, ctx: Any) -> None:
            cleared.append((ctx.key, ctx.window))

    trigger = Recorder()
    job = jobs(assigner, trigger=trigger, lateness=20, function=Function())
    job.rows(("key1", 5))
    assert job.watermark(28) == [] and cleared == []
    assert job.watermark(29) == []
    assert trigger.asked[-2] == ("event", 29, (0, 10) if isinstance(assigner, Tumbling) else (5, 10))
    assert trigger.asked[-1][0] == "clear" and len(cleared) == 1
    assert job.entries == {} and job.timers == 0


def test_the_trigger_and_the_end_may_have_one_timer(jobs: Jobs, assigner: Any) -> None:
    """WIN-22: both work at the same instant."""
    trigger = Recorder()
    trigger.timers["event"] = [9]
    trigger.answers["event"] = FIRE
    job = jobs(assigner, trigger=trigger)
    job.rows(("key1", 5))
    assert job.timers == 1
    assert job.watermark(9) == [("key1", 1, 9)]
    assert job.entries == {} and job.timers == 0


def test_a_trigger_deletes_its_own_timer_and_not_the_one_at_the_end(jobs: Jobs) -> None:
    """WIN-22: timers are created and deleted; the clean-up of the operator cannot be."""

    class Deleting(EventTimeTrigger):
        def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> TriggerResult:
            ctx.register_event_time_timer(5)
            ctx.register_event_time_timer(6)
            ctx.register_processing_time_timer(7)
            ctx.delete_event_time_timer(5)
            ctx.delete_processing_time_timer(7)
            ctx.delete_event_time_timer(window.max_timestamp)
            return CONTINUE

    job = jobs(Tumbling.of(10), trigger=Deleting())
    job.rows(("key1", 1), ("key1", 2))
    assert job.service.num_event_time_timers() == 2 and job.service.num_processing_time_timers() == 0
    job.watermark(9)
    assert job.entries == {} and job.timers == 0


def test_windows_that_never_end_have_no_timer(jobs: Jobs) -> None:
    """WIN-22: neither the global window nor one whose end is the end of time."""
    job = jobs(Global.of())
    job.rows(("key1", 1))
    assert job.timers == 0

    class Endless(Tumbling):
        def assign_windows(self, *_: Any) -> Any:
            return [TimeWindow(0, END_OF_TIME), TimeWindow(0, END_OF_TIME - 5)]

    job = jobs(Endless.of(10), trigger=Recorder(), lateness="1 s")
    job.rows(("key1", 1))
    assert job.timers == 0


def test_merged_windows_hand_over_to_the_window_that_they_become(jobs: Jobs) -> None:
    """WIN-22: on_merge is called, what the merged windows had is cleared, and their timers are deleted."""
    trigger = Recorder()
    trigger.timers["event"] = [3]
    job = jobs(Session.with_gap(5), trigger=trigger)
    job.row("key1", 0, value=1)
    job.row("key1", 8, value=7)
    assert job.timers == 4
    trigger.asked.clear()
    job.row("key1", 4, value=2)
    assert trigger.asked == [
        ("merge", (0, 13), ((0, 5), (8, 13))),
        ("clear", (0, 5)),
        ("clear", (8, 13)),
        ("element", (0, 13)),
    ]
    assert job.timers == 2
    assert job.entries == {"window-contents": 1, "merging-window-set": 1, "trigger.rows": 1}
    job.backend.set_current_key("key1")
    rows = job.backend.get_state(
        ReducingState("trigger.rows", max, types.INT64), TimeWindow(0, 13), types.TIME_WINDOW
    )
    assert rows.get() == 7


class Shrinking(Session):
    """Makes of two windows one that ended long ago."""

    def merge_windows(self, windows: Any) -> Any:
        found = list(windows)
        return [(TimeWindow(0, 1), found)] if len(found) > 1 else []


def test_windows_may_not_merge_into_one_that_has_ended(jobs: Jobs) -> None:
    """WIN-22."""
    job = jobs(Shrinking.with_gap(100))
    job.rows(("key1", 50))
    job.watermark(20)
    with pytest.raises(InvalidWindowError, match=r"start=0, end=1\) .* ended before the present time 20 "):
        job.row("key1", 70)
    clock = jobs(Shrinking.with_gap(100, processing_time=True))
    clock.time(50)
    clock.rows(("key1", 0))
    clock.time(60)
    with pytest.raises(InvalidWindowError):
        clock.row("key1", 0)


def test_per_window_state_is_not_to_be_had_where_windows_merge(jobs: Jobs) -> None:
    """WIN-22."""

    class Function(ProcessWindowFunction):
        def process(self, elements: Any, ctx: Any) -> Any:
            ctx.global_state(ValueState("all", types.INT64)).update(1)
            ctx.window_state(ValueState("own", types.INT64))

    job = jobs(Session.with_gap(5), function=Function())
    job.rows(("key1", 0))
    with pytest.raises(InvalidWindowError, match=r"the state 'own' .*ctx\.global_state"):
        job.watermark(10)


class Odd(EventTimeTrigger):
    """Raises at a row of value 13, and at every timer of a window that has one of 7."""

    _seven = ValueState("seven", types.BOOLEAN)

    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> TriggerResult:
        if element.value == 13:
            raise ArithmeticError("thirteen")
        if element.value == 7:
            ctx.state(type(self)._seven).update(True)
        return super().on_element(element, timestamp, window, ctx)

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        if ctx.state(type(self)._seven).value():
            raise ArithmeticError("seven")
        return super().on_event_time(time, window, ctx)


def test_an_error_of_a_trigger_is_raised_and_the_state_before_can_be_restored(jobs: Jobs) -> None:
    job = jobs(Tumbling.of(10), trigger=Odd())
    job.rows(("key1", 1))
    job.restart()
    with pytest.raises(ArithmeticError, match="thirteen"):
        job.row("key1", 2, value=13)
    job.row("key2", 2, value=7)
    with pytest.raises(ArithmeticError, match="seven"):
        job.watermark(9)


def test_a_trigger_may_merge_only_state_that_merges(jobs: Jobs) -> None:
    class Wrong(Recorder):
        def on_merge(self, window: Any, ctx: Any) -> None:
            ctx.merge_state(ValueState("last", types.INT64))

    job = jobs(Session.with_gap(5), trigger=Wrong())
    job.rows(("key1", 0))
    with pytest.raises(InvalidWindowError, match="state 'last' cannot be used: its kind does not merge"):
        job.row("key1", 3)


class NoMerge(AggregateFunction[Any, Any, Any]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WindowDefinition.of("1 hour"), "is no assigner"),
        (lambda: WindowDefinition.of(Tumbling), "is no assigner"),
        (lambda: WindowDefinition.of(Tumbling.of(1)).with_trigger(CountTrigger), "is no trigger"),
        (lambda: WindowDefinition.of(Tumbling.of(1)).with_evictor(5), "is no evictor"),
        (
            lambda: WindowDefinition.of(Tumbling.of(1)).with_allowed_lateness(-1),
            "lateness cannot be used: it is -1",
        ),
        (
            lambda: WindowDefinition.of(Tumbling.of(1, processing_time=True)).with_allowed_lateness(1),
            "by the clock, so that none is late",
        ),
        (
            lambda: WindowDefinition.of(Session.with_gap(1)).with_trigger(DeltaTrigger.of(1, max)),
            "cannot merge what it remembers",
        ),
        (
            lambda: WindowDefinition.of(Session.with_gap(1)).check_contents(
                AggregatedRows(NoMerge(), types.INT64)
            ),
            r"has no merge\(\)",
        ),
        (lambda: ReducedRows(None), r"reduce\(\) cannot be used: its function is None"),
        (lambda: AggregatedRows(max, types.INT64), "Give an AggregateFunction"),
    ],
)
def test_what_does_not_fit_together_is_refused_when_it_is_declared(make: Any, message: str) -> None:
    with pytest.raises(InvalidWindowError, match=message):
        make()


def test_with_an_evictor_sessions_need_no_merge_of_accumulators() -> None:
    definition = WindowDefinition.of(Session.with_gap(1)).with_evictor(CountEvictor.of(1))
    definition.check_contents(AggregatedRows(NoMerge(), types.INT64))
    assert definition.merges and not WindowDefinition.of(Tumbling.of(1)).merges
    definition.with_trigger(ContinuousEventTimeTrigger.of(1))


def test_windows_of_a_users_own_kind(jobs: Jobs) -> None:
    """A merging assigner that keeps at most one window of ten milliseconds aligned to the first."""

    class Decades(MergingWindowAssigner[TimeWindow]):
        is_event_time = True
        window_serializer = types.TIME_WINDOW

        def assign_windows(self, element: Any, timestamp: Any, context: Any) -> Any:
            return [TimeWindow(timestamp, timestamp + 1)]

        def merge_windows(self, windows: Any) -> Any:
            by_decade: dict[int, list[TimeWindow]] = {}
            for window in windows:
                by_decade.setdefault(window.start // 10, []).append(window)
            return [(TimeWindow(decade * 10, decade * 10 + 10), found) for decade, found in by_decade.items()]

        def default_trigger(self) -> Any:
            return EventTimeTrigger()

    job = jobs(Decades(), contents=AllRows())
    job.rows(("key1", 3), ("key1", 8), ("key1", 12))
    job.restart()
    assert job.watermark(9) == [("key1", 2, 9)]
    assert job.watermark(19) == [("key1", 1, 19)]
    assert job.entries == {} and job.timers == 0
