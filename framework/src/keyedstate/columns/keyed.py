"""The columns of rows that have a key, and perhaps an event time; and the key groups of such rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyedstate.errors import EventTimeError, KeyColumnError, UnsupportedTypeError, did_you_mean
from keyedstate.keygroups import KEY_GROUP_COLUMN
from keyedstate.murmur3 import key_groups
from keyedstate.runtime.event_time import is_event_time
from keyedstate.runtime.functions.connected_inputs import ConnectedInput
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.runtime.row_kinds import check_row_kind
from keyedstate.time import EventTime
from keyedstate.types import TypeSerializer

_KEY_GROUP_FIELD = pa.field(KEY_GROUP_COLUMN, pa.int32(), nullable=False)


class KeyedColumns:
    """The columns of rows, some of which make the key.

    Parameters
    ----------
    schema : pyarrow.Schema
    key : str or sequence of str
        Columns, or fields of structs as ``"place.city"``, which become columns, ``city``, as on Spark.
    event_time : EventTime or None
    row_kind : str, optional
        The column of row kinds, where rows may take earlier ones back.

    Attributes
    ----------
    given_schema : pyarrow.Schema
    schema : pyarrow.Schema
        The given columns, and the fields of structs that are parts of the key.
    key_columns : tuple of str
    key_types : list of pyarrow.DataType
    event_time : EventTime or None
    row_kind : str or None

    Raises
    ------
    KeyColumnError, EventTimeError, RowKindError
    """

    def __init__(
        self,
        schema: pa.Schema,
        key: str | Sequence[str],
        event_time: EventTime | None,
        row_kind: str | None = None,
    ) -> None:
        self.given_schema = schema
        paths = _key_paths(schema, key)
        self.key_columns = tuple(paths)
        self._from_structs = {name: path for name, path in paths.items() if len(path) > 1}
        nothing = [pa.nulls(0, field.type) for field in schema]
        self.schema = self.with_key_columns(pa.RecordBatch.from_arrays(nothing, schema=schema)).schema
        self.event_time = event_time
        if event_time is not None:
            _check_time_column(self.schema, event_time)
        self.row_kind = row_kind
        if row_kind is not None:
            check_row_kind(row_kind, {field.name: str(field.type) for field in self.schema})
        self.key_types = [_key_type(self.schema.field(name)) for name in self.key_columns]

    @property
    def key_serializer(self) -> TypeSerializer[Any]:
        """The type of the key."""
        return key_serializer_for(self.key_types)

    @property
    def time_column(self) -> str | None:
        """The column with the event time."""
        return None if self.event_time is None else self.event_time.column

    @property
    def as_connected(self) -> ConnectedInput:
        """These columns as one of several inputs."""
        return ConnectedInput(self.schema, self.key_columns, self.time_column, self.row_kind)

    def with_key_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with a column for each part of the key."""
        schema, columns = batch.schema, batch.columns
        for name, (top, *inside) in self._from_structs.items():
            column = pc.struct_field(batch.column(top), inside)
            schema = schema.append(pa.field(name, column.type))
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def with_key_groups(
    batch: pa.RecordBatch, key_columns: Sequence[str], max_parallelism: int
) -> pa.RecordBatch:
    """Return rows with the column `KEY_GROUP_COLUMN`: Spark's hash of the key modulo the key groups."""
    groups = key_groups([batch.column(name) for name in key_columns], max_parallelism)
    schema = batch.schema.append(_KEY_GROUP_FIELD)
    return pa.RecordBatch.from_arrays([*batch.columns, pa.array(groups)], schema=schema)


def routed(
    batch: pa.RecordBatch, key_columns: Sequence[str], parallelism: int, max_parallelism: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (task, rows) in the order of the rows; neighbouring rows of one task are one batch.

    The batches have the column `KEY_GROUP_COLUMN`.
    """
    batch = with_key_groups(batch, key_columns, max_parallelism)
    groups = batch.column(KEY_GROUP_COLUMN).to_numpy()
    # Whole numbers of 64 bits: 32,768 squared is the largest product.
    owners = groups.astype(np.int64) * parallelism // max_parallelism
    changes = np.flatnonzero(np.diff(owners)) + 1
    for start, end in pairwise([0, *changes.tolist(), len(owners)]):
        if start < end:
            yield int(owners[start]), batch.slice(start, end - start)


def check_time_column(schema: pa.Schema, name: str) -> None:
    """Refuse a column that is missing or has no times; raises `EventTimeError`."""
    if name not in schema.names:
        raise EventTimeError(name, _unknown(schema, name))
    type_ = schema.field(name).type
    if not is_event_time(type_):
        raise EventTimeError(name, f"it has the type {type_}; make a timestamp of it")


def _check_time_column(schema: pa.Schema, event_time: EventTime) -> None:
    check_time_column(schema, event_time.column)
    if event_time.inputs is None:
        return
    if event_time.inputs not in schema.names:
        raise EventTimeError(event_time.inputs, _unknown(schema, event_time.inputs))
    type_ = schema.field(event_time.inputs).type
    if not (pa.types.is_string(type_) or pa.types.is_integer(type_)):
        raise EventTimeError(
            event_time.inputs, f"it has the type {type_}; text or whole numbers distinguish inputs"
        )


def _key_paths(schema: pa.Schema, key: str | Sequence[str]) -> dict[str, list[str]]:
    """Return the columns of the key by name, each with the path to it: a column, or a field of a struct."""
    keys: Any = (key,) if isinstance(key, str) else key
    if not isinstance(keys, Sequence) or not all(isinstance(name, str) for name in keys):
        raise KeyColumnError(
            None, f"it is {key!r}; name columns, and give the rows one for what Spark would compute"
        )
    if not keys:
        raise KeyColumnError(None, "it names no column")
    paths: dict[str, list[str]] = {}
    for given in keys:
        path = [given] if given in schema.names else given.split(".")
        top = path[0] if len(path) > 1 else given
        if top not in schema.names:
            raise KeyColumnError(given, _unknown(schema, top))
        type_ = schema.field(path[0]).type
        for field in path[1:]:
            index = type_.get_field_index(field) if pa.types.is_struct(type_) else -1
            if index < 0:
                raise KeyColumnError(given, f"{given!r} names no column and no field of a struct")
            type_ = type_.field(index).type
        name = path[-1]
        if name in paths:
            raise KeyColumnError(name, f"the column {name!r} is named twice")
        if len(path) > 1 and name in schema.names:
            raise KeyColumnError(given, f"{given!r} would be named {name!r}, as a column of the rows is")
        paths[name] = path
    if KEY_GROUP_COLUMN in schema.names:
        raise KeyColumnError(
            KEY_GROUP_COLUMN, f"the name {KEY_GROUP_COLUMN!r} is needed for the key groups; rename the column"
        )
    return paths


def _unknown(schema: pa.Schema, name: str) -> str:
    columns = ", ".join(schema.names)
    hint = did_you_mean(name, schema.names).rstrip("?")
    return f"{name!r} is none of the columns {columns}.{hint}"


def _key_type(field: pa.Field) -> pa.DataType:
    try:
        key_serializer_for([field.type])
    except UnsupportedTypeError as error:
        reason = f"the column {field.name!r}: {str(error).rstrip('.')}"
        raise KeyColumnError(field.name, reason) from error
    return field.type
