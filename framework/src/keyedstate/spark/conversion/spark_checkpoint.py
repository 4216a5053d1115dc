"""The checkpoint location of a stopped query, whose state Spark's own data sources read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import SparkStateError, UnknownEpochError
from keyedstate.spark.query.location import QueryLocation


@dataclass(frozen=True)
class SparkOperator:
    """A stateful operator of Spark."""

    #: Its number in the query; Spark counts from the sink.
    number: int
    #: Such as ``transformWithStateExec``.
    name: str
    partitions: int
    #: What Spark stores about it; empty for operators that have nothing to store.
    properties: dict[str, Any]

    def __str__(self) -> str:
        return f"operator {self.number} ({self.name})"


@dataclass(frozen=True)
class SparkCheckpoint:
    """The state after a committed micro-batch."""

    spark: SparkSession
    location: QueryLocation
    #: The location as Spark is given it.
    path: str
    epoch: int
    #: In milliseconds since 1970 UTC; 0 without one.  The first was that of the micro-batch, which filtered
    #: its late rows by an earlier one; the second is that of the next micro-batch.
    watermark: int
    next_watermark: int

    @classmethod
    def open(cls, spark: SparkSession, path: str, epoch: int | None) -> SparkCheckpoint:
        """Open a location at a committed micro-batch, by default the newest.

        Raises
        ------
        SparkLocationError, SparkStateError, UnknownEpochError
        """
        location = QueryLocation.open(path)
        location.query_id()
        committed = location.committed()
        if not committed:
            raise SparkStateError(
                location.location, "no micro-batch is committed", "Let the query finish one first."
            )
        if epoch is None:
            epoch = committed[-1]
        if epoch not in committed:
            raise UnknownEpochError(location.location, epoch, committed)
        offsets = _json_line(location.storage, f"offsets/{epoch}")
        commit = _json_line(location.storage, f"commits/{epoch}")
        now = int(offsets.get("batchWatermarkMs", 0))
        return cls(spark, location, path, epoch, now, max(now, int(commit.get("nextBatchWatermarkMs", 0))))

    def operators(self) -> list[SparkOperator]:
        """Return the stateful operators, in the order of their numbers; raises `SparkStateError`."""
        try:
            rows = self.spark.read.format("state-metadata").load(self.path).collect()
        except PySparkException as error:
            raise self.refused(f"its metadata cannot be read: {_first_line(error)}") from error
        found = {
            row["operatorId"]: SparkOperator(
                row["operatorId"],
                row["operatorName"],
                row["numPartitions"],
                json.loads(row.asDict().get("operatorProperties") or "{}"),
            )
            for row in rows
        }
        if not found:
            raise self.refused("it has no stateful operator, or its Spark was older than 3.5")
        return [found[number] for number in sorted(found)]

    def state(self, operator: SparkOperator, **options: object) -> DataFrame:
        """Return a state of an operator as Spark's data source reads it; raises `SparkStateError`."""
        reader = self.spark.read.format("statestore")
        given = {"operatorId": operator.number, "batchId": self.epoch, **options}
        for name, value in given.items():
            reader = reader.option(name, str(value).lower() if isinstance(value, bool) else str(value))
        try:
            return reader.load(self.path)
        except PySparkException as error:
            reason = f"the state of {operator} at micro-batch {self.epoch} cannot be read"
            raise self.refused(f"{reason}: {_first_line(error)}") from error

    def refused(self, reason: str, way_out: str = "Start a new query without its state.") -> SparkStateError:
        """Return the error for state that cannot become that of keyedstate."""
        return SparkStateError(self.location.location, reason.rstrip("."), way_out)


def _json_line(storage: CheckpointStorage, path: str) -> dict[str, Any]:
    """Return the first line of a log's file that is a JSON object, after that of the version."""
    lines = storage.read(path).decode().splitlines()[1:]
    found = json.loads(lines[0]) if lines else {}
    return found if isinstance(found, dict) else {}


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
