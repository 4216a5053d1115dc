"""The source of heartbeats, a Python data source of Spark 4."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2, where a Python source makes one micro-batch of such a query

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A class that Spark does not know."""


class ReaderWithoutRows(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream whose offset changes, and which never has rows."""

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return none: there is nothing to read."""
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Read nothing."""
        return iter(())


class HeartbeatSource(DataSource):
    """A stream without rows whose offset changes every ``interval-ms``, and never with an interval of 0."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "keyedstate-heartbeat"

    def schema(self) -> str:
        """Return a column; a source must have one."""
        return "beat long"

    def streamReader(self, schema: StructType) -> HeartbeatReader:
        """Return the reader."""
        return HeartbeatReader(int(self.options["interval-ms"]))


class HeartbeatReader(ReaderWithoutRows):
    """Offsets are intervals since 1970.

    They need not increase: Spark starts a micro-batch when the newest offset differs from the one before.  So
    the interval may change with a restart, and a clock may be set back.
    """

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._available_now = False

    def initialOffset(self) -> dict[str, int]:
        """Return the offset before the first."""
        return {"beat": 0}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return the current offset; Spark passes no arguments before 4.2."""
        if start is not None and (self._available_now or not self._interval_ms):
            return start
        return {"beat": time.time_ns() // (1_000_000 * self._interval_ms) if self._interval_ms else 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop beating: such a query ends with its input."""
        self._available_now = True
