"""Who a task is: its epoch, its partition and its attempt, as Spark tells them to a Python worker.

Spark puts the micro-batch, the query and the run into local properties of the stream's thread, and hands
these to every task; the run is the job group, so code in `foreachBatch` must not set another one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from pyspark import SparkContext, TaskContext

from keyedstate.checkpoint import TaskIdentity
from keyedstate.errors import TaskContextError

_EPOCH = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"
_RUN_ID = "spark.jobGroup.id"


@dataclass(frozen=True)
class EpochIdentity:
    """One micro-batch of one run of a streaming query.

    Attributes
    ----------
    epoch : int
        The micro-batch; the same number again when Spark repeats it.
    query_id : str
        Lives in the query's checkpoint location: the same after a restart.
    run_id : str
        New at every start of the query.
    """

    epoch: int
    query_id: str
    run_id: str


def task_context() -> TaskContext:
    """Return the context of the task that this Python worker runs.

    Raises
    ------
    TaskContextError
        Outside a task.
    """
    context = TaskContext.get()
    if context is None:
        raise TaskContextError("there is no Spark task", "Run the operator through a DataFrame.")
    return context


def attempt_identity(uid: str, operator_id: str, parallelism: int, max_parallelism: int) -> TaskIdentity:
    """Return the identity of the present attempt at one partition of a streaming query's epoch.

    Raises
    ------
    TaskContextError
        Outside a task, or outside a streaming query.
    """
    context = task_context()
    epoch = _epoch_of(context.getLocalProperty)
    if epoch is None:
        raise TaskContextError(
            f"the operator {uid!r} was built for a streaming query, and this task belongs to none",
            "Evaluate its result through writeStream.",
        )
    return TaskIdentity(
        uid=uid,
        query_id=epoch.query_id,
        run_id=epoch.run_id,
        epoch=epoch.epoch,
        # A stage counts the partitions of all sides of a union, one side after the other. Where those before
        # this operator are not a multiple of its parallelism, its rows show it.
        partition=context.partitionId() % parallelism,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        attempt=context.taskAttemptId(),
        nonce=f"{operator_id}-{uuid.uuid4().hex}",
    )


def is_local(context: SparkContext) -> bool:
    """Return whether the driver is the only executor."""
    return re.fullmatch(r"local(\[.*\])?", str(context.master)) is not None


def epoch_on_driver(context: SparkContext) -> EpochIdentity | None:
    """Return the micro-batch on whose behalf this thread of the driver runs: that of a `foreachBatch`."""
    return _epoch_of(context.getLocalProperty)


def _epoch_of(local_property: Callable[[str], str | None]) -> EpochIdentity | None:
    epoch, query_id, run_id = map(local_property, (_EPOCH, _QUERY_ID, _RUN_ID))
    if epoch is None or query_id is None or run_id is None:
        return None
    return EpochIdentity(int(epoch), query_id, run_id)
