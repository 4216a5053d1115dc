"""The queries of the comparison: what Spark does by itself, and what keyedstate does, on one session."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from keyedstate import keyed, types
from keyedstate.aggregates import count, sum_
from keyedstate.runtime import KeyedBatch, KeyedProcessFunction, VectorizedProcessFunction
from keyedstate.spark.dataframe.frame import KeyedFrame
from keyedstate.state import ValueState

SCHEMA = "k string, c long"
COUNTS = "k string, n long, total long"
PARTITIONS = 4
_STORES = "org.apache.spark.sql.execution.streaming.state"
HDFS = {"spark.sql.streaming.stateStore.providerClass": f"{_STORES}.HDFSBackedStateStoreProvider"}
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": f"{_STORES}.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def open_session(folder: Path, memory: str = "4g") -> SparkSession:
    """Open a session of two cores whose queries wait without a load, with workers of this Python."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("keyedstate-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", memory)
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .config("spark.sql.files.openCostInBytes", "0")
        .config("spark.sql.files.minPartitionNum", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.streaming.pollingDelay", "500ms")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


@dataclass
class Lane:
    """One query.

    Attributes
    ----------
    name : str
    build : callable
        Makes the result out of the events and a folder of the lane's own.
    settings : mapping
        Of the session while the query starts, which is when Spark reads them.
    schema : str
        Of the events.
    mode : str
        The output mode.
    """

    name: str
    build: Callable[[DataFrame, Path], DataFrame]
    settings: Mapping[str, str] = field(default_factory=dict)
    schema: str = SCHEMA
    mode: str = "update"
    query: StreamingQuery | None = None

    def start(self, session: SparkSession, folder: Path) -> None:
        self._input = folder / "input"
        self._input.mkdir(parents=True, exist_ok=True)
        # A query that goes on has had a micro-batch for each file.
        self._fed = len(list(self._input.glob("*.parquet")))
        for name, value in self.settings.items():
            session.conf.set(name, value)
        reader = session.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        events = reader.parquet(str(self._input))
        self.query = (
            self.build(events, folder)
            .writeStream.format("noop")
            .outputMode(self.mode)
            .option("checkpointLocation", str(folder / "query"))
            .start()
        )

    def run(self, batches: list[Path]) -> list[float]:
        """Feed micro-batches and return how many seconds each of them took."""
        assert self.query is not None
        for file in batches:
            self._fed += 1
            # A link shares its time with the file, by which the source takes them: oldest first.
            os.link(file, self._input / f"{self._fed:06}.parquet")
        self.query.processAllAvailable()
        done: list[StreamingQueryProgress] = []
        # Spark publishes the progress of a micro-batch after it is done; a query that waits reports, too.
        while len(done) < len(batches):
            run = [one for one in self.query.recentProgress if "addBatch" in one["durationMs"]]
            done = [one for one in run if one["batchId"] >= self._fed - len(batches)]
            time.sleep(0.01)
        return [one["durationMs"]["triggerExecution"] / 1000 for one in done]


# -- Spark by itself -------------------------------------------------------------------------------


def _counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = sum(batch.num_rows for batch in batches)
    yield pa.record_batch({"rows": pa.array([rows], pa.int64())})


def floor(events: DataFrame, folder: Path) -> DataFrame:
    return events.repartition(PARTITIONS, "k").mapInArrow(_counted, "rows long")


def through_python(events: DataFrame, folder: Path) -> DataFrame:
    return events.repartition(PARTITIONS, "k").mapInArrow(lambda batches: batches, SCHEMA)


def spark_group_by(events: DataFrame, folder: Path) -> DataFrame:
    return events.groupBy("k").agg(F.count("*").alias("n"), F.sum("c").alias("total"))


class _RowCounts(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._counts = handle.getValueState("counts", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, total = self._counts.get() if self._counts.exists() else (0, 0)
        for row in rows:
            n, total = n + 1, total + row.c
        self._counts.update((n, total))
        yield Row(k=key[0], n=n, total=total)

    def close(self) -> None:
        pass


class _PandasCounts(_RowCounts):
    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[Any]:
        n, total = self._counts.get() if self._counts.exists() else (0, 0)
        for frame in rows:
            n, total = n + len(frame), total + int(frame["c"].sum())
        self._counts.update((n, total))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})


def transform_with_state(events: DataFrame, folder: Path) -> DataFrame:
    out = StructType.fromDDL(COUNTS)
    return events.groupBy("k").transformWithState(_RowCounts(), out, "Update", "None")


def transform_with_state_in_pandas(events: DataFrame, folder: Path) -> DataFrame:
    out = StructType.fromDDL(COUNTS)
    return events.groupBy("k").transformWithStateInPandas(_PandasCounts(), out, "Update", "None")


# -- keyedstate ------------------------------------------------------------------------------------


class Counts(KeyedProcessFunction):
    """Row by row, one row out for each row in."""

    counts = ValueState("counts", types.tuple_of(types.INT64, types.INT64), default=(0, 0))

    def process(self, row: Any, ctx: Any) -> Any:
        n, total = self.counts.value()
        n, total = n + 1, total + row.c
        self.counts.update((n, total))
        return [(row.k, n, total)]


class CountsPerKey(KeyedProcessFunction):
    """Row by row, one row out for each key, as Spark's own aggregation in update mode."""

    counts = ValueState("counts", types.tuple_of(types.INT64, types.INT64), default=(0, 0))

    def process(self, row: Any, ctx: Any) -> None:
        n, total = self.counts.value()
        self.counts.update((n + 1, total + row.c))

    def end_epoch(self, ctx: Any) -> Any:
        return [(ctx.key, *self.counts.value())]


class VectorizedCounts(VectorizedProcessFunction):
    """Batch by batch: one row out for each key of a batch."""

    counts = ValueState("counts", types.tuple_of(types.INT64, types.INT64), default=(0, 0))

    def process_batch(self, batch: KeyedBatch, ctx: Any) -> Any:
        groups = batch.groups
        found = pa.table({"of": groups.codes, "c": batch.column("c")}).group_by("of")
        table = found.aggregate([([], "count_all"), ("c", "sum")]).sort_by("of")
        before = self.counts.get_many(groups.keys, groups.key_groups)
        added = zip(table["count_all"].to_pylist(), table["c_sum"].to_pylist(), strict=True)
        after = [(n + one, total + more) for (n, total), (one, more) in zip(before, added, strict=True)]
        self.counts.update_many(groups.keys, after, groups.key_groups)
        n, total = zip(*after, strict=True)
        yield pa.record_batch({"k": groups.key_columns[0], "n": n, "total": total})


def _keyed(
    finish: Callable[[KeyedFrame], DataFrame], backend: str, options: Mapping[str, object]
) -> Callable[[DataFrame, Path], DataFrame]:
    """Return what makes a query of the keyed events."""

    def build(events: DataFrame, folder: Path) -> DataFrame:
        own = {"backend": backend, "checkpoint.dir": str(folder / "state"), "parallelism": PARTITIONS}
        return finish(keyed(events, "k", uid="counts", config={**own, **options}))

    return build


def aggregated(backend: str, **options: object) -> Callable[[DataFrame, Path], DataFrame]:
    return _keyed(lambda frame: frame.aggregate(n=count(), total=sum_("c")), backend, options)


def per_record(backend: str, **options: object) -> Callable[[DataFrame, Path], DataFrame]:
    return _keyed(lambda frame: frame.process(Counts(), COUNTS), backend, options)


def per_record_and_key(backend: str, **options: object) -> Callable[[DataFrame, Path], DataFrame]:
    return _keyed(lambda frame: frame.process(CountsPerKey(), COUNTS), backend, options)


def vectorized(backend: str, **options: object) -> Callable[[DataFrame, Path], DataFrame]:
    return _keyed(lambda frame: frame.process(VectorizedCounts(), COUNTS), backend, options)
