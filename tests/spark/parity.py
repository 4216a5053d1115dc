"""Processors under Spark's own ``transformWithState`` and under keyedstate, over the same micro-batches."""

from __future__ import annotations

import datetime as dt
import importlib.util
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as f
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
_BACKEND = "spark.keyedstate.backend"
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

        In event time the watermark is 10 seconds behind, unless the rows have no event time.
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
        backends: Sequence[str] = ("heap-cow",),
    ) -> dict[int, Batch]:
        """Return the rows of each epoch of what is built of a stream; `once` makes a run one epoch.

        Ours are the same on all of the backends, which run as branches of a union, in one query.
        """
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
                        made = self._on_backends(built, stream.frame(), backends if found else ("spark",))
                    stream.run(made, once=once)
                found.append(stream.rows)
        finally:
            for name, value in before.items():
                if value is None:
                    self._spark.conf.unset(name)
                else:
                    self._spark.conf.set(name, value)
        of_spark = _of_backend(found[0], "spark")
        assert any(of_spark.values())
        for backend in backends:
            ours = _of_backend(found[1], backend)
            if not by_epoch:
                assert _all_rows(ours) == _all_rows(of_spark), backend
                continue
            for epoch in sorted({*of_spark, *ours}):
                given, wanted = (each.get(epoch, "no epoch") for each in (ours, of_spark))
                assert given == wanted, f"epoch {epoch} on {backend}: {given} instead of {wanted}"
        return ours

    def _on_backends(
        self, built: Callable[[DataFrame], DataFrame], frame: DataFrame, backends: Sequence[str]
    ) -> DataFrame:
        """Return what is built with each backend, whose name is the first column."""
        made = []
        for backend in backends:
            self._spark.conf.set(_BACKEND, backend)
            made.append(built(frame).select(f.lit(backend), "*"))
        self._spark.conf.unset(_BACKEND)
        return reduce(DataFrame.union, made)


def _of_backend(found: dict[int, Batch], backend: str) -> dict[int, Batch]:
    """Return the rows of each epoch of one backend, sorted."""
    return {
        epoch: sorted((tuple(row) for name, *row in rows if name == backend), key=repr)
        for epoch, rows in found.items()
    }


def _all_rows(found: dict[int, Batch]) -> Batch:
    return sorted(chain.from_iterable(found.values()), key=repr)
