"""Time in a harness: nothing moves it but the test, and states with a time to live see it at once."""

from __future__ import annotations

import datetime as dt

import pytest

from keyedstate import types
from keyedstate.errors import (
    EventTimeError,
    HarnessClosedError,
    HarnessSchemaError,
    HarnessSettingError,
    InvalidDurationError,
    MissingEventTimeError,
)
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.state import ListState, MapState, ReducingState, Ttl, TtlClock, UpdateType, ValueState
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME, ManualClock
from keyedstate.time import EventTime

ROWS = "user string, n long"
EVENT_ROWS = "user string, n long, at timestamp"
TIMES = "user string, at long, watermark long"


class Sessions(KeyedProcessFunction):
    """Counts what a user does within 100 ms of the last time."""

    count = ValueState("count", types.INT64, default=0, ttl=Ttl.of("100 ms"))
    seen = ListState("seen", types.INT64, ttl=Ttl.of("100 ms"))
    by_n = MapState("by-n", types.INT64, types.STRING, ttl=Ttl.of("100 ms"))
    sum = ReducingState("sum", lambda one, other: one + other, types.INT64, ttl=Ttl.of("100 ms"))

    def process(self, row, ctx):
        self.count.update(self.count.value() + 1)
        self.seen.add(row.n)
        self.by_n.put(row.n, row.user)
        self.sum.add(row.n)
        yield ctx.key, self.count.value()


class EventSessions(KeyedProcessFunction):
    """The same in event time."""

    count = ValueState("count", types.INT64, default=0, ttl=Ttl.of("100 ms", clock=TtlClock.EVENT_TIME))

    def process(self, row, ctx):
        self.count.update(self.count.value() + 1)
        yield ctx.key, self.count.value()


class Times(KeyedProcessFunction):
    """Tells the event time of each row, and the watermark."""

    def open(self, ctx):
        self.opened_at = ctx.watermark

    def process(self, row, ctx):
        yield ctx.key, ctx.timestamp, ctx.watermark


@pytest.fixture
def sessions(harness):
    def make(function=None, **arguments):
        output = TIMES if isinstance(function, Times) else ROWS
        return harness(function or Sessions(), **{"schema": ROWS, "output": output, **arguments})

    return make


# -- processing time -----------------------------------------------------------------------------------


def test_time_is_constant_until_it_is_moved(sessions):
    harness = sessions()
    assert harness.processing_time == 0
    harness.process(("ann", 1))
    assert harness.processing_time == 0
    harness.advance_processing_time(5)
    harness.advance_processing_time(dt.timedelta(seconds=1))
    harness.advance_processing_time("2 min")
    assert harness.processing_time == 121_005
    harness.set_processing_time(dt.datetime(1970, 1, 2, tzinfo=dt.timezone.utc))
    assert harness.processing_time == 86_400_000
    harness.advance_processing_time(-1)
    assert harness.processing_time == 86_399_999


def test_what_is_written_expires_when_its_time_is_over(sessions):
    """TTL-03: at exactly its age it is expired."""
    harness = sessions(parallelism=2)
    harness.process_all([("ann", 1), ("bob", 2)])
    harness.advance_processing_time(99)
    assert harness.process(("ann", 3)) == [("ann", 2)]
    harness.advance_processing_time(1)
    assert harness.process_all([("ann", 4), ("bob", 4)]) == [("ann", 3), ("bob", 1)]


def test_a_test_reads_nothing_of_what_is_expired(sessions):
    """TTL-01: in no kind of state, neither with a new handle nor with one from before."""
    harness = sessions()
    harness.process(("ann", 1))
    count, seen = harness.state(Sessions.count, "ann"), harness.state(Sessions.seen, "ann")
    harness.advance_processing_time(99)
    assert (count.value(), list(seen.get()), harness.state("sum", "ann").get()) == (1, [1], 1)
    assert dict(harness.state("by-n", "ann").items()) == {1: "ann"}
    harness.advance_processing_time(1)
    assert (count.value(), seen.get(), harness.state("sum", "ann").get()) == (0, [], None)
    assert dict(harness.state("by-n", "ann").items()) == {}
    assert harness.num_entries() == 0


