"""The identity of a task: its epoch, partition and attempt.

Spark writes the micro-batch, the query and the run into local properties of the stream's thread, and passes
these to every task.  The run is the job group, so code in `foreachBatch` must not set another one.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from pyspark.taskcontext import TaskContext

from keyedstate.checkpoint.format.manifest import TaskIdentity
from keyedstate.errors import TaskContextError

if TYPE_CHECKING:
    from pyspark import SparkContext

#: Of the micro-batch, the query and the run.
_PROPERTIES = ("streaming.sql.batchId", "sql.streaming.queryId", "spark.jobGroup.id")


def task_context() -> TaskContext:
    """Return the context of the task of this Python worker; raises `TaskContextError` outside of one."""
    context = TaskContext.get()
    if context is None:
        raise TaskContextError("there is no Spark task", "Run the operator through a DataFrame.")
    return context


def attempt_identity(uid: str, operator_id: str, parallelism: int, max_parallelism: int) -> TaskIdentity:
    """Return the identity of the current attempt at one partition of a streaming query's epoch.

    Raises `TaskContextError` outside of a task, or of a streaming query.
    """
    context = task_context()
    epoch, query_id, run_id = map(context.getLocalProperty, _PROPERTIES)
    if epoch is None or query_id is None or run_id is None:
        raise TaskContextError(
            f"the operator {uid!r} was built for a streaming query, and this task belongs to none",
            "Evaluate its result through writeStream; on Spark Connect with another sink than foreachBatch, "
            "whose function evaluates its DataFrame outside of the micro-batch there.",
        )
    return TaskIdentity(
        uid=uid,
        query_id=query_id,
        run_id=run_id,
        epoch=int(epoch),
        # A stage numbers the partitions of all sides of a union, one side after the other. If those before
        # this operator are not a multiple of its parallelism, `OperatorPlan` finds rows of another partition.
        partition=context.partitionId() % parallelism,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        attempt=context.taskAttemptId(),
        nonce=f"{operator_id}-{uuid.uuid4().hex}",
    )


def is_in_micro_batch(context: SparkContext) -> bool:
    """Return whether this thread of the driver runs a `foreachBatch` function."""
    return all(context.getLocalProperty(name) is not None for name in _PROPERTIES)
