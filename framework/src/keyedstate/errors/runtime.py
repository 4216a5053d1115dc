"""Errors about running a process function."""

from __future__ import annotations

from keyedstate.errors.kernel import KeyedStateError


class InvalidFunctionError(KeyedStateError):
    """An object that is no process function, or one whose result is no rows."""

    def __init__(self, function: str, reason: str) -> None:
        self.function = function
        self.reason = reason
        super().__init__(f"{function} cannot be run: {reason}.")
