"""Triggers and evictors by themselves, over state and timers that a test looks at."""

from __future__ import annotations

from typing import Any

import pytest

from keyedstate.errors import InvalidWindowError
from keyedstate.state import AggregatingState, ListState, ReducingState, StateDescriptor
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME
from keyedstate.types import INT64
from keyedstate.windows import (
    AllTrigger,
    AnyTrigger,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    DeltaTrigger,
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    OnMergeContext,
    ProcessingTimeoutTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    TimeEvictor,
    TimestampedValue,
    TimeWindow,
    Trigger,
    TriggerResult,
)

CONTINUE, FIRE, PURGE = TriggerResult.CONTINUE, TriggerResult.FIRE, TriggerResult.PURGE
FIRE_AND_PURGE = TriggerResult.FIRE_AND_PURGE


class Cell:
    """One state of one window: a value that is reduced or replaced."""

    def __init__(self, cells: dict[Any, Any], at: Any, descriptor: StateDescriptor[Any]) -> None:
        self._cells, self._at, self._descriptor = cells, at, descriptor

    def get(self) -> Any:
        return self._cells.get(self._at)

    value = get

    def update(self, value: Any) -> None:
        self._cells[self._at] = value

    def add(self, value: Any) -> None:
        old = self.get()
        function = self._descriptor.function  # type: ignore[attr-defined]
        self._cells[self._at] = value if old is None else function(old, value)

    def clear(self) -> None:
        self._cells.pop(self._at, None)


class Bench(OnMergeContext):
    """A window under test: its trigger's state and timers in plain Python."""

    def __init__(self, trigger: Trigger[Any]) -> None:
        self.trigger = trigger.for_elements(INT64)
        self.window = TimeWindow(0, 100)
        self.watermark, self.now = BEFORE_TIME, 0
        self.cells: dict[Any, Any] = {}
        self.event_timers: set[tuple[int, TimeWindow]] = set()
        self.clock_timers: set[tuple[int, TimeWindow]] = set()
        self._merged: list[TimeWindow] = []

    @property
    def current_watermark(self) -> int:
        return self.watermark

    @property
    def current_processing_time(self) -> int:
        return self.now

    def register_event_time_timer(self, time: int) -> None:
        self.event_timers.add((time, self.window))

    def register_processing_time_timer(self, time: int) -> None:
        self.clock_timers.add((time, self.window))

    def delete_event_time_timer(self, time: int) -> None:
        self.event_timers.discard((time, self.window))

    def delete_processing_time_timer(self, time: int) -> None:
        self.clock_timers.discard((time, self.window))

    def state(self, descriptor: Any) -> Any:
        return Cell(self.cells, (descriptor.name, self.window), descriptor)

    def merge_state(self, descriptor: StateDescriptor[Any]) -> None:
        assert isinstance(descriptor, (ListState, ReducingState, AggregatingState))
        for window in self._merged:
            value = self.cells.pop((descriptor.name, window), None)
            if value is not None:
                self.state(descriptor).add(value)

    def row(self, value: int = 1, time: int | None = None, window: TimeWindow | None = None) -> TriggerResult:
        self.window = window or self.window
        return self.trigger.on_element(value, time, self.window, self)

    def advance_watermark(self, time: int) -> list[tuple[int, TriggerResult]]:
        self.watermark = time
        return self._fire(self.event_timers, time, self.trigger.on_event_time)

    def advance_clock(self, time: int) -> list[tuple[int, TriggerResult]]:
        self.now = time
        return self._fire(self.clock_timers, time, self.trigger.on_processing_time)

    def _fire(self, timers: set[tuple[int, TimeWindow]], time: int, call: Any) -> list[Any]:
        results = []
        while due := sorted(timer for timer in timers if timer[0] <= time):
            timers.discard(due[0])
            at, self.window = due[0]
            results.append((at, call(at, self.window, self)))
            assert len(results) < 1000, "a trigger fires for ever"
        return results

    def merge(self, window: TimeWindow, *merged: TimeWindow) -> None:
        self.window, self._merged = window, list(merged)
        self.trigger.on_merge(window, self)
        for self.window in merged:
            self.trigger.clear(self.window, self)
        self.window = window

    def clear(self) -> None:
        self.trigger.clear(self.window, self)

    @property
    def empty(self) -> bool:
        return not (self.cells or self.event_timers or self.clock_timers)


