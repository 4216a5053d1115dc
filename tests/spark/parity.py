"""Processors under Spark's own ``transformWithState`` and under keyedstate, over the same micro-batches."""

from __future__ import annotations

import datetime as dt
import importlib.util
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from keyedstate.spark import drop_in

#: For test modules that compare.
NEEDS_SPARKS_OWN = [
    pytest.mark.skipif(
        not hasattr(GroupedData, "transformWithState"), reason="transformWithState came with Spark 4.1"
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("google.protobuf") is None, reason="Spark's own needs the package protobuf"
    ),
]

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SCHEMA = "k string, ts timestamp, n long"
OUT = "k string, text string"
Batch = list[tuple[Any, ...]]


def at(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc).isoformat()


def rows(*given: tuple[Any, float, int]) -> list[dict[str, Any]]:
    return [{"k": key, "ts": at(seconds), "n": n} for key, seconds, n in given]


class Both:
    """Runs one processor under Spark's own implementation and under ours, over the same micro-batches."""

    def __init__(self, spark: SparkSession, new_stream: Callable[..., Any], folder: Path) -> None:
        self._spark = spark
        self._new_stream = new_stream
        self._folder = folder

    def run(
        self,
        processor: StatefulProcessor,
        *runs: list[list[dict[str, Any]]],
        time_mode: str = "none",
        pandas: bool = False,
        keys: tuple[str, ...] = ("k",),
        out: str = OUT,
        conf: dict[str, str] | None = None,
        watermark: bool = True,
        initial: GroupedData | None = None,
    ) -> dict[int, Batch]:
        """Return the rows of each epoch, which are the same under both, after a query has run several times.

        In event time the watermark is 10 seconds behind, unless there is none.
        """

        def built(frame: DataFrame) -> DataFrame:
            if time_mode == "eventTime" and watermark:
                frame = frame.withWatermark("ts", "10 seconds")
            grouped = frame.groupBy(*keys)
            method = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
            return method(processor, out, "update", time_mode, initial)

        # With processing time and the trigger availableNow, Spark's micro-batches have no end.
        return self.compare(built, *runs, once=time_mode == "processingTime", conf=conf)

    def compare(
        self,
        built: Callable[[DataFrame], DataFrame],
        *runs: list[list[dict[str, Any]]],
        once: bool = False,
        conf: dict[str, str] | None = None,
        by_epoch: bool = True,
    ) -> dict[int, Batch]:
        """Return the rows of each epoch of what is built of a stream; `once` makes a run one epoch."""
        found = []
        settings = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB, **(conf or {})}
        before = {name: self._spark.conf.get(name, None) for name in settings}
        for name, value in settings.items():
            self._spark.conf.set(name, value)
        try:
            for switch, name in ((drop_in.disable, "spark"), (drop_in.enable, "keyedstate")):
                folder = self._folder / name
                folder.mkdir()
                stream = self._new_stream(folder, SCHEMA)
                for batches in runs:
                    for batch in batches:
                        stream.add(batch)
                    with switch():
                        made = built(stream.frame())
                    stream.run(made, once=once)
                found.append({epoch: sorted(some, key=repr) for epoch, some in stream.rows.items()})
        finally:
            for name, value in before.items():
                if value is None:
                    self._spark.conf.unset(name)
                else:
                    self._spark.conf.set(name, value)
        of_spark, ours = found
        if not by_epoch:
            every = [sorted(chain.from_iterable(each.values())) for each in found]
            assert every[1] == every[0] and every[0]
            return ours
        for epoch in sorted({*of_spark, *ours}):
            assert ours.get(epoch, "no epoch") == of_spark.get(epoch, "no epoch"), epoch
        assert any(of_spark.values())
        return ours
