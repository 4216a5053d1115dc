"""Whatever is done to a harness, in any order: outputs and state are those of a few plain dicts."""

from __future__ import annotations

import datetime as dt
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from keyedstate import types
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.state import ListState, Ttl, TtlClock, ValueState
from keyedstate.testing import Harness, HarnessSnapshot
from keyedstate.time import EventTime

TTL_MS = 10
DELAY_MS = 5
MAX_PARALLELISM = 8
KEYS = [None, "", "a", "b", "c", "\U0001f600", "key-6", "key-7"]


class Modelled(KeyedProcessFunction):
    """Keeps a count for ever, values for some processing time, and the last number for some event time."""

    count = ValueState("count", types.INT64, default=0)
    recent = ListState("recent", types.INT64, ttl=Ttl.of(TTL_MS))
    last = ValueState("last", types.INT64, default=-1, ttl=Ttl.of(TTL_MS, clock=TtlClock.EVENT_TIME))

    def process(self, row, ctx):
        before = self.last.value()
        self.count.update(self.count.value() + 1)
        self.recent.add(row.n)
        self.last.update(row.n)
        yield ctx.key, self.count.value(), list(self.recent.get()), before


class Model:
    """The same, in dicts that hold everything with its time."""

    def __init__(self) -> None:
        self.count: dict[Any, int] = {}
        self.recent: dict[Any, list[tuple[int, int]]] = {}
        self.last: dict[Any, tuple[int, int]] = {}
        self.watermark = 0
        self.largest: int | None = None

    def copy(self) -> Model:
        other = Model()
        other.count, other.last, other.watermark = dict(self.count), dict(self.last), self.watermark
        other.largest = self.largest
        other.recent = {key: list(values) for key, values in self.recent.items()}
        return other

    def recent_of(self, key: Any, now: int) -> list[int]:
        return [n for time, n in self.recent.get(key, []) if time + TTL_MS > now]

    def last_of(self, key: Any) -> int:
        time, n = self.last.get(key, (0, -1))
        return n if time + TTL_MS > self.watermark else -1

    def process(self, key: Any, n: int, now: int, timestamp: int | None) -> tuple[Any, ...]:
        before = self.last_of(key)
        if timestamp is not None:
            self.largest = timestamp if self.largest is None else max(self.largest, timestamp)
        self.count[key] = self.count.get(key, 0) + 1
        self.recent.setdefault(key, []).append((now, n))
        self.last[key] = max(self.watermark, self.watermark if timestamp is None else timestamp), n
        return key, self.count[key], self.recent_of(key, now), before

    def end_epoch(self) -> None:
        if self.largest is not None:
            self.watermark = max(self.watermark, self.largest - DELAY_MS - 1)
        self.largest = None


def instant(ms: int | None) -> dt.datetime | None:
    return None if ms is None else dt.datetime.fromtimestamp(ms / 1000, dt.timezone.utc)


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("rows"),
            st.lists(
                st.tuples(st.sampled_from(KEYS), st.integers(0, 9), st.none() | st.integers(0, 60)),
                max_size=6,
            ),
        ),
        st.tuples(st.just("clock"), st.integers(0, 12)),
        st.tuples(st.just("watermark"), st.integers(0, 60)),
        st.tuples(st.just("snapshot")),
        st.tuples(st.just("restore"), st.integers(0, 3), st.integers(1, MAX_PARALLELISM)),
        st.tuples(st.just("rescale"), st.integers(1, MAX_PARALLELISM)),
        st.tuples(st.just("epoch")),
    ),
    max_size=25,
)


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS)
def test_a_harness_does_what_plain_dicts_do(backend_name: str, steps: list[tuple[Any, ...]]) -> None:
    model, now, epoch = Model(), 0, 0
    snapshots: list[tuple[HarnessSnapshot, Model, int]] = []
    output = "user string, count long, recent array<long>, before long"
    harness = Harness(
        Modelled(),
        key="user",
        schema="user string, n long, at timestamp",
        event_time=EventTime("at", DELAY_MS),
        output=output,
        backend=backend_name,
        max_parallelism=MAX_PARALLELISM,
    )
    with harness:
        harness.advance_watermark(0)
        for step, *details in steps:
            if step == "rows":
                (rows,) = details
                expected = [model.process(key, n, now, time) for key, n, time in rows]
                found = harness.process_all([(key, n, instant(time)) for key, n, time in rows])
                assert list(map(tuple, found)) == expected
            elif step == "clock":
                now += details[0]
                harness.advance_processing_time(details[0])
            elif step == "watermark":
                model.watermark = max(model.watermark, details[0])
                harness.advance_watermark(details[0])
            elif step == "snapshot":
                snapshots.append((harness.snapshot(), model.copy(), epoch))
            elif step == "restore" and details[0] < len(snapshots):
                snapshot, before, epoch = snapshots[details[0]]
                model = before.copy()
                harness.restore(snapshot, details[1])
            elif step == "rescale":
                harness.rescale(details[0])
            elif step == "epoch":
                epoch += 1
                model.end_epoch()
                harness.end_epoch()
            assert (harness.epoch, harness.watermark, harness.processing_time) == (
                epoch,
                model.watermark,
                now,
            )
        assert sorted(map(str, harness.keys("count"))) == sorted(map(str, model.count))
        for key in KEYS:
            assert harness.state(Modelled.count, key).value() == model.count.get(key, 0)
            assert list(harness.state(Modelled.recent, key).get() or ()) == model.recent_of(key, now)
            assert harness.state(Modelled.last, key).value() == model.last_of(key)
