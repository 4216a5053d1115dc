"""Spark's ``Row`` for fields that are known: the same to use, and quick to make and to read.

Spark's own class looks for a field by its name in a list, each time and in Python, and keeps that list in a
dict of each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from operator import itemgetter
from typing import Any

from pyspark.sql.types import Row


@cache  # a program has few schemas
def row_maker(names: tuple[str, ...]) -> Callable[[Iterable[Any]], Row]:
    """Return what makes a row with these fields of their values; pickled, it becomes one of Spark's own."""
    fields: dict[str, Any] = {"__fields__": list(names), "__module__": Row.__module__}
    for place, name in enumerate(names):
        # A method of a row or tuple hides the field, as in Spark; of fields of one name the first is found.
        if not hasattr(Row, name) and name not in fields:
            fields[name] = property(itemgetter(place))
    return partial(tuple.__new__, type("Row", (Row,), fields))
