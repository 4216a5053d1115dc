"""The end of a query of all available input: what is open then fires, once, and the query continues."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import keyedstate as ks
from keyedstate.aggregates import count
from keyedstate.errors import ConnectedFramesError, EndOfInputError
from keyedstate.windows import Tumbling

HAS_END = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


class Reported(ks.KeyedProcessFunction):
    """Reports the windows of a key a year after its first one, and never by processing time."""

    seen = ks.ListState("seen", ks.types.INT64)

    def __init__(self, broken: Path) -> None:
        self.broken = str(broken)

    def process(self, row: Any, ctx: ks.Context) -> Iterator[tuple[Any, ...]]:
        if not list(self.seen.get()):
            ctx.timer_service.register_event_time_timer(365 * 86_400_000)
            ctx.timer_service.register_processing_time_timer(2**53)
        self.seen.add(row.n)
        yield from ()

    def on_timer(self, time: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        if Path(self.broken).exists():
            raise RuntimeError("killed in the midst of firing")
        yield ctx.key, ctx.time_domain.value, sorted(self.seen.get())
        self.seen.clear()


@pytest.mark.long
@pytest.mark.skipif(not HAS_END, reason="before Spark 4.2 it is refused")
def test_the_windows_and_timers_of_a_chain_fire_once_in_a_micro_batch_after_all_input(
    new_stream: Any, tmp_path: Path, one_backend: str
) -> None:
    stream = new_stream(tmp_path, "k string, t timestamp")
    broken = tmp_path / "broken"

    def chain() -> DataFrame:
        config = {"checkpoint.dir": str(stream.state), "parallelism": 1, "backend": one_backend}
        time = ks.EventTime("t", delay="1 minute")
        rows = ks.keyed(stream.frame(), "k", uid="hours", config=config, event_time=time, end="fire")
        hours = rows.window(Tumbling.of("1 hour")).aggregate(n=count())
        end = ks.EventTime("window_end", delay=0)
        keyed = ks.keyed(hours, "k", uid="reports", config=config, event_time=end, end="fire")
        return keyed.process(Reported(broken), "k string, domain string, n array<long>")

    def row(key: str, minute: int) -> dict[str, str]:
        return {"k": key, "t": f"1970-01-01T{minute // 60:02}:{minute % 60:02}:00Z"}

    stream.add([row("a", 0), row("a", 10)])
    stream.add([row("a", 70), row("b", 70)])
    broken.touch()
    assert "killed in the midst of firing" in stream.failure(chain())
    assert sorted(stream.rows) == [0, 1]
    # The last micro-batch runs again as the same one, so that a sink which knows its number has it once.  The
    # run goes on in the same hosts with input that has come meanwhile, which is not late.
    broken.unlink()
    stream.add([row("c", 80)])
    out = chain()
    stream.run(out)
    assert {number: sorted(rows) for number, rows in stream.rows.items()} == {
        0: [],
        1: [],
        2: [("a", "event-time", [1, 2]), ("b", "event-time", [1])],
        3: [],
        4: [("c", "event-time", [1])],
    }
    # The same DataFrame with more input: a row behind the watermark is late, one of a fired window opens it.
    stream.rows.clear()
    stream.add([row("a", 5), row("a", 75), row("b", 200)])
    stream.run(out)
    assert {number: sorted(rows) for number, rows in stream.rows.items()} == {
        5: [],
        6: [("a", "event-time", [1]), ("b", "event-time", [1])],
    }


@pytest.mark.long
@pytest.mark.skipif(not HAS_END, reason="before Spark 4.2 it is refused")
def test_a_query_without_input_ends_after_two_micro_batches(stream: Any, one_backend: str) -> None:
    config = {"checkpoint.dir": str(stream.state), "parallelism": 1, "backend": one_backend}
    counted = ks.keyed(stream.frame(), "k", uid="u", config=config, end="fire").aggregate(n=count())
    stream.run(counted)
    # The first one has none before it that tells whether it has input.
    assert stream.rows == {0: [], 1: []}


@pytest.mark.skipif(not HAS_END, reason="before Spark 4.2 it is refused")
def test_the_source_looks_for_the_end_until_the_driver_makes_the_file(tmp_path: Path) -> None:
    from keyedstate.spark.plan.heartbeat_source import HeartbeatReader

    end = tmp_path / "end"
    reader = HeartbeatReader(0, str(end))
    first = reader.initialOffset()
    # With another trigger there is nothing to look for.
    assert reader.latestOffset(first) == first
    reader.prepareForTriggerAvailableNow()
    looked = reader.latestOffset(first)
    assert looked != first and reader.latestOffset(looked) not in (first, looked)
    end.touch()
    assert reader.latestOffset(looked) == looked


@pytest.mark.skipif(not HAS_END, reason="before Spark 4.2 it is refused")
def test_connected_inputs_fire_at_the_end_and_a_foreach_batch_function_cannot(
    stream: Any, one_backend: str
) -> None:
    class Waiting(ks.KeyedCoProcessFunction):
        def process1(self, row: Any, ctx: ks.Context) -> None:
            ctx.timer_service.register_event_time_timer(2**60)

        process2 = process1

        def on_timer(self, time: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
            yield ctx.key, time

    rows = stream.frame().withColumn("t", f.timestamp_seconds("v"))
    time = ks.EventTime("t", delay=0)
    sides = ks.keyed(rows.filter("v < 5"), "k", event_time=time), ks.keyed(rows, "k", event_time=time)
    config = {"checkpoint.dir": str(stream.state), "parallelism": 1, "backend": one_backend}
    out = ks.connect(*sides, uid="both", config=config, end="fire").process(Waiting(), "k string, t long")

    def sink(batch: DataFrame, epoch: int) -> None:
        with pytest.raises(EndOfInputError, match="Build the operator on the streaming DataFrame"):
            ks.keyed(batch, "k", uid="inside", end="fire")
        stream.rows[epoch] = [tuple(row) for row in batch.collect()]

    stream.add([{"k": "a", "v": 1}, {"k": "b", "v": 9}])
    stream.run(out, sink)
    assert {epoch: sorted(rows) for epoch, rows in stream.rows.items()} == {
        0: [],
        1: [("a", 2**60), ("b", 2**60)],
    }
    with pytest.raises(ConnectedFramesError, match="has an end of its own"):
        ks.connect(ks.keyed(rows, "k", end="fire"), ks.keyed(rows, "k"), uid="wrong")


def test_a_batch_needs_no_end_and_another_end_is_refused(spark: SparkSession) -> None:
    rows = spark.range(1)
    with pytest.raises(EndOfInputError, match=r"end='stop' cannot be used: no such choice .* Give 'fire'"):
        ks.keyed(rows, "id", end="stop")  # type: ignore[arg-type]
    counted = ks.keyed(rows, "id", end="fire", config={"parallelism": 1}).aggregate(n=count())
    assert [tuple(row) for row in counted.collect()] == [(0, 1)]


@pytest.mark.skipif(HAS_END, reason="it can")
def test_spark_before_4_2_refuses_an_end(stream: Any) -> None:
    with pytest.raises(EndOfInputError, match=r"before Spark 4\.2 .*, drain=True\)"):
        ks.keyed(stream.frame(), "k", uid="u", end="fire")
