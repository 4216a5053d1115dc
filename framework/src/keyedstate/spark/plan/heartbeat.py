"""Heartbeats: micro-batches on an interval, even if no row arrives.

Spark starts a micro-batch when a source of the query has a new offset.  So a union adds a source whose offset
counts intervals and which never has rows.  The tasks of a keyed operator run in every micro-batch.
"""

from __future__ import annotations

import importlib.util

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamReader

from keyedstate.durations import milliseconds
from keyedstate.errors import HeartbeatError, InvalidDurationError


def heartbeat_ms(heartbeat: object) -> int:
    """Return the interval of a heartbeat in milliseconds, 0 for none; raises `HeartbeatError`."""
    try:
        interval = milliseconds(heartbeat)
    except InvalidDurationError:
        raise HeartbeatError(heartbeat, "it is no duration") from None
    if interval < 0:
        raise HeartbeatError(heartbeat, "it is negative")
    if not interval and not has_python_sources():
        raise HeartbeatError(heartbeat, "only on Spark 4 can a heartbeat be stopped and stay in the query")
    return interval


def with_heartbeat(rows: DataFrame, interval_ms: int, end_file: str | None = None) -> DataFrame:
    """Return the rows of a streaming DataFrame in a union with the heartbeat's source.

    With `end_file`, a query that ends with its input has a micro-batch more, until the driver makes the file.
    """
    spark = rows.sparkSession
    if has_python_sources():
        from keyedstate.spark.plan.heartbeat_source import HeartbeatSource

        spark.dataSource.register(HeartbeatSource)
        source = spark.readStream.format(HeartbeatSource.name()).option("interval-ms", str(interval_ms))
        if end_file is not None:
            source = source.option("end-file", end_file)
    else:
        source = spark.readStream.format("rate")
    return _with_source(rows, source)


def with_watermark_beats(rows: DataFrame, file: str) -> DataFrame:
    """Return the rows of a streaming DataFrame in a union with a source that follows an operator's watermark.

    The driver writes each new watermark into a file; then Spark makes a micro-batch, as it does for its own
    stateful operators.
    """
    from keyedstate.spark.plan.watermark_source import WatermarkSource

    spark = rows.sparkSession
    spark.dataSource.register(WatermarkSource)
    return _with_source(rows, spark.readStream.format(WatermarkSource.name()).option("file", file))


def _with_source(rows: DataFrame, source: DataStreamReader) -> DataFrame:
    """Return the rows in a union with those of a source, which never has any."""
    columns = [f.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields]
    return rows.union(source.load().filter(f.lit(False)).select(*columns))


def has_python_sources() -> bool:
    """Return whether Spark has data sources in Python, as since Spark 4."""
    return importlib.util.find_spec("pyspark.sql.datasource") is not None
