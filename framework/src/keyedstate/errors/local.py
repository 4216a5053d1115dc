"""Errors about the runner without Spark."""

from __future__ import annotations

from keyedstate.errors.base import KeyedStateError


class SourceError(KeyedStateError):
    """Rows that cannot be read as a source."""

    part: str
    reason: str
    way_out: str
    message = "{part} cannot be read as a source: {reason}. {way_out}"


class LocalRunError(KeyedStateError):
    """A run that cannot begin, or cannot be what it is asked for."""

    part: str
    reason: str
    way_out: str
    message = "{part} cannot be run here: {reason}. {way_out}"


class SubtaskFailedError(KeyedStateError):
    """A subtask of a run whose process was killed, or whose error cannot be pickled."""

    subtask: int
    reason: str
    message = (
        "subtask {subtask} failed: {reason}. Run the program again: with a uid it continues from its last "
        "checkpoint."
    )
