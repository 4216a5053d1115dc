"""How an error of a task reaches the driver: its own lines first, and traces of the framework after them."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator
from pathlib import Path

import pyspark

from keyedstate.errors import KeyedStateError, UserFunctionError
from keyedstate.runtime.failures import report_of

_PYSPARK = str(Path(pyspark.__file__).parent)


def told_to_driver(error: KeyedStateError, uid: str | None) -> KeyedStateError:
    """Return an error with all in its text that the driver is to be told, which gets nothing else of it.

    Parameters
    ----------
    error : KeyedStateError
        Of a task, which ends with it.
    uid : str or None
        The operator.
    """
    _hide_trace()
    if isinstance(error, UserFunctionError):
        error.uid = uid
        error.args = (report_of(error),)
    else:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith(_PYSPARK)
        ]
        lines = traceback.StackSummary.from_list(frames).format()
        if error.__cause__ is not None:
            lines.append("Caused by\n")
            lines += traceback.format_exception(error.__cause__)
        error.args = (f"{error}\n{''.join(lines)}",)
    return error


@contextlib.contextmanager
def told_without_trace() -> Iterator[None]:
    """Let errors of keyedstate leave a process of Spark's as their text alone: it says all."""
    try:
        yield
    except KeyedStateError:
        _hide_trace()
        raise


def _hide_trace() -> None:
    """Let the worker tell an error without the frames that it puts before it otherwise."""
    # Each worker ends with its first error, so that this concerns no other. Spark 3.5 does not know it.
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"