def test_a_write_by_a_test_starts_its_time_to_live(sessions):
    harness = sessions()
    harness.set_processing_time(1_000)
    harness.state(Sessions.count, "ann").update(7)
    harness.advance_processing_time(99)
    assert harness.process(("ann", 1)) == [("ann", 8)]
    harness.advance_processing_time(100)
    assert harness.process(("ann", 1)) == [("ann", 1)]


def test_a_read_by_a_test_refreshes_the_time_to_live(sessions):
    """TTL-05."""

    class Read(KeyedProcessFunction):
        last = ValueState("last", types.INT64, ttl=Ttl.of(100, update=UpdateType.ON_READ_AND_WRITE))

        def process(self, row, ctx):
            self.last.update(row.n)

    harness = sessions(Read())
    harness.process(("ann", 7))
    for _ in range(3):
        harness.advance_processing_time(99)
        assert harness.state(Read.last, "ann").value() == 7
    harness.advance_processing_time(100)
    assert harness.state(Read.last, "ann").value() is None


def test_timestamps_are_in_snapshots_and_the_clock_is_not(sessions):
    """TTL-13."""
    harness = sessions()
    harness.process(("ann", 1))
    harness.advance_processing_time(60)
    harness.process(("bob", 1))
    snapshot = harness.snapshot()
    harness.advance_processing_time(50)
    harness.restore(snapshot)
    assert harness.processing_time == 110
    assert harness.process_all([("ann", 1), ("bob", 1)]) == [("ann", 1), ("bob", 2)]
    later = sessions(clock=ManualClock(160), restore=snapshot, parallelism=3)
    assert later.process_all([("ann", 1), ("bob", 1)]) == [("ann", 1), ("bob", 1)]


def test_rescaled_state_expires_when_it_would_have(sessions):
    harness = sessions()
    harness.process_all([("ann", 1), ("bob", 1), ("cyd", 1)])
    harness.advance_processing_time(99)
    harness.rescale(3)
    assert [row.n for row in harness.process_all([("ann", 1), ("bob", 1)])] == [2, 2]
    harness.advance_processing_time(1)
    assert [row.n for row in harness.process_all([("ann", 1), ("cyd", 1)])] == [3, 1]


def test_an_idle_key_is_removed_at_the_end_of_an_epoch(sessions):
    class Indexed(KeyedProcessFunction):
        last = ValueState("last", types.INT64, ttl=Ttl.of(100, expiry_index=True))

        def process(self, row, ctx):
            self.last.update(row.n)

    harness = sessions(Indexed(), parallelism=2)
    harness.process_all([(f"user-{number}", number) for number in range(50)])
    harness.advance_processing_time(200)
    assert harness.num_entries() == len(harness.keys("last")) == 50
    harness.end_epoch()
    assert harness.num_entries() == 0


def test_a_clock_of_the_test_is_read_and_moved(sessions):
    clock = ManualClock(500)
    harness = sessions(clock=clock)
    harness.process(("ann", 1))
    clock.advance(100)
    assert harness.processing_time == 600
    assert harness.state(Sessions.count, "ann").value() == 0
    harness.advance_processing_time(7)
    assert clock.now == 607


def test_any_other_clock_is_read_and_cannot_be_moved(sessions):
    times = iter(range(0, 10**9, 1_000))
    harness = sessions(clock=lambda: next(times))
    assert harness.process_all([("ann", 1), ("ann", 2)]) == [("ann", 1), ("ann", 1)]
    for move in (lambda: harness.advance_processing_time(1), lambda: harness.set_processing_time(1)):
        with pytest.raises(HarnessSettingError, match=r"which it cannot move\. Give a keyedstate"):
            move()


# -- event time ----------------------------------------------------------------------------------------


