"""Arrow batches as rows: one conversion per column and batch, none per value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from keyedstate.errors import UnsupportedTypeError
from keyedstate.row_path import tuples_of
from keyedstate.types import infer, row_type


def iterate_rows(names: Sequence[str], columns: Sequence[pa.Array]) -> Iterator[tuple[Any, ...]]:
    """Iterate over the rows of a batch, as values of the row type with these names."""
    return rows_of(names, [row_values(column) for column in columns])


def rows_of(names: Sequence[str], columns: Sequence[list[Any]]) -> Iterator[tuple[Any, ...]]:
    """Iterate over the rows with these values by column."""
    return tuples_of(row_type(tuple(names)), columns)


def row_values(column: pa.Array) -> list[Any]:
    """Return a column as values of the type that `infer` gives it: structs are rows, maps are dicts."""
    try:
        return infer(column.type).from_arrow(column)
    except UnsupportedTypeError:
        # Arrow knows more types than state does; a row may carry any of them.
        values: list[Any] = column.to_pylist()
        return values
