"""The rows of a test as the Arrow batches that Spark would pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyedstate.errors import (
    HarnessSchemaError,
    InputRowError,
    OutputRowError,
    OutputSchemaError,
    OutputTypeError,
    UnsupportedTypeError,
    did_you_mean,
)
from keyedstate.keygroups import KEY_GROUP_COLUMN
from keyedstate.murmur3 import key_groups
from keyedstate.runtime import KeyedFunction
from keyedstate.runtime.event_time import is_event_time
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.runners import KeyedOperator
from keyedstate.testing.harness.schema import arrow_schema
from keyedstate.time import EventTime

#: The name of a single input.
ONLY_INPUT = "rows"
_KEY_GROUP_FIELD = pa.field(KEY_GROUP_COLUMN, pa.int32(), nullable=False)


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
        Columns, or fields of structs as ``"place.city"``, which become columns, ``city``.
    event_time : EventTime or None
    argument : str, optional
        The name of `declared`, for errors.

    Attributes
    ----------
    connected : None
        There is one input.
    key_columns : tuple of str
    key_types : list of pyarrow.DataType
    key_serializer : TypeSerializer
    event_time : EventTime or None
    """

    connected = None

    def __init__(
        self,
        declared: object,
        key: str | Sequence[str],
        event_time: EventTime | None,
        argument: str = "schema",
    ) -> None:
        super().__init__(declared, argument)
        paths = _key_paths(self._checked.schema, key)
        self.key_columns = tuple(paths)
        #: Fields of structs that are parts of the key: columns of the rows, as on Spark.
        self._from_structs = {name: path for name, path in paths.items() if len(path) > 1}
        self._schema = self._with_fields(self._checked.to_batch([])).schema
        self.event_time = event_time
        if event_time is not None:
            _check_time_column(self.schema, event_time)
        self.key_types = [_key_type(self.schema.field(name)) for name in self.key_columns]
        self.key_serializer = key_serializer_for(self.key_types)

    @property
    def schema(self) -> pa.Schema:
        """The declared columns, and the fields of structs that are parts of the key."""
        return self._schema

    def to_batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        return self._with_fields(super().to_batch(rows))

    def _with_fields(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema, columns = batch.schema, batch.columns
        for name, (top, *inside) in self._from_structs.items():
            column = pc.struct_field(batch.column(top), inside)
            schema = schema.append(pa.field(name, column.type))
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    @property
    def have_event_time(self) -> bool:
        """Whether the rows have event times."""
        return self.event_time is not None

    @property
    def time_column(self) -> str | None:
        """The column with the event time."""
        return None if self.event_time is None else self.event_time.column

    @property
    def event_times(self) -> dict[str, EventTime | None]:
        """The event time, by the name of the input."""
        return {ONLY_INPUT: self.event_time}

    def side_columns(self, name: str, function: KeyedFunction) -> pa.Schema:
        """Return the columns of a side output that has those of the input."""
        return self.schema

    def bind(self, function: KeyedFunction) -> KeyedFunction:
        """Return a function for these rows."""
        return function.for_rows(self.schema, self.key_columns, self.time_column)

    def largest_event_times(self, operator: KeyedOperator) -> dict[str, int]:
        """Return an operator's largest event time, by the name of the input."""
        return {} if operator.largest_event_time is None else {ONLY_INPUT: operator.largest_event_time}

    def by_instance(
        self, rows: Sequence[Any], parallelism: int, max_parallelism: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (instance, rows) in the order of the rows; neighbouring rows of one instance are one batch.

        The batches have the column `KEY_GROUP_COLUMN`.

        Raises
        ------
        InputRowError
            Before anything is yielded.
        """
        return routed(self.to_batch(rows), self.key_columns, parallelism, max_parallelism)


def routed(
    batch: pa.RecordBatch, key_columns: Sequence[str], parallelism: int, max_parallelism: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (instance, rows) with the column `KEY_GROUP_COLUMN`, as `KeyedInputRows.by_instance` does."""
    groups = key_groups([batch.column(name) for name in key_columns], max_parallelism)
    schema = batch.schema.append(_KEY_GROUP_FIELD)
    batch = pa.RecordBatch.from_arrays([*batch.columns, pa.array(groups)], schema=schema)
    # Whole numbers of 64 bits: 32,768 squared is the largest product.
    owners = groups.astype(np.int64) * parallelism // max_parallelism
    changes = np.flatnonzero(np.diff(owners)) + 1
    for start, end in pairwise([0, *changes.tolist(), len(owners)]):
        if start < end:
            yield int(owners[start]), batch.slice(start, end - start)


def checked_schema(declared: object, argument: str, side: str | None = None) -> OutputSchema:
    """Return the schema that checks rows of Python values, which may be a side output's."""
    try:
        return OutputSchema(arrow_schema(declared, argument), side)
    except OutputSchemaError as error:
        raise HarnessSchemaError(argument, error.reason) from error


def _key_paths(schema: pa.Schema, key: str | Sequence[str]) -> dict[str, list[str]]:
    """Return the columns of the key by name, each with the path to it: a column, or a field of a struct."""
    keys: Any = (key,) if isinstance(key, str) else key
    if not isinstance(keys, Sequence) or not all(isinstance(name, str) for name in keys):
        raise HarnessSchemaError(
            "key",
            f"it is {key!r}; name columns, and give the rows one for what Spark would compute",
        )
    if not keys:
        raise HarnessSchemaError("key", "it names no column")
    paths: dict[str, list[str]] = {}
    for given in keys:
        path = [given] if given in schema.names else given.split(".")
        _check_is_column(schema, path[0] if len(path) > 1 else given, "key")
        type_ = schema.field(path[0]).type
        for field in path[1:]:
            index = type_.get_field_index(field) if pa.types.is_struct(type_) else -1
            if index < 0:
                raise HarnessSchemaError("key", f"{given!r} names no column and no field of a struct")
            type_ = type_.field(index).type
        name = path[-1]
        if name in paths:
            raise HarnessSchemaError("key", f"the column {name!r} is named twice")
        if len(path) > 1 and name in schema.names:
            raise HarnessSchemaError("key", f"{given!r} would be named {name!r}, as a column of the rows is")
        paths[name] = path
    if KEY_GROUP_COLUMN in schema.names:
        raise HarnessSchemaError("schema", f"the name {KEY_GROUP_COLUMN!r} is needed for the key groups")
    return paths


def _check_time_column(schema: pa.Schema, event_time: EventTime) -> None:
    name = event_time.column
    _check_is_column(schema, name, "event_time")
    if not is_event_time(schema.field(name).type):
        raise HarnessSchemaError("event_time", f"the column {name!r} has the type {schema.field(name).type}")
    if event_time.inputs is not None:
        raise HarnessSchemaError("event_time", "a harness does not tell inputs of one DataFrame apart")


def _check_is_column(schema: pa.Schema, name: object, argument: str) -> None:
    if name not in schema.names:
        columns = ", ".join(schema.names)
        hint = did_you_mean(str(name), schema.names).rstrip("?")
        raise HarnessSchemaError(argument, f"{name!r} is none of the columns {columns}.{hint}")


def _key_type(field: pa.Field) -> pa.DataType:
    try:
        key_serializer_for([field.type])
    except UnsupportedTypeError as error:
        reason = f"the column {field.name!r}: {str(error).rstrip('.')}"
        raise HarnessSchemaError("key", reason) from error
    return field.type
