"""Warnings on the driver about jobs in which a row may count twice.

Spark computes a micro-batch again after a failure.  Its rows must be the same then, and its checkpoint
location must still exist.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from keyedstate import version
from keyedstate.errors import ExactlyOnceWarning

_log = logging.getLogger(__name__)

_FRAMEWORK = str(Path(version.__file__).parent)
#: Non-deterministic to Spark, but a file has the same name each time.
_STABLE = frozenset(("input_file_name", "input_file_block_start", "input_file_block_length"))
#: How Spark names the folder of a query without a checkpointLocation.
_TEMPORARY = re.compile(r"/temporary-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/?$")
#: What was warned of in this process.
_warned: set[str] = set()


def warn_of_random_rows(rows: DataFrame, uid: str) -> None:
    """Warn, once for each, of non-deterministic expressions in the rows of an operator with state."""
    for column, expression in _random(rows._jdf.queryExecution().analyzed()):
        what = f"{expression}() gives"
        if column is not None:
            what = f"the column {column!r} is made by {expression}(), which gives"
        _warn(
            f"the rows of the operator {uid!r} change when Spark computes a micro-batch again, after a "
            f"failure or a restart: {what} other values then. A row may count twice, or under two keys. Let "
            "the source give the value, or compute it from other columns, for example with sha2()."
        )


def warn_of_temporary_location(spark: SparkSession, uid: str, query_id: str) -> None:
    """Warn once of a running query without a checkpointLocation, which loses its state with each restart."""
    if f"location of {query_id}" in _warned:
        return
    _warned.add(f"location of {query_id}")
    location = ""
    # Internals of Spark: if they have changed, there is no warning.
    with contextlib.suppress(Exception):
        context: Any = spark.sparkContext
        queries = spark._jsparkSession.sharedState().activeStreamingQueries()
        query = queries.get(context._jvm.java.util.UUID.fromString(query_id))
        location = query.resolvedCheckpointRoot()
    if _TEMPORARY.search(location):
        try:
            _warn(
                f"the query of the operator {uid!r} has no checkpointLocation, so Spark deletes {location} "
                "when the query stops: started again, it is another query, and is refused the state of this "
                "one. Set .option('checkpointLocation', ...) on the writer."
            )
        except ExactlyOnceWarning as warning:
            # Raised if warnings are errors; the coordinator would take it for a failure to publish.
            _log.warning("%s", warning)


def _warn(message: str) -> None:
    if message in _warned:
        return
    _warned.add(message)
    warnings.warn(ExactlyOnceWarning(message), stacklevel=_level_of_user())


def _level_of_user() -> int:
    """Return the stack level of the code that called the framework, as `warnings.warn` counts."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_FRAMEWORK):
        level, frame = level + 1, frame.f_back
    return level


def _random(plan: Any) -> Iterator[tuple[str | None, str]]:
    """Yield the non-deterministic functions of a plan, each after its column; None outside of columns."""
    if plan.deterministic():
        return
    for expression in _items(plan.expressions()):
        if not expression.deterministic():
            named = expression.getClass().getSimpleName() == "Alias"
            for function in _functions(expression):
                if function not in _STABLE:
                    yield expression.name() if named else None, function
    for child in _items(plan.children()):
        yield from _random(child)


def _functions(expression: Any) -> Iterator[str]:
    parts = [part for part in _items(expression.children()) if not part.deterministic()]
    for part in parts:
        yield from _functions(part)
    if not parts:
        is_python = expression.getClass().getSimpleName() == "PythonUDF"
        yield expression.name() if is_python else expression.prettyName()


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(number) for number in range(sequence.size())]