def test_a_count_trigger_fires_at_the_count_of_a_window_and_restarts() -> None:
    """WIN-24."""
    bench = Bench(CountTrigger.of(3))
    other = TimeWindow(100, 200)
    assert [bench.row(), bench.row(), bench.row(window=other), bench.row(window=TimeWindow(0, 100))] == [
        CONTINUE,
        CONTINUE,
        CONTINUE,
        FIRE,
    ]
    assert len(bench.cells) == 1
    bench.row(window=other)
    bench.clear()
    assert bench.empty


def test_counts_of_merged_windows_add_up() -> None:
    """WIN-24."""
    bench = Bench(CountTrigger.of(3))
    bench.row(window=TimeWindow(0, 2))
    bench.row(window=TimeWindow(2, 4))
    bench.merge(TimeWindow(0, 4), TimeWindow(0, 2), TimeWindow(2, 4))
    assert list(bench.cells.values()) == [2]
    assert bench.row() is FIRE
    assert bench.empty


def test_an_event_time_trigger_fires_at_the_end_and_at_each_late_row() -> None:
    """WIN-24."""
    bench = Bench(EventTimeTrigger())
    assert bench.row() is bench.row() is CONTINUE
    assert bench.event_timers == {(99, (0, 100))}
    assert bench.advance_watermark(98) == []
    assert bench.advance_watermark(99) == [(99, FIRE)]
    assert bench.row() is FIRE
    assert bench.empty


def test_an_event_time_trigger_waits_for_a_merged_end_only_while_that_is_ahead() -> None:
    """WIN-24."""
    bench = Bench(EventTimeTrigger())
    bench.row(window=TimeWindow(0, 2))
    bench.row(window=TimeWindow(2, 4))
    bench.merge(TimeWindow(0, 4), TimeWindow(0, 2), TimeWindow(2, 4))
    assert bench.event_timers == {(3, (0, 4))}
    bench.clear()
    assert bench.empty
    bench.watermark = 10
    bench.merge(TimeWindow(0, 4), TimeWindow(0, 2))
    assert bench.empty


def test_a_processing_time_trigger_fires_at_the_end_and_waits_for_a_merged_end() -> None:
    """WIN-24."""
    bench = Bench(ProcessingTimeTrigger())
    assert bench.row() is CONTINUE
    assert bench.advance_watermark(500) == []
    bench.merge(TimeWindow(0, 110), TimeWindow(0, 100))
    assert bench.advance_clock(108) == []
    assert bench.advance_clock(109) == [(109, FIRE)]
    bench.merge(TimeWindow(0, 105), TimeWindow(0, 100))
    assert bench.empty


def test_a_continuous_event_time_trigger_fires_at_multiples_and_at_the_end() -> None:
    """WIN-24."""
    bench = Bench(ContinuousEventTimeTrigger.of(30))
    assert bench.row(time=17) is CONTINUE
    assert sorted(bench.cells.values()) == [30]
    assert bench.advance_watermark(29) == []
    assert bench.advance_watermark(65) == [(30, FIRE), (60, FIRE)]
    assert bench.advance_watermark(200) == [(90, FIRE), (99, FIRE)]
    assert bench.row(time=50) is FIRE
    bench.clear()
    assert bench.empty


