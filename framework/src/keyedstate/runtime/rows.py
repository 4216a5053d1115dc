"""Arrow batches as rows: one conversion per column and batch, none per value."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from keyedstate.types import UnsupportedTypeError, from_arrow_type


@lru_cache(maxsize=64)
def row_type(names: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """Return the class of rows with these column names.

    A named tuple; a column whose name is no Python identifier is read by position (``row[2]``) or with
    ``row.as_dict()``, which has every column under its real name.
    """
    base = namedtuple("Row", names, rename=True)  # type: ignore[misc]

    def as_dict(self: tuple[Any, ...]) -> dict[str, Any]:
        """Return the row as a dict by column name."""
        return dict(zip(names, self, strict=True))

    return type("Row", (base,), {"__slots__": (), "as_dict": as_dict})


def iterate_rows(names: Sequence[str], columns: Sequence[pa.Array]) -> Iterator[tuple[Any, ...]]:
    """Iterate over the rows of a batch."""
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
