"""Errors about the runner without Spark."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors.base import KeyedStateError
from keyedstate.errors.checkpoint import CheckpointError


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

    operator: str
    subtask: int
    reason: str
    message = (
        "subtask {subtask} of {operator!r} failed: {reason}. Run the program again: with a uid it continues "
        "from its last checkpoint."
    )


class CheckpointTimeoutError(CheckpointError):
    """A checkpoint that was not complete in time, because subtasks are slow or stuck."""

    operator: str  # The first one of the chain that is not done
    epoch: int
    subtasks: Sequence[int]
    parallelism: int
    timeout_ms: int
    message = (
        "the checkpoint of epoch {epoch} is not complete after {timeout_ms} ms: of the {parallelism} "
        "subtasks of {operator!r}, these have not finished the epoch: {subtasks}. The run has ended, and "
        "the next one continues from the checkpoint before. If a subtask is slow and not stuck, raise "
        "checkpoint.timeout; if its rows take long, checkpoint.mode=unaligned lets barriers overtake them."
    )
