"""Processors with rows: ``transformWithState``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import pyarrow as pa
from pyspark.sql.types import Row

from keyedstate.runtime.grouping import Integers
from keyedstate.runtime.key_runs import ROWS_AT_ONCE
from keyedstate.spark.drop_in.processor import ProcessorFunction
from keyedstate.spark.drop_in.row_class import row_maker

_fields_of = attrgetter("__fields__")


class RowProcessor(ProcessorFunction):
    """For ``transformWithState``: rows in, rows out."""

    def keys(self, rows: pa.RecordBatch, starts: Integers) -> Iterator[tuple[Any, ...]]:
        first = pa.array(starts)
        columns = [_values(rows.column(name).take(first)) for name in self._key_columns]
        return zip(*columns, strict=True)

    def items(self, rows: pa.RecordBatch, counts: Integers) -> tuple[Iterator[Row], Integers]:
        return _rows(rows), counts

    def columns_of(self, output: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        """Return rows as a batch, their fields found by name, as Spark does."""
        values = _by_name(output)
        if values is None or any(pa.types.is_nested(field.type) for field in self._output):
            dicts = [row.asDict(True) for row in output]
            values = {field.name: [row.get(field.name) for row in dicts] for field in self._output}
        missing = [None] * len(output)
        columns = [pa.array(values.get(field.name, missing), field.type) for field in self._output]
        yield pa.RecordBatch.from_arrays(columns, schema=self._output)


def _by_name(output: Sequence[Any]) -> dict[str, Sequence[Any]] | None:
    """Return the values of each field; None unless all are rows of Spark with the same fields."""
    if not all(issubclass(kind, Row) for kind in set(map(type, output))):
        return None
    try:
        distinct = set(map(tuple, map(_fields_of, output)))
    except AttributeError:  # a row without names
        return None
    names = distinct.pop()
    if distinct or set(map(len, output)) != {len(names)}:
        return None
    # Of fields of one name the last counts, as in `Row.asDict`.
    return dict(zip(names, zip(*output, strict=True), strict=True))


def _rows(rows: pa.RecordBatch) -> Iterator[Row]:
    make = row_maker(tuple(rows.schema.names))
    chunks = (rows.slice(start, ROWS_AT_ONCE) for start in range(0, rows.num_rows, ROWS_AT_ONCE))
    values: Iterable[tuple[Any, ...]] = chain.from_iterable(
        zip(*map(_values, some.columns), strict=True) for some in chunks
    )
    return map(make, values)


def _values(column: pa.Array) -> list[Any]:
    plain = pa.types.is_integer(column.type) or pa.types.is_float64(column.type)
    if plain and not column.null_count:
        return column.to_numpy().tolist()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]
