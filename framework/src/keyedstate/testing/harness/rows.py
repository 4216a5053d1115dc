"""Rows that a test gives, as the Arrow batches that Spark would hand over, each row with its key group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from keyedstate.errors import did_you_mean
from keyedstate.murmur3 import key_groups
from keyedstate.runtime import key_serializer_for
from keyedstate.runtime.output import OutputRowError, OutputSchema, OutputSchemaError, OutputTypeError
from keyedstate.testing.harness.errors import HarnessSchemaError, InputRowError
from keyedstate.types import UnsupportedTypeError

#: The column that carries the key group, by the name that it has in a Spark job.
KEY_GROUP_COLUMN = "__keyedstate_key_group"
_KEY_GROUP_FIELD = pa.field(KEY_GROUP_COLUMN, pa.int32(), nullable=False)


class InputRows:
    """The columns of the rows, and those of them that make the key.

    Parameters
    ----------
    schema : pyarrow.Schema
    key : str or sequence of str

    Attributes
    ----------
    key_columns : tuple of str
    key_serializer : TypeSerializer

    Raises
    ------
    HarnessSchemaError
    """

    def __init__(self, schema: pa.Schema, key: str | Sequence[str]) -> None:
        self._checked = checked_schema(schema, "schema")
        self._schema = schema.append(_KEY_GROUP_FIELD)
        self.key_columns = _key_columns(schema, key)
        types = [_key_type(schema.field(name)) for name in self.key_columns]
        self.key_serializer = key_serializer_for(types)

    def to_batch(self, rows: Sequence[Any], max_parallelism: int) -> pa.RecordBatch:
        """Return rows as one batch with the column `KEY_GROUP_COLUMN`.

        Raises
        ------
        InputRowError
        """
        columns = self._checked.schema.names
        failed = 0

        def note(row: int) -> None:
            nonlocal failed
            failed = row

        try:
            batch = self._checked.to_batch(rows, note)
        except OutputRowError as error:
            raise InputRowError(failed, None, error.reason, columns) from None
        except OutputTypeError as error:
            detail = f" ({error.reason})" if error.reason else ""
            reason = f"has {error.given} in the column {error.column!r}, which takes {error.expected}{detail}"
            raise InputRowError(failed, error.column, reason, columns) from None
        groups = key_groups([batch.column(name) for name in self.key_columns], max_parallelism)
        return pa.RecordBatch.from_arrays([*batch.columns, pa.array(groups)], schema=self._schema)


def by_instance(
    batch: pa.RecordBatch, parallelism: int, max_parallelism: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (instance, rows) in the order of the rows: neighbours of one instance stay one batch."""
    # Whole numbers of 64 bits: 32,768 squared is the largest product.
    groups = batch.column(KEY_GROUP_COLUMN).to_numpy().astype(np.int64)
    owners = groups * parallelism // max_parallelism
    changes = np.flatnonzero(np.diff(owners)) + 1
    bounds = [0, *changes.tolist(), len(owners)]
    for start, end in pairwise(bounds):
        if start < end:
            yield int(owners[start]), batch.slice(start, end - start)


def checked_schema(schema: pa.Schema, argument: str) -> OutputSchema:
    """Return what checks rows of Python values against a schema."""
    try:
        return OutputSchema(schema)
    except OutputSchemaError as error:
        raise HarnessSchemaError(argument, error.reason) from error


def _key_columns(schema: pa.Schema, key: str | Sequence[str]) -> tuple[str, ...]:
    names = (key,) if isinstance(key, str) else tuple(key)
    if not names:
        raise HarnessSchemaError("key", "it names no column")
    for name in names:
        if name not in schema.names:
            columns = ", ".join(schema.names)
            hint = did_you_mean(str(name), schema.names).rstrip("?")
            raise HarnessSchemaError("key", f"{name!r} is none of the columns {columns}.{hint}")
        if names.count(name) > 1:
            raise HarnessSchemaError("key", f"the column {name!r} is named twice")
    if KEY_GROUP_COLUMN in schema.names:
        raise HarnessSchemaError("schema", f"the name {KEY_GROUP_COLUMN!r} is needed for the key groups")
    return names


def _key_type(field: pa.Field) -> pa.DataType:
    try:
        key_serializer_for([field.type])
    except UnsupportedTypeError as error:
        reason = f"the column {field.name!r}: {str(error).rstrip('.')}"
        raise HarnessSchemaError("key", reason) from error
    return field.type
