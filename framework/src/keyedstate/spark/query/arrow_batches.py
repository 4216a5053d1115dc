"""The size of the Arrow batches in which Spark sends rows to Python.

From Spark 4.1 on, a batch has at most ``spark.sql.execution.arrow.maxBytesPerBatch``, 64 MiB, beside
``maxRecordsPerBatch``, 10,000 rows.  Spark adds up the buffers of the batch before each row for this, which
takes two fifths of the JVM's processor time in a query that counts rows by key.  Only the largest int is no
limit to it.

So the driver lifts the limit, in the session of the query alone, while rows are so small that the number of
rows limits a batch long before its bytes do.  Tasks tell it the size of their rows.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from keyedstate.checkpoint.format.manifest import TaskIdentity

_log = logging.getLogger(__name__)

MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
#: The only value with which Spark does not compute the size of a batch for each row.
UNLIMITED = 2**31 - 1
#: A full batch of rows as large as those so far has at most this part of the limit.  What comes next may have
#: larger rows, and is in memory before its size is known.
_LIFTED_BELOW = 1 / 8
#: Runs of queries that are remembered.
_RUNS_KEPT = 200
_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[kmgtp]?)b?")


def bytes_per_batch(spark: SparkSession) -> int | None:
    """Return the limit of a session; None where its version of Spark has none."""
    try:
        return size_of_setting(spark.conf.get(MAX_BYTES) or "")
    except PySparkException:  # there is no such setting, also none with a default
        return None


def size_of_setting(size: str) -> int:
    """Return a size that a setting gives as text, with or without a unit, in binary units as Spark."""
    found = _SIZE.fullmatch(size.strip().lower())
    return int(found["number"]) * 1024 ** " kmgtp".index(found["unit"] or " ") if found else UNLIMITED


class MeasuredBatches:
    """Batches, and the size of the largest rows in them: the largest average of a batch, in bytes."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.row_bytes = 0.0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            if batch.num_rows:
                self.row_bytes = max(self.row_bytes, batch.nbytes / batch.num_rows)
            yield batch


class BatchLimits:
    """Lifts the limit in bytes of the batches of each run of a query; for one thread."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, _Run] = OrderedDict()

    def observe(self, identity: TaskIdentity, row_bytes: float) -> None:
        """Take the size of the rows of a task into account, from the next micro-batch on; 0 without rows."""
        if not row_bytes:
            return
        try:
            run = self._runs.get(identity.run_id)
            if run is None:
                session = _session_of(identity.query_id)
                run = self._runs[identity.run_id] = _Run(identity.query_id, _small_rows(session))
                if len(self._runs) > _RUNS_KEPT:
                    self._runs.popitem(last=False)
            run.observe(row_bytes)
        except Exception:  # of a query or a JVM that ends meanwhile
            _log.debug("the limit of the batches of query %s stays", identity.query_id, exc_info=True)


class _Run:
    """One run of a query."""

    def __init__(self, query_id: str, small: float) -> None:
        self._query_id = query_id
        #: The bytes of the largest rows with which the limit is lifted; 0 where it stays.
        self._small = small
        self._lifted = False

    def observe(self, row_bytes: float) -> None:
        small = row_bytes <= self._small
        if small == self._lifted:
            return
        session = _session_of(self._query_id)
        if session is None:
            return
        if small:
            session.conf().set(MAX_BYTES, str(UNLIMITED))
        else:
            session.conf().unset(MAX_BYTES)
            # For good: another operator of the query may have smaller rows.
            self._small = 0
        self._lifted = small


def _session_of(query_id: str) -> Any:
    """Return the JVM's session of a query that runs; None where it has ended."""
    spark = SparkSession._instantiatedSession
    if spark is None or spark.sparkContext._jvm is None:
        return None
    identifier = spark.sparkContext._jvm.java.util.UUID.fromString(query_id)
    query = spark._jsparkSession.sharedState().activeStreamingQueries().get(identifier)
    return None if query is None else query.sparkSessionForStream()


def _small_rows(session: Any) -> float:
    """Return the bytes of the largest rows with which the limit is lifted.

    0 where the job has set the limit, its number of rows has none, or Spark has no such limit.
    """
    if session is None or session.sessionState().conf().contains(MAX_BYTES):
        return 0
    limit, records = session.conf().getOption(MAX_BYTES), int(session.conf().get(MAX_RECORDS))
    if limit.isEmpty() or records <= 0:
        return 0
    return _LIFTED_BELOW * size_of_setting(limit.get()) / records
