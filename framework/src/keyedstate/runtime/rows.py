"""Arrow batches as rows: one conversion per column and batch, none per value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from keyedstate.types import UnsupportedTypeError, from_arrow_type, row_type


def iterate_rows(names: Sequence[str], columns: Sequence[pa.Array]) -> Iterator[tuple[Any, ...]]:
    """Iterate over the rows of a batch; they are values of the row type that has these names."""
    lists = [column_values(column) for column in columns]
    make: Any = row_type(tuple(names))
    return map(make._make, zip(*lists, strict=True))


def column_values(column: pa.Array) -> list[Any]:
    """Return a column as Python values, null as None."""
    try:
        return from_arrow_type(column.type).from_arrow(column)
    except UnsupportedTypeError:
        # Arrow knows more types than state does; a row may carry any of them.
        values: list[Any] = column.to_pylist()
        return values
