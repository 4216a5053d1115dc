"""Errors about process functions and the rows that they yield."""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from keyedstate.errors.base import KeyedStateError

#: What the last line of a report of a `UserFunctionError` begins with; JSON follows.
FACTS = "keyedstate-facts: "


class UserFunctionError(KeyedStateError):
    """A user's function that raised; in the process where it did so, its own error is the cause.

    Attributes
    ----------
    error, trace, function, step : str
        ``ValueError: no flight 7``, its traceback from the user's code on, the function's class and method.
    key : object
        Whose row or timer it was, or None.  On the driver its `repr`, where that is no Python literal.
    epoch, time : int or None
        None for a batch DataFrame; and the time of the timer.
    state, uid : str or None
        The state in whose method it was; and the operator, which is known in Spark.
    """

    error: str
    trace: str
    function: str
    step: str
    key: object
    epoch: int | None
    time: int | None
    state: str | None
    uid: str | None

    def __init__(self, message: str, facts: dict[str, Any]) -> None:
        vars(self).update(facts)
        super().__init__(message)


def user_function_error(error: BaseException | str | None) -> UserFunctionError | None:
    """Return the error of a user's function behind what ``query.exception()`` returns or an action raises.

    The text of an error will do, too.  An error of anything else gives None.
    """
    if error is None or isinstance(error, UserFunctionError):
        return error
    end = (text := str(error)).find(FACTS)
    if end < 0:
        return None if isinstance(error, str) else user_function_error(error.__cause__ or error.__context__)
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        facts: dict[str, Any] = json.JSONDecoder().raw_decode(text, end + len(FACTS))[0]
        facts |= {name: text[end - start : end - stop] for name, (start, stop) in facts.pop("spans").items()}
        with suppress(ValueError, SyntaxError):
            facts["key"] = literal_eval(facts["key"])
        return UserFunctionError(f"{facts['error']}. {facts.pop('place')}", facts)
    return None


# -- runtime --------------------------------------------------------------------------------------


class InvalidFunctionError(KeyedStateError):
    """An object that is no process function, or one whose result is no rows."""

    function: str
    reason: str
    message = "{function} cannot be run: {reason}."


class OutputError(KeyedStateError):
    """Base class of errors about the rows that a function yields; ``key`` is the key it was working on."""

    key: object

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
        "the output row {row}{side:? of the side output {side!r}} for the key {key:repr} {reason}. "
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
        "the output column {column!r} is declared as {expected}, but for the key {key:repr} the function "
        "gave {given}{reason:? ({reason})}. Give a value of that type, or declare the column with another."
    )


class OutputSchemaError(KeyedStateError, ValueError):
    """A declared output schema that cannot be read, or that rows cannot be made for."""

    reason: str
    schema: object = None
    side: str | None = None  # The side output whose schema it is
    message = (
        "the output schema{schema:? {schema!r}}{side:? of the side output {side!r}} cannot be used: "
        "{reason}. Give column names and types such as 'key string, views long', or a StructType."
    )


class OutputSizeError(KeyedStateError):
    """Output values that are too large to share one Arrow batch."""

    column: str
    rows: int
    message = (
        "{rows} values of the output column {column!r} hold more than 2 GiB together, more than one Arrow "
        "batch can. Yield smaller values, or several rows for one."
    )


class OutputBatchError(OutputError):
    """A result of a vectorised function that is no batch of the declared columns."""

    reason: str
    columns: Sequence[str]
    side: str | None = None
    message = (
        "an output batch{side:? of the side output {side!r}} cannot be used: {reason}. Declared are {_width} "
        "column(s): {columns}. Yield pyarrow.RecordBatch or pyarrow.Table with these."
    )


class SideOutputNameError(KeyedStateError, ValueError):
    """A declared side output with an invalid name."""

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
    """A class of rows that is invalid, or that does not fit the columns."""

    row_class: str
    reason: str
    message = "rows cannot be instances of {row_class}: {reason}."