def test_merged_windows_of_a_continuous_trigger_fire_at_the_earliest_of_their_times() -> None:
    """WIN-24."""
    for trigger, timers in (
        (ContinuousEventTimeTrigger.of(10), "event_timers"),
        (ContinuousProcessingTimeTrigger.of(10), "clock_timers"),
    ):
        bench = Bench(trigger)
        bench.now = 25
        bench.row(time=25, window=TimeWindow(20, 40))
        bench.now = 7
        bench.row(time=7, window=TimeWindow(5, 20))
        bench.merge(TimeWindow(5, 40), TimeWindow(5, 20), TimeWindow(20, 40))
        assert list(bench.cells.values()) == [10]
        assert (10, TimeWindow(5, 40)) in getattr(bench, timers)


def test_a_continuous_processing_time_trigger_fires_by_the_clock_and_at_the_end() -> None:
    bench = Bench(ContinuousProcessingTimeTrigger.of(40))
    bench.now = 15
    assert bench.row() is CONTINUE
    assert bench.advance_clock(80) == [(40, FIRE), (80, FIRE)]
    assert bench.advance_clock(99) == [(99, FIRE)]
    bench.clear()
    assert bench.empty


def test_a_continuous_processing_time_trigger_continues_after_the_window_ended() -> None:
    bench = Bench(ContinuousProcessingTimeTrigger.of(1000))
    bench.now = 10_500
    assert bench.row(time=5) is CONTINUE
    assert bench.advance_clock(12_100) == [(11_000, FIRE), (12_000, FIRE)]


def test_a_delta_trigger_fires_above_the_threshold_and_remembers_that_row() -> None:
    bench = Bench(DeltaTrigger.of(5, lambda last, row: row - last))
    assert [bench.row(value) for value in (1, 6, 7, 12, 13)] == [CONTINUE, CONTINUE, FIRE, CONTINUE, FIRE]
    assert list(bench.cells.values()) == [13]
    bench.clear()
    assert bench.empty
    assert not bench.trigger.can_merge


class Always(Trigger[Any]):
    """Gives one result for everything."""

    can_merge = True

    def __init__(self, result: TriggerResult) -> None:
        self.result = result

    def on_element(self, *_: Any) -> TriggerResult:
        return self.result

    on_event_time = on_processing_time = on_element

    def clear(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("given", "made"),
    [(CONTINUE, CONTINUE), (FIRE, FIRE_AND_PURGE), (PURGE, PURGE), (FIRE_AND_PURGE, FIRE_AND_PURGE)],
)
def test_a_purging_trigger_purges_where_the_other_fires(given: TriggerResult, made: TriggerResult) -> None:
    """WIN-24."""
    bench = Bench(PurgingTrigger.of(Always(given)))
    bench.register_event_time_timer(1)
    bench.register_processing_time_timer(1)
    assert bench.row() is made
    assert bench.advance_watermark(1) == [(1, made)]
    assert bench.advance_clock(1) == [(1, made)]


def test_a_purging_trigger_merges_and_clears_as_the_other_one() -> None:
    assert not PurgingTrigger.of(DeltaTrigger.of(1, max)).can_merge
    bench = Bench(PurgingTrigger.of(CountTrigger.of(3)))
    bench.row(window=TimeWindow(0, 2))
    bench.merge(TimeWindow(0, 4), TimeWindow(0, 2))
    assert bench.row() is CONTINUE and bench.row() is FIRE_AND_PURGE
    bench.row()
    bench.clear()
    assert bench.empty


def test_a_timeout_fires_after_the_first_row_and_restarts() -> None:
    bench = Bench(ProcessingTimeoutTrigger.of(CountTrigger.of(3), 50))
    assert bench.row() is CONTINUE
    bench.now = 20
    assert bench.row() is CONTINUE
    assert bench.advance_clock(50) == [(50, FIRE)]
    assert bench.empty
    assert [bench.row(), bench.row(), bench.row()] == [CONTINUE, CONTINUE, FIRE]
    assert bench.empty


