"""Errors about using the harness; those of the function, of state and of backends are the runtime's own."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors.kernel import KeyedStateError, did_you_mean


class HarnessSchemaError(KeyedStateError, ValueError):
    """A schema, or a key column, that the harness cannot work with.

    Attributes
    ----------
    argument : {"schema", "output", "broadcast", "key", "time", "second"}
    reason : str
    """

    def __init__(self, argument: str, reason: str) -> None:
        self.argument = argument
        self.reason = reason
        super().__init__(
            f"the harness cannot use its argument {argument!r}: {reason}. A schema is a string in Spark's "
            "syntax ('user string, views long'), a dict of names and types, a pyarrow.Schema or a "
            "StructType; a key is the name of a column, or a list of names; a time is the name of a column "
            "of timestamps or dates."
        )


class HarnessSettingError(KeyedStateError, ValueError):
    """A setting of the harness that cannot be, or is given in the wrong place."""

    def __init__(self, setting: str, reason: str, way_out: str) -> None:
        self.setting = setting
        self.reason = reason
        super().__init__(f"{setting} {reason}. {way_out}")


class InputRowError(KeyedStateError, ValueError):
    """A row that is given to the harness and does not have the columns of the schema; no row was processed.

    Attributes
    ----------
    row : int
        Which row of the call, from 0.
    column : str or None
        The column, inside a nested one with the path to the value; None where the row has other columns.
    reason : str
    """

    def __init__(self, row: int, column: str | None, reason: str, columns: Sequence[str]) -> None:
        self.row = row
        self.column = column
        self.reason = reason
        super().__init__(
            f"row {row} of this call {reason}. The columns of the schema are {', '.join(columns)}. Give each "
            "row as a dict with these names, or as a tuple or list in this order; nothing of this call was "
            "processed."
        )


class FunctionCopyError(KeyedStateError):
    """A process function that cannot be pickled or copied, so that no instance could have its own.

    Attributes
    ----------
    function : str
        The function's class.
    """

    def __init__(self, function: str, error: BaseException) -> None:
        self.function = function
        super().__init__(
            f"{function} cannot be pickled and copied, and Spark must send it to its tasks: "
            f"{type(error).__name__}: {error}. Make what stands in the way, such as a connection or lock, in "
            "its open()."
        )


class StateNotRegisteredError(KeyedStateError, LookupError):
    """A state that the function has not registered, and that therefore has no handle to read it by.

    Attributes
    ----------
    state : str
    registered : tuple of str
    """

    def __init__(self, state: str, registered: Sequence[str], restored: bool) -> None:
        self.state = state
        self.registered = tuple(sorted(registered))
        known = ", ".join(self.registered) or "none"
        what = "was restored, but the function does not register it" if restored else "is not registered"
        super().__init__(
            f"the state {state!r} {what}.{did_you_mean(state, self.registered)} Registered are: {known}. "
            "Declare it on the function, or look it up in its open()."
        )


class SnapshotMismatchError(KeyedStateError, ValueError):
    """A snapshot whose keys would not be found in this harness.

    Attributes
    ----------
    fact : str
        What differs.
    before, now : object
        In the snapshot and in the harness.
    """

    def __init__(self, fact: str, before: object, now: object) -> None:
        self.fact = fact
        self.before = before
        self.now = now
        super().__init__(
            f"the snapshot cannot be restored here: its {fact} is {before!r} and this harness's is {now!r}, "
            "and its keys would not be found again. Make the harness with that of the snapshot."
        )


class HarnessClosedError(KeyedStateError, RuntimeError):
    """A call on a harness that was closed, or whose restore failed."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"this harness {reason}. Make a new one; its outputs and snapshots can still be used."
        )
