"""The size of the Arrow batches in which Spark sends rows to Python.

From Spark 4.1 on, a batch has at most ``spark.sql.execution.arrow.maxBytesPerBatch``, 64 MiB, beside
``maxRecordsPerBatch``, 10,000 rows.  Spark adds up the buffers of the batch before each row for this, which
takes a quarter of the JVM's processor time in a query that counts rows by key.  Only the largest int is no
limit to it.

So the driver lifts the limit, in the session of the query alone, while rows are so small that a batch reaches
its number of rows first.  Tasks report the size of their rows with their acknowledgements.  keyedstate cannot
measure the rows that other functions in Python receive, so a query with any of them keeps the limit.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from keyedstate.checkpoint.format.manifest import TaskIdentity
from keyedstate.spark.session import running_query

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
#: Steps of a plan that send rows to Python, as Spark shows them, and those of keyedstate.
_OTHER_PYTHON = re.compile(r"EvalPython|AggregatePython|WindowPython|In(?:Arrow|Pandas|PySpark)")
_KEYEDSTATE = re.compile(r"MapInArrow (?:keyed_operator|\w+_with_state_[0-9a-f]{16})\(")
_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[kmgtp]?)b?")


def bytes_per_batch(spark: SparkSession) -> int | None:
    """Return the limit of a session; None where its version of Spark has none."""
    try:
        return size_of_setting(spark.conf.get(MAX_BYTES) or "")
    except (PySparkException, Py4JJavaError):  # there is no such setting, also none with a default
        return None


def size_of_setting(size: str) -> int:
    """Return a size that a setting gives as text, with or without a unit, in binary units as Spark."""
    found = _SIZE.fullmatch(size.strip().lower())
    return int(found["number"]) * 1024 ** " kmgtp".index(found["unit"] or " ") if found else UNLIMITED


class MeasuredBatches:
    """Batches, and how large their rows are."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rows = self._bytes = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self._rows += batch.num_rows
            self._bytes += batch.nbytes
            yield batch

    @property
    def row_bytes(self) -> float:
        """The bytes of a row on the average of those that were read; 0 without any."""
        return self._bytes / self._rows if self._rows else 0.0


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
                run = self._runs[identity.run_id] = _Run(identity)
                run.begin()
                if len(self._runs) > _RUNS_KEPT:
                    self._runs.popitem(last=False)
            self._runs.move_to_end(identity.run_id)
            run.observe(row_bytes)
        except Exception:  # of a query or a JVM that ends meanwhile
            _log.debug("the limit of the batches of query %s stays", identity.query_id, exc_info=True)


class _Run:
    """One run of a query."""

    def __init__(self, identity: TaskIdentity) -> None:
        self._query_id = identity.query_id
        self._run_id = identity.run_id
        self._lifted = False
        #: The bytes of the largest rows with which the limit is lifted; 0 where it stays.
        self._small = 0.0

    def begin(self) -> None:
        query = self._query()
        if query is not None and _sends_rows_to_keyedstate_alone(query):
            self._small = _small_rows(query.sparkSessionForStream())

    def observe(self, row_bytes: float) -> None:
        small = row_bytes <= self._small
        if not small:
            # For good: another task or operator may have smaller rows, or have them later.
            self._small = 0
        if small == self._lifted:
            return
        query = self._query()
        if query is None:
            return
        conf = query.sparkSessionForStream().conf()
        if small:
            conf.set(MAX_BYTES, str(UNLIMITED))
        elif size_of_setting(conf.get(MAX_BYTES)) == UNLIMITED:
            conf.unset(MAX_BYTES)
        self._lifted = small

    def _query(self) -> Any:
        """Return the JVM's query; None where the run has ended."""
        spark = SparkSession._instantiatedSession
        if spark is None or spark.sparkContext._jvm is None:
            return None
        query = running_query(spark.sparkContext._jvm, spark._jsparkSession, self._query_id)
        return query if query is not None and str(query.runId()) == self._run_id else None


def _sends_rows_to_keyedstate_alone(query: Any) -> bool:
    """Return whether no other function in Python receives rows of the query, also none in `foreachBatch`."""
    if "ForeachBatch" in query.sink().getClass().getName():
        return False
    return not _OTHER_PYTHON.search(_KEYEDSTATE.sub("", query.lastExecution().executedPlan().toString()))


def _small_rows(session: Any) -> float:
    """Return the bytes of the largest rows with which the limit is lifted.

    0 where the job has set the limit, its number of rows has none, or Spark has no such limit.
    """
    if session.sessionState().conf().contains(MAX_BYTES):
        return 0
    limit, records = session.conf().getOption(MAX_BYTES), int(session.conf().get(MAX_RECORDS))
    if limit.isEmpty() or records <= 0:
        return 0
    return _LIFTED_BELOW * size_of_setting(limit.get()) / records
