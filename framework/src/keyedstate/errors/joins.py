"""Errors about joins: of their declaration, and of their rows."""

from __future__ import annotations

from keyedstate.errors.base import KeyedStateError


class InvalidJoinError(KeyedStateError, ValueError):
    """A join that cannot be, found when it is declared."""

    part: str  # What is wrong: ``the interval``, ``process()``
    reason: str
    way_out: str
    message = "{part} cannot be used: {reason}. {way_out}"


class MissingJoinTimeError(KeyedStateError):
    """A row without event time that is given to an interval join (Flink's ``Long.MIN_VALUE`` timestamp)."""

    side: str  # ``left`` or ``right``
    message = (
        "a row of the {side} input has no event time, by which it would be joined. Say what is done with "
        "rows whose time is null: missing='drop' or missing='side output'."
    )
