"""The rows of a test as the Arrow batches that Spark would pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from keyedstate.columns.declared import arrow_schema
from keyedstate.columns.keyed import KeyedColumns, routed
from keyedstate.errors import (
    EventTimeError,
    HarnessSchemaError,
    InputRowError,
    KeyColumnError,
    OutputRowError,
    OutputSchemaError,
    OutputTypeError,
)
from keyedstate.runtime import KeyedFunction
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.runners import KeyedOperator
from keyedstate.time import EventTime
from keyedstate.types import TypeSerializer

#: The name of a single input.
ONLY_INPUT = "rows"


class InputRows:
    """The declared columns of rows.

    Parameters
    ----------
    declared : str, mapping, pyarrow.Schema or StructType
    argument : str
        Its name, for errors.

    Raises
    ------
    HarnessSchemaError
    """

    def __init__(self, declared: object, argument: str) -> None:
        self._checked = checked_schema(declared, argument)

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._checked.schema

    def to_batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Return rows as one batch.

        Raises
        ------
        InputRowError
        """
        columns = self.schema.names
        failed = 0

        def note(row: int) -> None:
            nonlocal failed
            failed = row

        try:
            return self._checked.to_batch(rows, note)
        except OutputRowError as error:
            raise InputRowError(failed, None, error.reason, columns) from None
        except OutputTypeError as error:
            detail = f" ({error.reason})" if error.reason else ""
            reason = f"has {error.given} in the column {error.column!r}, which takes {error.expected}{detail}"
            raise InputRowError(failed, error.column, reason, columns) from None


class KeyedInputRows(InputRows):
    """The declared columns of rows, some of which make the key.

    Parameters
    ----------
    declared : str, mapping, pyarrow.Schema or StructType
    key : str or sequence of str
    event_time : EventTime or None
        As `KeyedColumns` takes them.
    argument : str, optional
        The name of `declared`, for errors.

    Attributes
    ----------
    connected : None
        There is one input.
    columns : KeyedColumns
    """

    connected = None

    def __init__(
        self,
        declared: object,
        key: str | Sequence[str],
        event_time: EventTime | None,
        row_kind: str | None = None,
        argument: str = "schema",
    ) -> None:
        super().__init__(declared, argument)
        try:
            self.columns = KeyedColumns(self._checked.schema, key, event_time, row_kind)
        except (KeyColumnError, EventTimeError) as error:
            of_key = isinstance(error, KeyColumnError)
            raise HarnessSchemaError("key" if of_key else "event_time", error.reason) from error
        if event_time is not None and event_time.inputs is not None:
            raise HarnessSchemaError("event_time", "a harness does not tell inputs of one DataFrame apart")

    @property
    def schema(self) -> pa.Schema:
        """The declared columns, and the fields of structs that are parts of the key."""
        return self.columns.schema

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.columns.key_columns

    @property
    def key_serializer(self) -> TypeSerializer[Any]:
        """The type of the key."""
        return self.columns.key_serializer

    @property
    def event_time(self) -> EventTime | None:
        """The event time of the rows."""
        return self.columns.event_time

    def to_batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        return self.columns.with_key_columns(super().to_batch(rows))

    @property
    def have_event_time(self) -> bool:
        """Whether the rows have event times."""
        return self.event_time is not None

    @property
    def event_times(self) -> dict[str, EventTime | None]:
        """The event time, by the name of the input."""
        return {ONLY_INPUT: self.event_time}

    def side_columns(self, name: str, function: KeyedFunction) -> pa.Schema:
        """Return the columns of a side output that has those of the input."""
        return self.schema

    def bind(self, function: KeyedFunction) -> KeyedFunction:
        """Return a function for these rows."""
        return function.for_rows(self.schema, self.key_columns, self.columns.time_column)

    def largest_event_times(self, operator: KeyedOperator) -> dict[str, int]:
        """Return an operator's largest event time, by the name of the input."""
        return {} if operator.largest_event_time is None else {ONLY_INPUT: operator.largest_event_time}

    def by_instance(
        self, rows: Sequence[Any], parallelism: int, max_parallelism: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (instance, rows) as `keyedstate.columns.keyed.routed`.

        Raises
        ------
        InputRowError
            Before anything is yielded.
        """
        return routed(self.to_batch(rows), self.key_columns, parallelism, max_parallelism)


def checked_schema(declared: object, argument: str, side: str | None = None) -> OutputSchema:
    """Return the schema that checks rows of Python values, which may be a side output's."""
    try:
        return OutputSchema(arrow_schema(declared), side)
    except OutputSchemaError as error:
        raise HarnessSchemaError(argument, error.reason) from error
