"""Rows turned into columns."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any


def transposed(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """Return the values of rows by column, of which each row has `width`; raises ValueError otherwise."""
    if not {width}.issuperset(map(len, rows)):
        raise ValueError(f"a row has another number of values than {width}")
    # zip(*rows) would make an iterator for each row, which triggers the garbage collector.
    return [list(map(itemgetter(place), rows)) for place in range(width)]
