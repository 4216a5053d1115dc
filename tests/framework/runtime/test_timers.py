"""Timers of process functions: registering, firing, the context, errors; by row and by columns."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from keyedstate import types
from keyedstate.errors import (
    ConfigError,
    InvalidFunctionError,
    InvalidTimerTimeError,
    NoEventTimeError,
    UserFunctionError,
)
from keyedstate.runtime import (
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    TimeDomain,
    VectorizedProcessFunction,
)
from keyedstate.state import Ttl, TtlClock, ValueState
from keyedstate.state.clock import BEFORE_TIME
from keyedstate.testing import Harness
from keyedstate.time import EventTime, HeapTimerQueue, OrderedTimerQueue

SCHEMA = "k string, at timestamp, n long"
OUTPUT = "k string, what string, at long, n long"


def at(ms: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(milliseconds=ms)


def harness_of(function, backend_name, **settings):
    event_time = EventTime("at", settings.pop("delay", None))
    arguments = {
        "key": "k",
        "schema": SCHEMA,
        "output": OUTPUT,
        "event_time": event_time,
        "backend": backend_name,
    }
    return Harness(function, **{**arguments, **settings})


class Silence(KeyedProcessFunction):
    """Yields a row when a key has been silent for 100 ms of event time; and a minute later in real time."""

    last = ValueState("last", types.INT64)
    alerts = ValueState("alerts", types.INT64, default=0)

    def process(self, row, ctx):
        timers = ctx.timer_service
        last = self.last.value()
        if last is not None:
            timers.delete_event_time_timer(last + 100)
        self.last.update(ctx.timestamp)
        timers.register_event_time_timer(ctx.timestamp + 100)
        timers.register_event_time_timer(ctx.timestamp + 100)

    def on_timer(self, time, ctx):
        if ctx.time_domain is TimeDomain.EVENT_TIME:
            self.alerts.update(self.alerts.value() + 1)
            ctx.timer_service.register_processing_time_timer(
                ctx.timer_service.current_processing_time + 60_000
            )
            yield ctx.key, "silent", time, self.alerts.value()
        else:
            yield ctx.key, "still", ctx.timestamp, self.alerts.value()


@pytest.fixture
def silence(backend_name):
    with harness_of(Silence(), backend_name, parallelism=2) as harness:
        yield harness


def test_a_timer_fires_once_when_the_watermark_reaches_it(silence):
    """TM-06, TM-08, TM-11."""
    silence.process_all([("a", at(0), 1), ("b", at(50), 1), ("a", at(30), 1)])
    assert silence.advance_watermark(129) == []
    assert silence.advance_watermark(130) == [("a", "silent", 130, 1)]
    assert silence.advance_watermark(1000) == [("b", "silent", 150, 1)]
    assert silence.advance_watermark(2000) == []
    assert silence.outputs == [("a", "silent", 130, 1), ("b", "silent", 150, 1)]


def test_a_processing_time_timer_fires_at_its_time(silence):
    """TM-07."""
    silence.process(("a", at(0), 1))
    silence.advance_processing_time(500)
    silence.advance_watermark(100)
    assert silence.advance_processing_time(59_999) == []
    assert silence.advance_processing_time(1) == [("a", "still", 60_500, 1)]
    assert silence.advance_processing_time("1 day") == []


def test_timers_are_state_they_come_back_and_move_with_their_keys(silence):
    keys = [f"key-{number}" for number in range(40)]
    silence.process_all([(key, at(number), 0) for number, key in enumerate(keys)])
    silence.end_epoch()
    snapshot = silence.snapshot()
    for parallelism in (1, 5):
        silence.restore(snapshot, parallelism)
        fired = silence.advance_watermark(109)
        assert sorted(fired, key=lambda row: row[2]) == [
            (key, "silent", 100 + number, 1) for number, key in enumerate(keys[:10])
        ]
    silence.rescale(3)
    assert {row[0] for row in silence.advance_watermark(1000)} == set(keys[10:])


@pytest.mark.parametrize("name", ["nested-map", "sqlite", "heap-cow"])
def test_timers_go_over_to_another_backend(silence, name):
    silence.process_all([("a", at(0), 1), ("b", at(5), 1)])
    with harness_of(Silence(), name, restore=silence.snapshot()) as other:
        assert other.advance_watermark(200) == [("a", "silent", 100, 1), ("b", "silent", 105, 1)]


@pytest.mark.parametrize(
    ("backend", "queue", "chosen"),
    [
        ("rocksdb", "auto", OrderedTimerQueue),
        ("rocksdb", "ordered", OrderedTimerQueue),
        ("rocksdb", "heap", HeapTimerQueue),
        ("heap-cow", "auto", HeapTimerQueue),
        ("sqlite", "auto", OrderedTimerQueue),
    ],
)
def test_an_option_says_where_the_order_of_timers_is_kept(backend, queue, chosen):
    """TIMER-01, PQ-11: and the timers are the same."""
    with harness_of(Silence(), backend, options={"timers.queue": queue}) as harness:
        (instance,) = harness.instances
        assert type(instance._operator._user_timers._event) is chosen
        harness.process_all([("a", at(0), 1), ("b", at(50), 1), ("a", at(30), 1)])
        assert harness.advance_watermark(149) == [("a", "silent", 130, 1)]
        harness.restore(harness.snapshot())
        assert harness.advance_watermark(150) == [("b", "silent", 150, 1)]


def test_a_backend_without_ordered_timers_is_refused_for_an_ordered_queue():
    with (
        pytest.raises(ConfigError, match=r"Set timers\.queue to 'auto'") as caught,
        harness_of(Silence(), "heap-cow", options={"timers.queue": "ordered"}) as harness,
    ):
        harness.process(("a", at(0), 1))
    assert "'heap-cow'" in str(caught.value)


def test_timers_due_by_the_delay_fire_at_the_end_of_an_epoch(backend_name):
    with harness_of(Silence(), backend_name, delay=10) as harness:
        harness.process_all([("a", at(0), 1), ("b", at(111), 1)])
        # In this epoch nothing is known of the rows before it.
        assert harness.end_epoch() == []
        assert harness.watermark == 100
        harness.process(("a", at(100), 1))  # in time: the timer goes
        harness.process(("c", at(-3), 1))
        assert harness.end_epoch() == [("c", "silent", 97, 1)]
        assert harness.end_epoch() == []


class Steps(KeyedProcessFunction):
    """Registers what its rows say, and notes what fires; each timer registers one twice as far."""

    def process(self, row, ctx):
        ctx.timer_service.register_event_time_timer(row.n)

    def on_timer(self, time, ctx):
        assert ctx.timestamp == time
        ctx.timer_service.register_event_time_timer(time * 2)
        yield ctx.key, "fired", time, ctx.watermark


def test_timers_fire_in_order_and_those_registered_meanwhile_with_them(backend_name):
    with harness_of(Steps(), backend_name) as harness:
        harness.process_all([("a", at(0), 30), ("b", at(0), 20), ("a", at(0), 7)])
        fired = harness.advance_watermark(60)
        assert [(key, time) for key, _, time, _ in fired] == [
            ("a", 7),
            ("a", 14),
            ("b", 20),
            ("a", 28),
            ("a", 30),
            ("b", 40),
            ("a", 56),
            ("a", 60),
        ]
        assert {row[3] for row in fired} == {60}


def test_end_of_input_fires_all_timers_but_no_new_ones(backend_name):
    with harness_of(Steps(), backend_name, parallelism=2) as harness:
        harness.process_all([("a", at(0), 30), ("b", at(0), 2**61), ("c", at(0), -5)])
        fired = {(key, time) for key, _, time, _ in harness.end_input()}
        assert fired == {("a", 30), ("b", 2**61), ("c", -5)}
        assert harness.num_entries() == 0


class Forgetful(KeyedProcessFunction):
    def process(self, row, ctx):
        ctx.timer_service.register_event_time_timer(1)


def test_timers_without_on_timer_are_refused_with_the_way_out(backend_name):
    with harness_of(Forgetful(), backend_name) as harness:
        with pytest.raises(UserFunctionError, match="define on_timer") as caught:
            harness.process(("a", at(0), 1))
        assert isinstance(caught.value.__cause__, InvalidFunctionError)


def test_event_time_timers_without_event_time_are_refused_and_processing_time_works(backend_name):
    class Function(KeyedProcessFunction):
        def process(self, row, ctx):
            if row.n:
                ctx.timer_service.register_event_time_timer(1)
            ctx.timer_service.register_processing_time_timer(10)

        def on_timer(self, time, ctx):
            yield ctx.key, ctx.time_domain.value, time, 0

    with harness_of(Function(), backend_name, event_time=None) as harness:
        harness.process(("a", at(0), 0))
        assert harness.advance_processing_time(10) == [("a", "processing-time", 10, 0)]
        with pytest.raises(UserFunctionError, match=r"event_time=EventTime\('ts'") as caught:
            harness.process(("a", at(0), 1))
        assert isinstance(caught.value.__cause__, NoEventTimeError)


class Failing(KeyedProcessFunction):
    def process(self, row, ctx):
        ctx.timer_service.register_event_time_timer(row.n)

    def on_timer(self, time, ctx):
        if time == 7:
            raise KeyError("broken")
        if time == 8:
            return ("a", "b", 1, 2)
        return [(ctx.key, "fine", time, 0)]


def test_an_error_of_on_timer_names_the_key_and_the_time(backend_name):
    """TM-15."""
    with harness_of(Failing(), backend_name) as harness:
        harness.process_all([("bad", at(0), 7), ("good", at(0), 6)])
        with pytest.raises(UserFunctionError) as caught:
            harness.advance_watermark(10)
        error = caught.value
        assert (error.step, error.key, error.time) == ("on_timer", "bad", 7)
        assert "'bad'" in str(error) and "timer at 7" in str(error) and "epoch 0" in str(error)
        assert isinstance(error.__cause__, KeyError)
        harness.process(("single", at(0), 8))
        with pytest.raises(UserFunctionError, match="on_timer\\(\\) must yield its rows"):
            harness.advance_watermark(10)


def test_a_row_of_another_schema_names_the_key_of_its_timer(backend_name):
    class Wrong(Failing):
        def on_timer(self, time, ctx):
            yield (ctx.key, "x", time, 1 if time < 5 else "no number")

    with harness_of(Wrong(), backend_name) as harness:
        harness.process_all([("a", at(0), 1), ("b", at(0), 9)])
        with pytest.raises(Exception, match="'b'"):
            harness.advance_watermark(10)


def test_timers_survive_a_function_without_on_timer(backend_name):
    class Without(KeyedProcessFunction):
        def process(self, row, ctx):
            return None

    with harness_of(Steps(), backend_name) as harness:
        harness.process(("a", at(0), 30))
        first = harness.snapshot()
    with harness_of(Without(), backend_name, restore=first) as harness:
        assert harness.advance_watermark(100) == []
        second = harness.snapshot()
    with harness_of(Steps(), backend_name, restore=second) as harness:
        assert harness.advance_watermark(40) == [("a", "fired", 30, 100), ("a", "fired", 60, 100)]


def test_states_that_expire_are_stamped_by_the_watermark_when_a_timer_fires(backend_name):
    class Expiring(KeyedProcessFunction):
        seen = ValueState("seen", types.INT64, ttl=Ttl(100, clock=TtlClock.EVENT_TIME))

        def process(self, row, ctx):
            ctx.timer_service.register_event_time_timer(row.n)
            ctx.timer_service.register_processing_time_timer(10**9)

        def on_timer(self, time, ctx):
            yield ctx.key, str(self.seen.value()), time, 0
            self.seen.update(time)

    with harness_of(Expiring(), backend_name) as harness:
        harness.process_all([("a", at(0), 10), ("a", at(0), 220), ("a", at(0), 320)])
        assert harness.advance_watermark(200) == [("a", "None", 10, 0)]
        # Written at watermark 200, however early its timer was and however far processing time is.
        assert harness.advance_processing_time(10**9) == [("a", "10", 10**9, 0)]
        assert harness.advance_watermark(299) == [("a", str(10**9), 220, 0)]
        assert harness.advance_watermark(399) == [("a", "None", 320, 0)]


def test_functions_with_a_broadcast_side_have_timers(backend_name):
    class Both(KeyedBroadcastProcessFunction):
        def process(self, row, ctx):
            ctx.timer_service.register_event_time_timer(row.n)

        def process_broadcast(self, row, ctx):
            return None

        def on_timer(self, time, ctx):
            yield ctx.key, "fired", time, 0

    with harness_of(Both(), backend_name, broadcast="r string") as harness:
        harness.process(("a", at(0), 3))
        harness.process_broadcast(("rule",))
        assert harness.advance_watermark(3) == [("a", "fired", 3, 0)]


def test_the_context_of_a_timer_has_the_facts_of_a_rows(backend_name):
    seen = []

    class Telling(KeyedProcessFunction):
        def process(self, row, ctx):
            assert ctx.timer_service.current_watermark == ctx.watermark
            ctx.timer_service.register_processing_time_timer(5)

        def on_timer(self, time, ctx):
            telling = (ctx.key, ctx.epoch, ctx.task, ctx.parallelism, ctx.timestamp, ctx.watermark)
            yield ctx.key, repr(telling), ctx.timer_service.current_processing_time, len(seen)

    with harness_of(Telling(), backend_name) as harness:
        harness.end_epoch()
        harness.process(("a", at(0), 3))
        assert harness.advance_processing_time(6) == [("a", f"('a', 1, 0, 1, 5, {BEFORE_TIME})", 6, 0)]


def test_so_many_timers_that_their_rows_become_several_batches_all_fire(backend_name):
    with harness_of(Silence(), backend_name) as harness:
        harness.process_all([(f"key-{n}", at(n % 7), 0) for n in range(25_000)])
        fired = harness.advance_watermark(1000)
        assert len(fired) == 25_000 and len({row[0] for row in fired}) == 25_000
        assert [row[2] for row in fired] == sorted(row[2] for row in fired)


# -- by columns -------------------------------------------------------------------------------------------


class Columns(VectorizedProcessFunction):
    """`Silence` by columns, with timers of one time for all keys too."""

    batch_rows = 1000
    counts = ValueState("counts", types.INT64)

    def process_batch(self, batch, ctx):
        times = np.array(batch.column("n").to_pylist())
        ctx.timer_service.register_event_time_timers(batch.keys, times, batch.key_groups)
        ctx.timer_service.register_processing_time_timers(batch.keys, 50)
        ctx.timer_service.delete_processing_time_timers([key for key in batch.keys if key == "b"], 50)

    def on_timers(self, timers, ctx):
        assert ctx.key is None
        known = self.counts.get_many(timers.keys, timers.key_groups)
        counts = [1 if count is None else count + 1 for count in known]
        self.counts.update_many(timers.keys, counts, timers.key_groups)
        if timers.domain is TimeDomain.EVENT_TIME:
            again = [(key, time) for key, time in zip(timers.keys, timers.times, strict=True) if time == 7]
            ctx.timer_service.register_event_time_timers([key for key, _ in again], 8)
        yield pa.table(
            {
                "k": timers.keys,
                "what": [timers.domain.value] * len(timers),
                "at": timers.times,
                "n": counts,
            }
        )


def test_a_vectorised_function_gets_timers_by_columns(backend_name):
    with harness_of(Columns(), backend_name, parallelism=2) as harness:
        harness.process_all([("a", at(0), 7), ("b", at(0), 9), ("c", at(0), 5), ("d", at(0), 100)])
        fired = harness.advance_watermark(10)
        assert sorted(fired) == [
            ("a", "event-time", 7, 1),
            ("a", "event-time", 8, 2),
            ("b", "event-time", 9, 1),
            ("c", "event-time", 5, 1),
        ]
        assert sorted(row[0] for row in harness.advance_processing_time(50)) == ["a", "c", "d"]
        harness.restore(harness.snapshot(), 3)
        assert harness.end_input() == [("d", "event-time", 100, 2)]


class Sizes(Columns):
    """Tells of each timer in how big a batch it came."""

    def on_timers(self, timers, ctx):
        assert list(timers.times) == sorted(timers.times)
        yield pa.table(
            {
                "k": timers.keys,
                "what": ["x"] * len(timers),
                "at": timers.times,
                "n": [len(timers)] * len(timers),
            }
        )


def test_a_vectorised_function_gets_many_timers_in_batches_of_its_size(backend_name):
    with harness_of(Sizes(), backend_name) as harness:
        harness.process_all([(f"key-{n}", at(0), n // 2) for n in range(4_999)])
        fired = harness.advance_watermark(10**6)
        assert len({row[0] for row in fired}) == len(fired) == 4_999
        assert [row[3] for row in fired] == [1000] * 4000 + [999] * 999


def test_a_vectorised_function_without_on_timers_has_no_timers(backend_name):
    class Without(VectorizedProcessFunction):
        def process_batch(self, batch, ctx):
            ctx.timer_service.register_event_time_timers(batch.keys, 5)

    with (
        harness_of(Without(), backend_name) as harness,
        pytest.raises(UserFunctionError, match="on_timers"),
    ):
        harness.process(("a", at(0), 1))


def test_an_error_of_on_timers_is_the_functions(backend_name):
    class Raising(Columns):
        def on_timers(self, timers, ctx):
            raise ValueError("no")

    with harness_of(Raising(), backend_name) as harness:
        harness.process(("a", at(0), 1))
        with pytest.raises(UserFunctionError, match=r"ValueError: no. Raised in Raising\.on_timers\(\)"):
            harness.advance_watermark(10)


def test_a_time_that_is_none_is_refused_where_the_function_registers_it(backend_name):
    class Bad(Columns):
        def process_batch(self, batch, ctx):
            ctx.timer_service.register_event_time_timers(batch.keys, "soon")

    with harness_of(Bad(), backend_name) as harness:
        with pytest.raises(UserFunctionError) as caught:
            harness.process(("a", at(0), 1))
        assert isinstance(caught.value.__cause__, InvalidTimerTimeError)
