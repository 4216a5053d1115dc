"""The function of ``running()``: each row with the aggregates of its key up to and including it.

Each row is reduced to accumulators of its own, by columns.  These are merged one after the other within a key
and side by side across keys: the first rows of all keys, then their second ones.  The many rows of one key
are accumulated at once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.aggregates.declaration import Aggregate, BoundAggregate, Part
from keyedstate.aggregates.function import Aggregation, in_slices
from keyedstate.aggregates.number_columns import TooLargeError
from keyedstate.backend import Column
from keyedstate.errors import AggregateOverflowError, InvalidAggregateError, StateValueError
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.functions.vectorized import KeyedBatch
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.state import Ttl
from keyedstate.tables import array_of, column_of
from keyedstate.types import INT64

#: A key with more rows than this in a batch is accumulated by itself.
ROWS_SIDE_BY_SIDE = 64


class RunningAggregation(Aggregation):
    """Yields each row with the results over the rows of its key so far, in the order in which they come.

    The accumulators are those of `Aggregation`, so that a query may change from one to the other.  Raises
    `InvalidAggregateError`.
    """

    def __init__(
        self,
        schema: pa.Schema,
        key_columns: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        ttl: Ttl | None = None,
    ) -> None:
        types = dict(zip(schema.names, schema.types, strict=True))
        super().__init__(key_columns, types, aggregates, ttl)
        for name in self.aggregates:
            if name in types:
                raise InvalidAggregateError(name, "the rows have a column of that name; give it another one")
        self._schema = schema

    @property
    def output(self) -> pa.Schema:
        """The columns of the rows, then the results."""
        results = list(super().output)[len(self.key_columns) :]
        return pa.schema([*self._schema, *results])

    def open(self, ctx: Context) -> None:
        """Do nothing: rows are put out as they come."""

    def end_epoch(self, ctx: Context) -> Iterator[pa.RecordBatch]:
        yield from ()

    def process_batch(self, batch: KeyedBatch, ctx: Context) -> Iterator[pa.RecordBatch]:
        table = self.column_table
        if table is None:
            results = self._in_lists(batch.rows, batch.groups)
        else:
            columns = [batch.column(name) for name in self.key_columns]
            entries = table.locate(self.keys_for(columns), batch.key_groups, [self.accumulators.namespace])
            rows = GroupedRows(columns, batch.key_groups, (entries.codes, entries.first_rows))
            after = self._after_each_row(batch.rows, rows, entries.read())
            entries.write([column.take(rows.last_rows) for column in after])
            results = self.results_of(after)
        arrays = [*(batch.column(name) for name in self._schema.names), *results]
        yield from in_slices(pa.RecordBatch.from_arrays(arrays, schema=self.output))

    def _after_each_row(self, batch: pa.RecordBatch, rows: GroupedRows, stored: list[Column]) -> list[Column]:
        """Return the parts of all aggregates after each row."""
        after: list[Column] = []
        for bound, columns, some in self._inputs(batch, _each_row(rows)):
            place = self._places[bound.name]
            after += self._columns_after(bound, stored[place], bound.reduce_columns(columns, some), rows)
        return after

    def _columns_after(
        self, bound: BoundAggregate, stored: list[Column], new: list[Column], rows: GroupedRows
    ) -> list[Column]:
        try:
            return columns_after_each_row(bound, stored, new, rows)
        except TooLargeError as error:
            raise AggregateOverflowError(bound.name, repr(INT64), rows.keys[error.row]) from error

    def _in_lists(self, batch: pa.RecordBatch, rows: GroupedRows) -> list[pa.Array]:
        """Return the columns of the results where the state has its accumulators as objects."""
        stored = self.parts_of(self.accumulators.get_many(rows.keys, rows.key_groups))
        last_rows = rows.last_rows
        now: list[Part] = []
        in_columns: dict[str, list[Column]] = {}
        in_lists: dict[str, list[Part]] = {}
        for bound, columns, some in self._inputs(batch, _each_row(rows)):
            of_bound = stored[self._places[bound.name]]
            if bound.by_columns:
                new = bound.reduce_columns(columns, some)
                after = self._columns_after(bound, _columns_of(bound, of_bound), new, rows)
                now += _parts_of(bound, [column.take(last_rows) for column in after])
                in_columns[bound.name] = after
            else:
                parts = parts_after_each_row(bound, of_bound, bound.reduce(columns, some), rows)
                now += [[part[row] for row in last_rows.tolist()] for part in parts]
                in_lists[bound.name] = parts
        try:
            self.accumulators.update_many(rows.keys, list(zip(*now, strict=True)), rows.key_groups)
        except StateValueError as error:
            raise self.overflow(rows.keys, now, error) from error
        return [
            bound.results_of(in_columns[bound.name])
            if bound.by_columns
            else bound.results(in_lists[bound.name])
            for bound in self.aggregates.values()
        ]


def columns_after_each_row(
    bound: BoundAggregate, stored: list[Column], new: list[Column], rows: GroupedRows
) -> list[Column]:
    """Return the parts of an aggregate after each row: those stored for its key, merged with its rows so far.

    Raises `TooLargeError`, whose row is a key's, where a whole number is beyond 64 bits.
    """
    order, bounds = rows.rows_by_key, rows.bounds
    counts = np.diff(bounds)
    now = [Column(column.values.copy(), column.there.copy()) for column in stored]
    after = [Column(np.empty_like(column.values), np.empty(len(column), np.bool_)) for column in new]
    keys = np.flatnonzero(counts <= ROWS_SIDE_BY_SIDE)
    for turn in range(int(counts[keys].max(initial=0))):
        keys = keys[counts[keys] > turn]
        at = order[bounds[keys] + turn]
        try:
            merged = bound.merge_columns(
                [column.take(keys) for column in now], [column.take(at) for column in new]
            )
        except TooLargeError as error:
            raise TooLargeError(int(keys[error.row])) from None
        for column, of_keys, of_rows in zip(merged, now, after, strict=True):
            _put(of_keys, keys, column)
            _put(of_rows, at, column)
    for key in np.flatnonzero(counts > ROWS_SIDE_BY_SIDE).tolist():
        at = order[bounds[key] : bounds[key + 1]]
        one = slice(key, key + 1)
        try:
            merged = bound.after_each(
                [column.take(one) for column in now], [column.take(at) for column in new]
            )
        except TooLargeError:
            raise TooLargeError(key) from None
        for column, of_rows in zip(merged, after, strict=True):
            _put(of_rows, at, column)
    return after


def parts_after_each_row(
    bound: BoundAggregate, stored: list[Part], new: list[Part], rows: GroupedRows
) -> list[Part]:
    """Return the same of parts that are objects."""
    codes = rows.codes.tolist()
    now = [list(part) for part in stored]
    after: list[Part] = [[None] * len(codes) for _ in new]
    order, bounds = rows.rows_by_key, rows.bounds
    counts = np.diff(bounds)
    keys = np.arange(len(rows))
    for turn in range(int(counts.max(initial=0))):
        keys = keys[counts[keys] > turn]
        at = order[bounds[keys] + turn].tolist()
        places = keys.tolist()
        merged = bound.merge(
            [[part[place] for place in places] for part in now], [[part[row] for row in at] for part in new]
        )
        for values, of_keys, of_rows in zip(merged, now, after, strict=True):
            for place, row, value in zip(places, at, values, strict=True):
                of_keys[place] = of_rows[row] = value
    return after


def _put(column: Column, places: npt.NDArray[np.int64], values: Column) -> None:
    assert column.present is not None, "made with flags"
    column.values[places] = values.values
    column.present[places] = values.there


def _each_row(rows: GroupedRows) -> GroupedRows:
    """Return the rows as if each had a key of its own."""
    each = copy.copy(rows)
    each.codes = each.first_rows = np.arange(len(rows.codes))
    for made_of_codes in ("rows_by_key", "bounds"):
        vars(each).pop(made_of_codes, None)
    return each


def _columns_of(bound: BoundAggregate, parts: list[Part]) -> list[Column]:
    types = bound.parts.values()
    return [column_of(type.to_arrow(part)) for part, type in zip(parts, types, strict=True)]


def _parts_of(bound: BoundAggregate, columns: list[Column]) -> list[Part]:
    types = bound.parts.values()
    return [
        type.from_arrow(array_of(column, type.arrow_type))
        for column, type in zip(columns, types, strict=True)
    ]
