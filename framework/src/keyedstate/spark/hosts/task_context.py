"""``TaskContext.get()`` in a host: the facts of the task for which a thread runs an epoch."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from pyspark import TaskContext

#: The fields of a task context that a task sends to its host.
_FIELDS = ("_stageId", "_partitionId", "_attemptNumber", "_taskAttemptId", "_localProperties", "_cpus")
_of_thread = threading.local()


def task_facts() -> dict[str, Any]:
    """Return the facts of the task that this worker runs; none outside of a task."""
    context = TaskContext.get()
    return {} if context is None else {name: getattr(context, name, None) for name in _FIELDS}


def set_task_facts(facts: Mapping[str, Any]) -> None:
    """Let `TaskContext.get` return these facts in this thread."""
    for name in _FIELDS:
        setattr(_of_thread, name, facts.get(name))
    if not isinstance(TaskContext._taskContext, _ContextOfThread):
        TaskContext._taskContext = object.__new__(_ContextOfThread)


class _ContextOfThread(TaskContext):
    """The one task context of the process, with other facts in each thread."""


def _field(name: str) -> property:
    return property(lambda _: getattr(_of_thread, name, None))


for _name in _FIELDS:
    setattr(_ContextOfThread, _name, _field(_name))
