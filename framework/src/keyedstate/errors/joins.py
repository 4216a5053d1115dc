"""Errors about joins: those that nobody can have, and those that only rows show."""

from __future__ import annotations

from keyedstate.errors.kernel import KeyedStateError


class InvalidJoinError(KeyedStateError, ValueError):
    """A join that cannot be, found when it is declared.

    Attributes
    ----------
    part : str
        What is wrong: ``the interval``, ``process()`` ...
    reason : str
    """

    def __init__(self, part: str, reason: str, way_out: str) -> None:
        self.part = part
        self.reason = reason
        super().__init__(f"{part} cannot be used: {reason}. {way_out}")


class MissingJoinTimeError(KeyedStateError):
    """A row without event time that is given to an interval join (Flink's ``Long.MIN_VALUE`` timestamp).

    Attributes
    ----------
    side : str
        ``left`` or ``right``.
    """

    def __init__(self, side: str) -> None:
        self.side = side
        super().__init__(
            f"a row of the {side} input has no event time, by which it would be joined. Say what is done "
            "with rows whose time is null: missing='drop' or missing='side output'."
        )
