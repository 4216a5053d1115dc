"""What an operator needs to know of its Spark session, which is a classic one or one of Spark Connect.

A session of Spark Connect belongs to a client, which has no SparkContext, no JVM and no accumulators: it only
sends plans to the server.  Both kinds know Spark's settings, also those of the application.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import cloudpickle
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from keyedstate.errors import ClassicSparkRequiredError, KeyedStateError

T = TypeVar("T")

#: In local mode the driver is the only executor.
_LOCAL = re.compile(r"local(\[(?P<cores>\d+|\*)(,.*)?\])?")
#: The main module of the process in which the server of Spark Connect runs a `foreachBatch` function.
_FOREACH_BATCH = "pyspark.sql.connect.streaming.worker.foreach_batch_worker"


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def refuse_old_connect(df: DataFrame) -> None:
    """Raise `ClassicSparkRequiredError` for a DataFrame of Spark Connect before PySpark 4."""
    if type(df).__module__.startswith("pyspark.sql.connect.") and not isinstance(df, DataFrame):
        raise ClassicSparkRequiredError("PySpark 3 has no keyed operators on Spark Connect", "Use PySpark 4.")


def is_in_foreach_batch_of_connect() -> bool:
    """Return whether this process runs a `foreachBatch` function for a client of Spark Connect."""
    return getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None) == _FOREACH_BATCH


def setting(spark: SparkSession, name: str) -> str | None:
    """Return a setting of Spark, of the session or of the application; None if it is not set."""
    return spark.conf.get(name, None)


def application_id(spark: SparkSession) -> str:
    """Return the id of the application: on Spark Connect that of the server."""
    return str(setting(spark, "spark.app.id"))


def is_local(spark: SparkSession) -> bool:
    """Return whether the driver is the only executor."""
    return _LOCAL.fullmatch(setting(spark, "spark.master") or "") is not None


def speculates(spark: SparkSession) -> bool:
    """Return whether Spark may run two attempts at a task at once."""
    return (setting(spark, "spark.speculation") or "").lower() == "true"


def executor_cores(spark: SparkSession) -> int:
    """Return the cores of an executor, 0 where they are not known: all of its machine."""
    local = _LOCAL.fullmatch(setting(spark, "spark.master") or "")
    if local is None:
        return int(setting(spark, "spark.executor.cores") or 0)
    cores = local["cores"] or "1"
    return 0 if cores == "*" else int(cores)


def running_query(jvm: Any, session: Any, query_id: object) -> Any:
    """Return the JVM's streaming query of an id, of any session of an application; None after its end."""
    return session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(str(query_id)))


def on_executor(spark: SparkSession, call: Callable[[], T]) -> T:
    """Return what a function returns in a task; raises the `KeyedStateError` that it raises there.

    For a client of Spark Connect, which need not reach the checkpoint folder.
    """

    def answering(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                try:
                    answer: tuple[Any, KeyedStateError | None] = (call(), None)
                except KeyedStateError as error:
                    answer = (None, error.with_traceback(None))
                yield pa.record_batch({"answer": pa.array([cloudpickle.dumps(answer)], pa.binary())})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(answering, "answer binary").collect()
    result, error = cloudpickle.loads(bytes(row[0]))
    if error is not None:
        raise error
    found: T = result
    return found
