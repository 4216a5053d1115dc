"""The source of heartbeats, and of the micro-batch after all input: a Python data source of Spark 4."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from keyedstate.checkpoint.savepoint.offset_log import END_KEY

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
    """A stream without rows whose offset changes every ``interval-ms``, and never with an interval of 0.

    With an ``end-file`` it also makes the micro-batch in which timers fire at the end of
    ``trigger(availableNow=True)``.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "keyedstate-heartbeat"

    def schema(self) -> str:
        """Return a column; a source must have one."""
        return "beat long"

    def streamReader(self, schema: StructType) -> HeartbeatReader:
        """Return the reader."""
        return HeartbeatReader(int(self.options["interval-ms"]), self.options.get("end-file"))


class HeartbeatReader(ReaderWithoutRows):
    """Offsets are intervals since 1970.

    They need not increase: Spark starts a micro-batch when the newest offset differs from the one before.  So
    the interval may change with a restart, and a clock may be set back.

    The reader cannot know which micro-batch is the last one with input.  So with a file for the end, each
    micro-batch of such a query is followed by another one.  Its tasks see in Spark's log of offsets whether
    it has input.  If not, the driver makes the file, and the query ends.
    """

    def __init__(self, interval_ms: int, end_file: str | None = None) -> None:
        self._interval_ms = interval_ms
        self._end_file = None if end_file is None else Path(end_file)
        self._available_now = False

    def initialOffset(self) -> dict[str, int]:
        """Return the offset before the first."""
        return {"beat": 0}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return the current offset; Spark passes no arguments before 4.2."""
        if start is not None and (self._available_now or not self._interval_ms):
            if not self._available_now or self._end_file is None or self._end_file.exists():
                return start
            return {**start, END_KEY: start.get(END_KEY, 0) + 1}
        return {"beat": time.time_ns() // (1_000_000 * self._interval_ms) if self._interval_ms else 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop beating: such a query ends with its input, or in the micro-batch after it."""
        self._available_now = True
