"""State at the checkpoint location of the query, which is unknown when an operator is built.

Spark notifies listeners of a query before its first micro-batch.  The listener here writes the location into
the configuration of the query's own session, from where every task of the query gets it.  It also writes the
operators of the query in the order of its plan, by which they are named.  With a configured folder,
``checkpoint.dir``, the state is stored there, under the id of the query, which belongs to the location.
"""

from __future__ import annotations

import re
import threading
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from keyedstate.errors import TaskContextError
from keyedstate.options import CHECKPOINT_DIR, Configuration
from keyedstate.spark.addresses import without_hadoop_scheme
from keyedstate.spark.session import running_query

#: Not one of keyedstate's options, so that no operator takes it for one.
_LOCATION = "spark.keyedstateQuery.checkpointLocation"
_OPERATORS = "spark.keyedstateQuery.operators"
#: The end of the name under which Spark shows an operator: its id, before its columns.
_ID = re.compile(r"_([0-9a-f]{16})\(")
#: The folder below a checkpoint location, and before the id of a query in ``checkpoint.dir``.
_FOLDER = "keyedstate"


def record_checkpoint_locations(spark: SparkSession) -> None:
    """Let the tasks of each query that is started in a session get its checkpoint location."""
    with _lock:
        if spark not in _listeners:
            _listeners[spark] = _Recorder(spark)
            spark.streams.addListener(_listeners[spark])


def state_directory_in_task(config: Configuration) -> str:
    """Return the URI of the folder with the state of the query that runs this task.

    Raises
    ------
    TaskContextError
    """
    context = TaskContext.get()
    if context is None:
        raise TaskContextError("there is no Spark task", "Run the operator through a DataFrame.")
    configured = config.get(CHECKPOINT_DIR)
    if configured is not None:
        query_id = context.getLocalProperty("sql.streaming.queryId")
        return f"{configured.rstrip('/')}/{_FOLDER}-{query_id}"
    location = context.getLocalProperty(_LOCATION)
    if location is None:
        raise TaskContextError(
            "the checkpoint location of the query is unknown, because it was started in another session than "
            "that of its DataFrames",
            "Start it in that session, or set the option 'checkpoint.dir'.",
        )
    return f"{without_hadoop_scheme(location).rstrip('/')}/{_FOLDER}"


def offsets_in_task() -> str | None:
    """Return the URI of the log of offsets of the query that runs this task; None where that is unknown."""
    context = TaskContext.get()
    location = None if context is None else context.getLocalProperty(_LOCATION)
    return None if location is None else _offsets_at(location)


def offsets_of_query(query_id: str) -> str:
    """Return the URI of the log of offsets of a query that has begun, for its driver."""
    with _lock:
        return _offsets_at(_locations[query_id])


def _offsets_at(location: str) -> str:
    return f"{without_hadoop_scheme(location).rstrip('/')}/offsets"


def operator_number_in_task(operator_id: str) -> int | None:
    """Return the place of an operator in the plan of the query that runs this task, that of the inputs first.

    None for an operator whose name in the plan does not end with its id.
    """
    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty(_OPERATORS)
    ids = (found or "").split(",")
    return ids.index(operator_id) if operator_id in ids else None


class _Recorder(StreamingQueryListener):
    def __init__(self, spark: SparkSession) -> None:
        self._jvm = spark.sparkContext._jvm
        self._session = spark._jsparkSession

    def onQueryStarted(self, event: Any) -> None:
        query = running_query(self._jvm, self._session, event.id)
        conf = query.sparkSessionForStream().conf()
        location = query.resolvedCheckpointRoot()
        with _lock:
            _locations[str(event.id)] = location
        conf.set(_LOCATION, location)
        # Spark shows an operator before its inputs.  One whose output is used twice has one number.
        operators = reversed(_ID.findall(str(query.analyzedPlan().toString())))
        conf.set(_OPERATORS, ",".join(dict.fromkeys(operators)))

    def onQueryProgress(self, event: Any) -> None: ...

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...


_listeners: WeakKeyDictionary[SparkSession, _Recorder] = WeakKeyDictionary()
#: By the id of the query.
_locations: dict[str, str] = {}
_lock = threading.Lock()
