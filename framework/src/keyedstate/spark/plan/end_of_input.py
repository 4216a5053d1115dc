"""The end of a query that reads all available input: ``keyed(..., end="fire")``."""

from __future__ import annotations

import importlib.util

from pyspark.sql import DataFrame

from keyedstate.errors import ClassicSparkRequiredError, EndOfInputError
from keyedstate.spark.checkpoint_location import record_checkpoint_locations
from keyedstate.spark.hosts.task_identity import is_in_micro_batch
from keyedstate.spark.plan.heartbeat import has_python_sources
from keyedstate.spark.plan.source_files import new_source_file
from keyedstate.spark.session import is_connect, is_in_foreach_batch_of_connect


def end_file_for(rows: DataFrame, end: object) -> str | None:
    """Return the file whose existence ends a query that fires its timers, for the option ``end``.

    None without the option, and for a batch DataFrame, at whose end all timers fire anyway.  Raises
    `EndOfInputError` and `ClassicSparkRequiredError`.
    """
    if end is None:
        return None
    if end != "fire":
        raise EndOfInputError(end, "no such choice exists", "Give 'fire', or leave it out.")
    connect = is_connect(rows.sparkSession)
    if not rows.isStreaming:
        if is_in_foreach_batch_of_connect() or (
            not connect and is_in_micro_batch(rows.sparkSession.sparkContext)
        ):
            reason = "a foreachBatch function has the rows of one micro-batch and does not know the last one"
            raise EndOfInputError(end, reason, "Build the operator on the streaming DataFrame.")
        return None
    if connect:
        raise ClassicSparkRequiredError(
            "with end='fire' an operator finds Spark's log of offsets through the JVM of the driver, which a "
            "client of Spark Connect does not have",
            "Leave it out, and read the rest of the input as a batch.",
        )
    if not has_python_sources() or importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
        raise EndOfInputError(
            end,
            "before Spark 4.2 a source in Python has no part in trigger(availableNow=True)",
            "Use PySpark 4.2, or give a heartbeat and end the query with Savepoint.stop(query, ..., "
            "drain=True).",
        )
    record_checkpoint_locations(rows.sparkSession)
    return new_source_file()
