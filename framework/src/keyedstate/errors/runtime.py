"""Errors about running a process function."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors.base import KeyedStateError, shortened


class InvalidFunctionError(KeyedStateError):
    """An object that is no process function, or one whose result is no rows."""

    function: str
    reason: str
    message = "{function} cannot be run: {reason}."


class OutputError(KeyedStateError):
    """Base class of errors about the rows that a function yields; ``key`` is the key it was working on."""

    key: object

    @property
    def _shown_key(self) -> str:
        return shortened(self.key)

    @property
    def _width(self) -> int:
        return len(getattr(self, "columns", ()))


class OutputRowError(OutputError):
    """An output row that is no row, or has not exactly the declared columns."""

    reason: str
    row: str
    columns: Sequence[str]
    side: str | None = None
    message = (
        "the output row {row}{side:? of the side output {side!r}} for the key {_shown_key} {reason}. "
        "Declared are {_width} column(s): {columns}. Yield a tuple or list with one value for each in this "
        "order, or a dict with these names."
    )


class OutputTypeError(OutputError, TypeError):
    """An output value that does not fit its column."""

    column: str  # The column; inside a nested one with the path to the value, such as ``tags.element``
    expected: str  # The declared type and the Python types it takes: ``int64 (int)``
    given: str  # The Python type and the value, shortened
    reason: str = ""  # What is wrong where the Python type is right; otherwise empty
    message = (
        "the output column {column!r} is declared as {expected}, but for the key {_shown_key} the function "
        "gave {given}{reason:? ({reason})}. Give a value of that type, or declare the column with another."
    )


class OutputSchemaError(KeyedStateError, ValueError):
    """A declared output schema that cannot be used."""

    reason: str
    message = "the output schema cannot be used: {reason}. Correct the schema given to process()."


class OutputSizeError(KeyedStateError):
    """Output values that are too large to share one Arrow batch."""

    column: str
    rows: int
    message = (
        "{rows} values of the output column {column!r} hold more than 2 GiB together, more than one Arrow "
        "batch can. Yield smaller values, or several rows for one."
    )


class OutputBatchError(OutputError):
    """What a vectorised function gives, where it is no batch of the declared columns."""

    reason: str
    columns: Sequence[str]
    side: str | None = None
    message = (
        "an output batch{side:? of the side output {side!r}} cannot be used: {reason}. Declared are {_width} "
        "column(s): {columns}. Yield pyarrow.RecordBatch or pyarrow.Table with these."
    )


class SideOutputNameError(KeyedStateError, ValueError):
    """A declared side output of a name that it cannot have."""

    name: object
    reason: str
    message = "the side output {name!r} cannot be declared: {reason}. Give it another name."


class UndeclaredSideOutputError(KeyedStateError, LookupError):
    """A row for a side output that was not declared."""

    name: str
    declared: Sequence[str]
    message = (
        "the side output {name!r} was not declared; declared are: "
        "{declared:?{declared!r}}{declared:|none}.{name:~declared} Declare it in side_outputs of the "
        "function, as in side_outputs = {{{name!r}: 'user string, n long'}}, or with side_output() of "
        "windows and joins."
    )


class RowClassError(KeyedStateError, TypeError):
    """A class of rows that cannot be one, or that does not fit the columns."""

    row_class: str
    reason: str
    message = "rows cannot be instances of {row_class}: {reason}."