def test_a_timeout_from_the_last_row_may_keep_the_state_of_the_inner_trigger() -> None:
    trigger = ProcessingTimeoutTrigger.of(
        CountTrigger.of(3), 50, reset_timer_on_new_record=True, should_clear_on_timeout=False
    )
    bench = Bench(PurgingTrigger.of(trigger))
    bench.row()
    bench.now = 20
    bench.row()
    assert bench.advance_clock(70) == [(50, CONTINUE), (70, FIRE_AND_PURGE)]
    assert bench.row() is FIRE_AND_PURGE


def test_a_restarted_timeout_keeps_the_timer_of_the_other_trigger() -> None:
    nested = ContinuousProcessingTimeTrigger.of(50)
    bench = Bench(
        ProcessingTimeoutTrigger.of(nested, 50, reset_timer_on_new_record=True, should_clear_on_timeout=False)
    )
    bench.row()
    bench.now = 20
    bench.row()
    assert bench.advance_clock(80) == [(50, FIRE), (70, FIRE)]
    assert bench.advance_clock(100) == [(99, FIRE)]


def test_a_timer_of_another_owner_is_no_timeout() -> None:
    bench = Bench(ProcessingTimeoutTrigger.of(EventTimeTrigger(), 50))
    bench.row()
    bench.register_processing_time_timer(10)
    assert bench.advance_clock(10) == [(10, CONTINUE)]
    assert bench.advance_watermark(99) == [(99, FIRE)]
    assert bench.empty


def test_a_trigger_that_never_fires_and_one_at_the_end_of_the_stream() -> None:
    """WIN-09, the trigger alone."""
    bench = Bench(NeverTrigger())
    assert bench.row() is CONTINUE and bench.empty
    bench.merge(TimeWindow(0, 200), TimeWindow(0, 100))
    bench = Bench(EndOfStreamTrigger())
    bench.row()
    bench.merge(TimeWindow(0, 200), TimeWindow(0, 100))
    assert bench.advance_watermark(END_OF_TIME - 1) == []
    assert bench.advance_watermark(END_OF_TIME) == [(END_OF_TIME, FIRE_AND_PURGE)]


def test_any_fires_with_the_first_and_each_keeps_its_own_state() -> None:
    bench = Bench(AnyTrigger.of(CountTrigger.of(2), CountTrigger.of(3), EventTimeTrigger()))
    assert [bench.row() for _ in range(6)] == [CONTINUE, FIRE, FIRE, FIRE, CONTINUE, FIRE]
    assert bench.advance_watermark(99) == [(99, FIRE)]
    bench.row()
    bench.clear()
    assert bench.empty


def test_all_fires_when_each_has_fired_since_the_last_time() -> None:
    bench = Bench(AllTrigger.of(CountTrigger.of(2), PurgingTrigger.of(EventTimeTrigger())))
    assert bench.row() is bench.row() is CONTINUE
    assert bench.advance_watermark(99) == [(99, FIRE_AND_PURGE)]
    assert [bench.row(), bench.row()] == [CONTINUE, FIRE_AND_PURGE]
    bench.row()
    bench.clear()
    assert bench.empty


def test_all_knows_after_a_merge_who_has_fired() -> None:
    bench = Bench(AllTrigger.of(CountTrigger.of(2), EventTimeTrigger()))
    bench.row(window=TimeWindow(0, 2))
    bench.row()
    bench.row(window=TimeWindow(2, 4))
    bench.merge(TimeWindow(0, 4), TimeWindow(0, 2), TimeWindow(2, 4))
    assert bench.advance_watermark(3) == [(3, FIRE)]


def test_in_a_combination_one_trigger_deletes_no_timer_of_another() -> None:
    timeout = ProcessingTimeoutTrigger.of(NeverTrigger(), 50, reset_timer_on_new_record=True)
    bench = Bench(AnyTrigger.of(timeout, ContinuousProcessingTimeTrigger.of(50)))
    bench.row()
    bench.now = 10
    bench.row()
    assert bench.advance_clock(50) == [(50, FIRE)]
    assert bench.advance_clock(60) == [(60, FIRE)]
    bench.clear()
    assert bench.clock_timers <= {(100, (0, 100))}


