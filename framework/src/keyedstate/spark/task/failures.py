"""The text by which an error of a task reaches the driver: the user's lines first, then traces."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator
from pathlib import Path

import pyspark

from keyedstate.errors import KeyedStateError, UserFunctionError
from keyedstate.runtime.functions.failures import report_of

_PYSPARK = str(Path(pyspark.__file__).parent)


def with_report(error: KeyedStateError, uid: str | None) -> KeyedStateError:
    """Return the error that ends a task of an operator, with its whole report as its text."""
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
def without_traceback() -> Iterator[None]:
    """Let errors of keyedstate leave a Python process of Spark without its traceback."""
    try:
        yield
    except KeyedStateError:
        _hide_trace()
        raise


def _hide_trace() -> None:
    """Let this worker report its error, which is its last, without frames; has no effect on Spark 3.5."""
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"