def at(ms: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(milliseconds=ms)


@pytest.fixture
def event_sessions(sessions):
    def make(function=None, **arguments):
        event_time = EventTime(arguments.pop("time", "at"), arguments.pop("delay", None))
        return sessions(
            function or EventSessions(), **{"schema": EVENT_ROWS, "event_time": event_time, **arguments}
        )

    return make


def test_event_time_state_expires_by_the_watermark(event_sessions):
    harness = event_sessions(parallelism=2)
    harness.advance_watermark(1_000)
    harness.process_all([("ann", 1, None), ("bob", 1, None)])
    harness.advance_processing_time("10 s")
    harness.advance_watermark(1_099)
    assert harness.process(("ann", 1, None)) == [("ann", 2)]
    harness.advance_watermark(1_100)
    assert harness.process_all([("ann", 1, None), ("bob", 1, None)]) == [("ann", 3), ("bob", 1)]


def test_the_watermark_never_goes_back(event_sessions):
    harness = event_sessions()
    assert harness.watermark == BEFORE_TIME
    harness.advance_watermark(1_000)
    harness.advance_watermark(500)
    assert harness.watermark == 1_000
    harness.advance_watermark(dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-1))))
    assert harness.watermark == 7_200_000


def test_a_row_ahead_of_the_watermark_lives_from_its_own_time(event_sessions):
    harness = event_sessions()
    harness.advance_watermark(1_000)
    harness.process_all(
        [("ann", 1, at(1_500)), ("bob", 1, at(1_200)), ("cyd", 1, at(1_200)), ("dan", 1, at(10))]
    )
    harness.process(("eve", 1, None))
    counts = [harness.state(EventSessions.count, user) for user in ("ann", "bob", "cyd", "dan", "eve")]
    for watermark, living in [(1_099, 5), (1_100, 3), (1_299, 3), (1_300, 1), (1_599, 1), (1_600, 0)]:
        harness.advance_watermark(watermark)
        assert [count.value() for count in counts] == [1] * living + [0] * (5 - living), watermark


def test_a_state_first_used_by_a_row_sees_later_times(event_sessions):
    class Later(KeyedProcessFunction):
        def process(self, row, ctx):
            later = ValueState("later", types.INT64, ttl=Ttl.of("100 ms", clock=TtlClock.EVENT_TIME))
            ctx.state(later).update(row.n)

    harness = event_sessions(Later())
    harness.process_all([("ann", 1, at(1_000)), ("bob", 2, at(5_000))])
    harness.advance_watermark(2_000)
    assert [harness.state("later", user).value() for user in ("ann", "bob")] == [None, 2]


def test_a_write_by_a_test_has_no_row_time(event_sessions):
    harness = event_sessions()
    harness.advance_watermark(1_000)
    handle = harness.state(EventSessions.count, "bob")
    harness.process(("ann", 1, at(5_000)))
    handle.update(7)
    harness.advance_watermark(1_100)
    assert (handle.value(), harness.state(EventSessions.count, "ann").value()) == (0, 1)


def test_the_watermark_is_in_snapshots(event_sessions):
    harness = event_sessions()
    harness.advance_watermark(1_000)
    harness.process(("ann", 1, None))
    snapshot = harness.snapshot()
    assert snapshot.watermark == 1_000
    harness.advance_watermark(2_000)
    assert harness.state(EventSessions.count, "ann").value() == 0
    harness.restore(snapshot, parallelism=2)
    assert harness.watermark == 1_000
    assert harness.process(("ann", 1, None)) == [("ann", 2)]
    again = event_sessions(restore=snapshot)
    assert again.state(EventSessions.count, "ann").value() == 1
    again.advance_watermark(END_OF_TIME)
    assert again.state(EventSessions.count, "ann").value() == 0


def test_with_a_delay_the_watermark_follows_the_rows_when_an_epoch_ends(event_sessions):
    harness = event_sessions(Times(), delay="1 s", parallelism=3)
    assert harness.process_all([("ann", 0, at(5_000)), ("bob", 0, None)]) == [
        ("ann", 5_000, BEFORE_TIME),
        ("bob", None, BEFORE_TIME),
    ]
    harness.process(("cyd", 0, at(3_000)))
    assert harness.watermark == BEFORE_TIME
    harness.end_epoch()
    assert harness.process(("ann", 0, at(4_500))) == [("ann", 4_500, 3_999)]
    assert [instance.function.opened_at for instance in harness.instances] == [3_999] * 3
    harness.end_epoch()
    assert harness.watermark == 3_999
    harness.advance_watermark(10_000)
    harness.process(("ann", 0, at(10_500)))
    harness.end_epoch()
    harness.end_epoch()
    assert harness.watermark == 10_000