def test_combinations_can_merge_where_all_their_triggers_can() -> None:
    delta = DeltaTrigger.of(1, max)
    assert AnyTrigger.of(CountTrigger.of(1), EventTimeTrigger()).can_merge
    assert not AllTrigger.of(CountTrigger.of(1), delta).can_merge
    bench = Bench(AnyTrigger.of(delta, CountTrigger.of(9)))
    assert bench.row(1) is CONTINUE and bench.row(5) is FIRE


@pytest.mark.parametrize(
    ("make", "recorded"),
    [
        (lambda: CountTrigger.of(0), "CountTrigger cannot be used: the count is 0"),
        (lambda: ContinuousEventTimeTrigger.of(0), "the interval is 0"),
        (lambda: ContinuousProcessingTimeTrigger.of(-1), "the interval is -1"),
        (lambda: ProcessingTimeoutTrigger.of(CountTrigger.of(1), 0), "the timeout is 0"),
        (lambda: ProcessingTimeoutTrigger.of(7, 10), "it is 7, which is no trigger"),
        (lambda: PurgingTrigger.of(CountTrigger), "which is no trigger"),
        (lambda: DeltaTrigger.of("far", max), "the threshold is 'far'"),
        (lambda: DeltaTrigger.of(float("nan"), max), "the threshold is nan"),
        (lambda: DeltaTrigger.of(1, None), "the delta function is None"),
        (lambda: AnyTrigger.of(CountTrigger.of(1)), "it has 1 trigger"),
        (lambda: AllTrigger.of(CountTrigger.of(1), None), "it is None"),
        (lambda: AllTrigger.of(*[CountTrigger.of(1)] * 32), "it has 32 triggers"),
        (lambda: CountEvictor.of(-3), "the count is -3"),
        (lambda: TimeEvictor.of("0 s"), "the size is '0 s'"),
        (lambda: DeltaEvictor.of(None, max), "the threshold is None"),
    ],
)
def test_what_no_trigger_or_evictor_can_have_is_refused_when_it_is_declared(make: Any, recorded: str) -> None:
    with pytest.raises(InvalidWindowError, match=recorded):
        make()


def elements(*pairs: tuple[int, int | None]) -> list[TimestampedValue]:
    return [TimestampedValue(value, time) for value, time in pairs]


def left(evictor: Any, given: list[TimestampedValue], *, after: bool = False) -> list[int]:
    window, bench = TimeWindow(0, 100), Bench(NeverTrigger())
    before = evictor.evict_before(given, window, bench)
    assert after is (before is given)
    return [element.value for element in evictor.evict_after(before, window, bench)]


@pytest.mark.parametrize("after", [False, True])
def test_evictors_keep_the_last_rows_the_latest_times_and_what_is_near(after: bool) -> None:
    rows = elements((1, 10), (9, 70), (5, 50), (7, 60))
    assert left(CountEvictor.of(2, do_evict_after=after), rows, after=after) == [5, 7]
    # What is exactly as old as the size goes.
    assert left(TimeEvictor.of(20, do_evict_after=after), rows, after=after) == [9, 7]
    delta = DeltaEvictor.of(2, lambda row, last: abs(row - last), do_evict_after=after)
    # What is exactly as far as the threshold goes.
    assert left(delta, rows, after=after) == [7]


def test_evictors_keep_few_rows_and_rows_without_time() -> None:
    rows = elements((1, None), (2, 5))
    assert left(TimeEvictor.of(1), rows, after=True) == [1, 2]
    assert [kept.value for kept in CountEvictor.of(2).evict_before(rows, None, None)] == [1, 2]
    assert left(TimeEvictor.of(3), elements((1, 5), (2, None))) == [1]
    for evictor in (CountEvictor.of(1), TimeEvictor.of(1), DeltaEvictor.of(1, max)):
        assert list(evictor.evict_before([], None, None)) == []
