"""Errors about the harness, the contract kit and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keyedstate.errors.base import KeyedStateError


class HarnessSchemaError(KeyedStateError, ValueError):
    """A schema, or a key column, that the harness cannot work with."""

    argument: str  # {"schema", "output", "broadcast", "key", "time", "second"}
    reason: str
    message = (
        "the harness cannot use its argument {argument!r}: {reason}. A schema is a string in Spark's syntax "
        "('user string, views long'), a dict of names and types, a pyarrow.Schema or a StructType; a key is "
        "the name of a column, or a list of names; a time is the name of a column of timestamps or dates."
    )


class HarnessSettingError(KeyedStateError, ValueError):
    """A setting of the harness that is invalid, or given in the wrong place."""

    setting: str
    reason: str
    way_out: str
    message = "{setting} {reason}. {way_out}"


class InputRowError(KeyedStateError, ValueError):
    """A row that does not have the columns of the harness's schema; no row was processed."""

    row: int  # Which row of the call, from 0
    #: The column, inside a nested one with the path to the value; None where the row has other columns.
    column: str | None
    reason: str
    columns: Sequence[str]
    message = (
        "row {row} of this call {reason}. The columns of the schema are {columns}. Give each row as a dict "
        "with these names, or as a tuple or list in this order; nothing of this call was processed."
    )


class StateNotRegisteredError(KeyedStateError, LookupError):
    """A state that the function has not registered, and that therefore has no handle to read it by."""

    state: str
    registered: Sequence[str]
    restored: bool
    message = (
        "the state {state!r} {restored:?was restored, but the function does not register it}{restored:|is "
        "not registered}.{state:~registered} Registered are: {registered:?{registered}}{registered:|none}. "
        "Declare it on the function, or look it up in its open()."
    )


class SnapshotMismatchError(KeyedStateError, ValueError):
    """A snapshot whose keys would not be found in this harness."""

    fact: str  # What differs
    before: object  # In the snapshot and in the harness
    now: object
    message = (
        "the snapshot cannot be restored here: its {fact} is {before!r} and this harness's is {now!r}, and "
        "its keys would not be found again. Make the harness with that of the snapshot."
    )


class HarnessClosedError(KeyedStateError, RuntimeError):
    """A call on a harness that was closed, or whose restore failed."""

    reason: str
    message = "this harness {reason}. Make a new one; its outputs and snapshots can still be used."


# -- contract -------------------------------------------------------------------------------------


class NoTestSelectedError(KeyedStateError, ValueError):
    """An expression that selects no test."""

    expression: str
    message = (
        "no test of the contract kit is selected by {expression!r}. Use a part of a test's name, such as "
        "'snapshot', or leave the option -k out."
    )


class ContractRunError(KeyedStateError):
    """pytest could not run the tests."""

    status: int
    output: str  # The last lines that it printed
    message = (
        "pytest ended with status {status} and without running the contract kit. Correct what it "
        "says:\n{output}"
    )


# -- commands -------------------------------------------------------------------------------------


class DemoJobError(KeyedStateError):
    """A job of the demo that failed on its own."""

    command: Sequence[str]
    status: int
    log: Path

    def _message(self) -> str:
        last = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])
        return (
            f"the demo's process `{' '.join(self.command[1:])}` ended with status {self.status}. "
            f"Its last lines are:\n{last}\n"
            f"All of them are in {self.log}; `keyedstate doctor` looks for what may be missing."
        )
