"""The source of micro-batches after an operator's watermark has moved, a Python data source of Spark 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from keyedstate.spark.plan.heartbeat_source import ReaderWithoutRows


class WatermarkSource(DataSource):
    """A stream without rows whose offset is the watermark in ``file``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "keyedstate-watermark"

    def schema(self) -> str:
        """Return a column; a source must have one."""
        return "watermark long"

    def streamReader(self, schema: StructType) -> WatermarkReader:
        """Return the reader."""
        return WatermarkReader(self.options["file"])


class WatermarkReader(ReaderWithoutRows):
    """Offsets are watermarks; Spark starts a micro-batch when the newest one differs from the one before.

    A run begins with an offset of its own: the run before may have moved the watermark last.
    """

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before the first."""
        return {}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return the current offset; Spark passes no arguments before 4.2."""
        try:
            watermark = int(self._file.read_text(encoding="ascii"))
        except FileNotFoundError:
            # No epoch of this run has ended.
            watermark = (start or {}).get("watermark", 0)
        return {"watermark": watermark, "run": self._file.name}

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: a query that ends with its input ends after the watermark of its last rows."""
