"""State handed over between local runs and queries on Spark in the middle of the flights, both ways."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import keyedstate as ks
from keyedstate import local
from keyedstate.cli.demo.flights import SPARK_SCHEMA, write_flights
from keyedstate.errors import NotForkableError
from keyedstate.savepoints import Savepoint

FILES = 8
EVENT_TIME = ks.EventTime("time_hour", delay="1 hour")
DAYS_3_MS = 3 * 86_400_000


class Silent(ks.KeyedProcessFunction):
    """Reports an aircraft that has not flown for three days."""

    flights = ks.ValueState("flights", ks.types.INT64, default=0)
    due = ks.ValueState("due", ks.types.INT64)

    def process(self, row: Any, ctx: ks.Context) -> None:
        assert ctx.timestamp is not None
        due = self.due.value()
        if due is not None:
            ctx.timer_service.delete_event_time_timer(due)
        self.due.update(ctx.timestamp + DAYS_3_MS)
        ctx.timer_service.register_event_time_timer(ctx.timestamp + DAYS_3_MS)
        self.flights.update(self.flights.value() + 1)

    def on_timer(self, time: int, ctx: ks.OnTimerContext) -> Iterator[tuple[Any, ...]]:
        self.due.clear()
        yield ctx.key, time, self.flights.value()


def silences(stream: Any) -> Any:
    return stream.process(Silent(), "tailnum string, at long, flights long")


def windows(stream: Any) -> Any:
    windowed = stream.window(ks.windows.Tumbling.of("2 days"))
    return windowed.aggregate(n=ks.aggregates.count(), delay=ks.aggregates.sum_("arr_delay"))


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the folders ``all``, ``first`` and ``second``: half of the files each."""
    folder = tmp_path_factory.mktemp("flights")
    write_flights(folder / "all", FILES, rows=12_000)
    for number, name in enumerate(sorted(os.listdir(folder / "all"))):
        half = folder / ("first" if number < FILES // 2 else "second")
        half.mkdir(exist_ok=True)
        os.link(folder / "all" / name, half / name)
    return folder


Operator = Callable[[Any], Any]


def run_local(rows: Any, operator: Operator, config: dict[str, Any], *, drains: bool = False) -> list[Any]:
    stream = local.keyed(rows, "tailnum", uid="operator", config=config, event_time=EVENT_TIME)
    result = operator(stream)
    return [tuple(row) for row in (result.drain() if drains else result)]


def run_on_spark(
    spark: SparkSession, files: Path, folder: Path, operator: Operator, config: dict[str, Any]
) -> list[Any]:
    stream = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(files))
    rows = operator(ks.keyed(stream, "tailnum", uid="operator", config=config, event_time=EVENT_TIME))
    query = (
        rows.writeStream.format("parquet")
        .option("path", str(folder / "output"))
        .option("checkpointLocation", str(folder / "spark"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = pq.read_table(folder / "output")
    columns = [pa.field(field.name, _in_microseconds(field.type)) for field in found.schema]
    return [tuple(row.values()) for row in found.cast(pa.schema(columns)).to_pylist()]


def _in_microseconds(type_: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(type_) else type_


def link(files: list[Path], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for file in files:
        os.link(file, folder / file.name)


def test_a_fork_on_spark_reads_the_files_that_a_local_run_has_not_read(
    spark: SparkSession, flights: Path, tmp_path: Path
):
    everything = in_order(
        run_local(ds.dataset(flights / "all"), windows, at(tmp_path / "whole"), drains=True)
    )
    incoming, first, forked, third = (tmp_path / name for name in ("in coming", "first", "forked", "third"))
    files = sorted((flights / "all").iterdir())
    link(files[:5], incoming)
    made = run_local(ds.dataset(incoming), windows, at(first))

    savepoint = Savepoint.create(tmp_path / "after-local", str(first / "state"))
    savepoint.fork(forked / "spark", forked / "state")
    link(files[5:7], incoming)
    made += run_on_spark(spark, incoming, forked, windows, at(forked, parallelism=2))

    Savepoint.create(tmp_path / "after-spark", str(forked / "state"), str(forked / "spark"))
    link(files[7:], incoming)
    config = at(third, **{"restore.savepoint": str(tmp_path / "after-spark")})
    made += run_local(ds.dataset(incoming), windows, config, drains=True)
    assert in_order(made) == everything


def test_a_savepoint_in_the_middle_of_a_file_cannot_be_forked(flights: Path, tmp_path: Path):
    table = pq.read_table(flights / "all")
    (tmp_path / "one").mkdir()
    pq.write_table(pa.concat_tables([table] * 20), tmp_path / "one" / "0.parquet")
    files, config = ds.dataset(tmp_path / "one"), at(tmp_path)
    stream = local.keyed(files, "tailnum", uid="operator", config=config, event_time=EVENT_TIME)
    with pytest.raises(RuntimeError, match="stop"):
        silences(stream).for_each(_stop_at_epoch_1)
    savepoint = Savepoint.create(tmp_path / "savepoint", str(tmp_path / "state"))
    with pytest.raises(NotForkableError):
        savepoint.fork(tmp_path / "forked", tmp_path / "forked-state")


def _stop_at_epoch_1(rows: pa.Table, epoch: int) -> None:
    if epoch == 1:
        raise RuntimeError("stop")


def at(folder: Path, **options: Any) -> dict[str, Any]:
    return {"checkpoint.dir": str(folder / "state"), "checkpoint.interval": 0, **options}


def in_order(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=repr)


@pytest.mark.long
@pytest.mark.parametrize("operator", [silences, windows])
def test_a_query_on_spark_continues_a_local_run_and_the_other_way_round(
    spark: SparkSession, flights: Path, tmp_path: Path, operator: Operator
):
    everything = in_order(
        run_local(ds.dataset(flights / "all"), operator, at(tmp_path / "whole"), drains=True)
    )
    assert len(everything) > 1_000

    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    made = run_local(ds.dataset(flights / "first"), operator, at(first))
    assert made, "some timers have fired, and others are set"
    Savepoint.create(tmp_path / "after-local", str(first / "state"))
    options = {"parallelism": 3, "restore.savepoint": str(tmp_path / "after-local")}
    made += run_on_spark(spark, flights / "second", second, operator, at(second, **options))

    Savepoint.create(tmp_path / "after-spark", str(second / "state"), str(second / "spark"))
    nothing = pq.read_table(flights / "all").slice(0, 0)
    options = {"restore.savepoint": str(tmp_path / "after-spark")}
    made += run_local(nothing, operator, at(third, **options), drains=True)
    assert in_order(made) == everything


def test_a_local_run_continues_a_query_on_spark_in_the_middle_of_the_flights(
    spark: SparkSession, flights: Path, tmp_path: Path
):
    everything = in_order(
        run_local(ds.dataset(flights / "all"), windows, at(tmp_path / "whole"), drains=True)
    )
    first, second = tmp_path / "first", tmp_path / "second"
    made = run_on_spark(spark, flights / "first", first, windows, at(first, parallelism=2))
    Savepoint.create(tmp_path / "savepoint", str(first / "state"), str(first / "spark"))
    config = at(second, **{"restore.savepoint": str(tmp_path / "savepoint"), "backend": "nested-map"})
    made += run_local(ds.dataset(flights / "second"), windows, config, drains=True)
    assert in_order(made) == everything