def test_the_largest_event_time_is_in_snapshots(event_sessions):
    harness = event_sessions(Times(), delay=0)
    harness.process(("ann", 0, at(-5)))
    snapshot = harness.snapshot()
    harness.process(("ann", 0, at(7)))
    harness.restore(snapshot)
    harness.end_epoch()
    assert harness.watermark == -6
    assert snapshot.inputs["rows"].largest_event_time == -5
    assert event_sessions(Times(), delay=0, restore=snapshot).watermark == BEFORE_TIME


def test_an_epoch_without_any_time_leaves_the_watermark_where_it_is(event_sessions):
    harness = event_sessions(Times(), delay=0)
    harness.process(("ann", 0, None))
    harness.end_epoch()
    assert harness.watermark == BEFORE_TIME


def test_without_a_delay_only_the_test_moves_the_watermark(event_sessions):
    harness = event_sessions(Times())
    harness.process(("ann", 0, at(5_000)))
    harness.end_epoch()
    assert harness.watermark == BEFORE_TIME


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date"])
def test_any_column_of_times_has_event_times(event_sessions, kind):
    harness = event_sessions(Times(), schema=f"user string, n long, at {kind}")
    day = {"timestamp": at(86_400_000), "timestamp_ntz": dt.datetime(1970, 1, 2), "date": dt.date(1970, 1, 2)}
    assert harness.process(("ann", 0, day[kind])) == [("ann", 86_400_000, BEFORE_TIME)]


def test_a_column_of_other_values_or_none_at_all_is_refused(event_sessions):
    with pytest.raises(HarnessSchemaError, match="'event_time': it has the type int64"):
        event_sessions(time="n")
    with pytest.raises(HarnessSchemaError, match=r"'event_time': 'att' is none of .*Did you mean 'at'"):
        event_sessions(time="att")


def test_where_rows_have_no_event_time_nothing_may_ask_for_it(sessions):
    with pytest.raises(MissingEventTimeError, match="'count' expires in event time"):
        sessions(EventSessions())
    with pytest.raises(HarnessSettingError, match=r"event time of the rows is not known\. Name the column"):
        sessions().advance_watermark(1)


@pytest.mark.parametrize("delay", [None, 0, "1 minute"])
def test_only_the_test_moves_the_watermark_of_an_operator_that_follows_another_one(sessions, delay):
    harness = sessions(Times(), schema=EVENT_ROWS, event_time=EventTime("at", delay, follows="first"))
    harness.process(("ann", 1, dt.datetime(1970, 1, 2, tzinfo=dt.timezone.utc)))
    harness.end_epoch()
    assert harness.watermark == BEFORE_TIME
    harness.advance_watermark(100)
    first = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    assert harness.process(("ann", 1, first)) == [("ann", 0, 100)]


# -- times that are none -------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [1.5, "seven", None, True, dt.datetime(2024, 1, 1), dt.date(2024, 1, 1)])
def test_what_is_no_time_is_refused_and_moves_nothing(event_sessions, time):
    harness = event_sessions()
    with pytest.raises(HarnessSettingError, match="the watermark is"):
        harness.advance_watermark(time)
    with pytest.raises(HarnessSettingError, match="the processing time is"):
        harness.set_processing_time(time)
    with pytest.raises(InvalidDurationError, match="is no duration"):
        harness.advance_processing_time(time)
    if time is not None:
        with pytest.raises(InvalidDurationError, match="is no duration"):
            event_sessions(delay=time)
    with pytest.raises(EventTimeError, match="the delay -1 is negative"):
        event_sessions(delay=-1)
    assert (harness.watermark, harness.processing_time) == (BEFORE_TIME, 0)


def test_a_closed_harness_moves_no_time(event_sessions):
    harness = event_sessions()
    harness.close()
    for move in (harness.advance_processing_time, harness.set_processing_time, harness.advance_watermark):
        with pytest.raises(HarnessClosedError):
            move(1)
    assert (harness.processing_time, harness.watermark) == (0, BEFORE_TIME)
