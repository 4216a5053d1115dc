"""The function of ``aggregate()``: it reduces rows by columns and uses the state once per key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.aggregates.declaration import Aggregate, BoundAggregate, Part, all_aggregates
from keyedstate.aggregates.number_columns import TooLargeError
from keyedstate.aggregates.user_defined import UserDefined
from keyedstate.backend import Column, ColumnTable, LocatedEntries
from keyedstate.errors import AggregateOverflowError, InvalidAggregateError, KeyedStateError, StateValueError
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.functions.vectorized import KeyedBatch, VectorizedProcessFunction
from keyedstate.runtime.grouping import GroupedRows, canonical_column
from keyedstate.state import Ttl, ValueState
from keyedstate.types import INT64, TypeSerializer, accumulators_of, from_arrow_type, nullable

#: The state with the accumulators of all aggregates of a key.
STATE_NAME = "aggregate"
#: Rows of an output batch.
OUTPUT_ROWS = 65_536


class Aggregation(VectorizedProcessFunction):
    """Keeps accumulators per key, and yields once per epoch the results of each key that had rows.

    The types are those of the columns, and the aggregates are named as the output columns. The accumulators
    of a key live for `ttl` after its last row. Raises `InvalidAggregateError`.
    """

    # Sums are exact below twice as many rows.
    batch_rows = 1 << 20
    batch_bytes = 128 << 20

    def __init__(
        self,
        key_columns: Sequence[str],
        types: Mapping[str, pa.DataType],
        aggregates: Mapping[str, Aggregate],
        ttl: Ttl | None = None,
    ) -> None:
        self.key_columns = tuple(key_columns)
        self.key_types = tuple(types[name] for name in key_columns)
        self.aggregates = {
            name: self._bound(name, aggregate, types)
            for name, aggregate in all_aggregates(aggregates).items()
        }
        for name in self.aggregates:
            if name in key_columns:
                raise InvalidAggregateError(name, "a key column has the same name; give it another one")
        #: The accumulators that are kept; two aggregates may share one.
        self._kept: dict[str, BoundAggregate] = {bound.name: bound for bound in self._not_shown()}
        for name, bound in self.aggregates.items():
            _check_shared(name, self._kept.setdefault(bound.name, bound), bound)
        #: The places of the parts of each in the stored tuple.
        self._places: dict[str, slice] = {}
        parts: dict[str, TypeSerializer[Any]] = {}
        for bound in self._kept.values():
            self._places[bound.name] = slice(len(parts), len(parts) + len(bound.parts))
            for part, type in bound.parts.items():
                parts[f"{bound.name}.{part}" if part else bound.name] = nullable(type)
        self._nothing = (None,) * len(parts)
        #: Whether the parts may be columns of numbers, where the table supports it.
        self._by_columns = all(bound.by_columns for bound in self._kept.values())
        self._table_types = [nullable(from_arrow_type(type)).arrow_type for type in self.key_types]
        self.accumulator_type = accumulators_of(parts)
        #: The declaration, and the accessor once the function is opened.
        self.accumulators: Any = ValueState(STATE_NAME, self.accumulator_type, ttl=ttl)

    def _bound(self, name: str, aggregate: Aggregate, types: Mapping[str, pa.DataType]) -> BoundAggregate:
        """Return an aggregate of columns of these types; raises `InvalidAggregateError` with its name."""
        try:
            return self._of_rows(aggregate.bound(types))
        except InvalidAggregateError as error:
            raise InvalidAggregateError(name, error.reason) from error

    def _of_rows(self, bound: BoundAggregate) -> BoundAggregate:
        """Return the aggregate that rows need; raises `InvalidAggregateError`."""
        return bound

    def _not_shown(self) -> Sequence[BoundAggregate]:
        """Return aggregates that are kept and are no output columns."""
        return ()

    @property
    def output(self) -> pa.Schema:
        """The key columns, then the results."""
        keys = [pa.field(name, type) for name, type in zip(self.key_columns, self.key_types, strict=True)]
        results = [
            pa.field(name, bound.result_type, nullable=not bound.never_null)
            for name, bound in self.aggregates.items()
        ]
        return pa.schema([*keys, *results])

    def open(self, ctx: Context) -> None:
        #: The keys of the batches so far, and their results.
        self._touched: list[tuple[GroupedRows, list[pa.Array]]] = []

    @property
    def column_table(self) -> ColumnTable[Any] | None:
        """The table of the accumulators where it takes columns, else None."""
        return self.accumulators.column_table if self._by_columns else None

    def process_batch(self, batch: KeyedBatch, ctx: Context) -> Iterator[pa.RecordBatch] | None:
        table = self.column_table
        if table is None:
            rows = batch.groups
            parts = self.merge(rows.keys, rows.key_groups, self.reduce(batch.rows, rows))
            results = self.results(parts)
        else:
            columns = [batch.column(name) for name in self.key_columns]
            entries = table.locate(self.keys_for(columns), batch.key_groups, [self.accumulators.namespace])
            rows = GroupedRows(columns, batch.key_groups, (entries.codes, entries.first_rows))
            results = self.results_of(self.merge_columns(entries, rows, batch.rows))
        self._touched.append((rows, results))
        return None

    def keys_for(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return key columns in the types of a table of columns."""
        canonical = map(canonical_column, columns)
        return [
            column if column.type == type else column.cast(type)
            for column, type in zip(canonical, self._table_types, strict=True)
        ]

    def merge_columns(
        self, entries: LocatedEntries, rows: GroupedRows, batch: pa.RecordBatch
    ) -> list[Column]:
        """Merge rows into their entries and return the new parts.

        Raises `AggregateOverflowError` where a sum is beyond its type; no entry is changed then.
        """
        now = self.merged_columns(entries.read(), self.reduce_columns(batch, rows), rows)
        entries.write(now)
        return now

    def merged_columns(self, stored: list[Column], new: list[Column], rows: GroupedRows) -> list[Column]:
        """Return stored parts merged with those of later rows of the same keys, as `merged` does.

        Raises `AggregateOverflowError` where a sum is beyond its type.
        """
        now: list[Column] = []
        for bound in self._kept.values():
            place = self._places[bound.name]
            try:
                now += bound.merge_columns(stored[place], new[place])
            except TooLargeError as error:
                raise AggregateOverflowError(bound.name, repr(INT64), rows.keys[error.row]) from error
        return now

    def end_epoch(self, ctx: Context) -> Iterator[pa.RecordBatch]:
        touched, self._touched = self._touched, []
        if are_apart([rows for rows, _ in touched]):
            for rows, results in touched:
                yield from self._batches(rows, results)
            return
        columns = zip(*(rows.key_columns for rows, _ in touched), strict=True)
        distinct = GroupedRows(
            list(map(pa.concat_arrays, columns)), np.concatenate([rows.key_groups for rows, _ in touched])
        )
        table = self.column_table
        if table is None:
            found = self.accumulators.get_many(distinct.keys, distinct.key_groups)
            results = self.results(self.parts_of(found))
        else:
            keys = self.keys_for(distinct.key_columns)
            entries = table.locate(keys, distinct.key_groups, [self.accumulators.namespace])
            results = self.results_of(entries.read())
        yield from self._batches(distinct, results)

    def reduce(self, batch: pa.RecordBatch, rows: GroupedRows) -> list[Part]:
        """Return the parts of the accumulators of each distinct key of a batch."""
        new: list[Part] = []
        for bound, columns, some in self._inputs(batch, rows):
            new += bound.reduce(columns, some)
        return new

    def reduce_columns(self, batch: pa.RecordBatch, rows: GroupedRows) -> list[Column]:
        """Return the same parts as columns of numbers."""
        new: list[Column] = []
        for bound, columns, some in self._inputs(batch, rows):
            new += bound.reduce_columns(columns, some)
        return new

    def _inputs(
        self, batch: pa.RecordBatch, rows: GroupedRows
    ) -> Iterator[tuple[BoundAggregate, list[pa.Array], GroupedRows]]:
        """Yield the aggregates that are kept, each with its columns and keys of the rows that count."""
        chosen: dict[str, tuple[pa.Array, GroupedRows]] = {}
        for bound in self._kept.values():
            columns = [batch.column(name) for name in bound.columns]
            if bound.where is None:
                yield bound, columns, rows
                continue
            if bound.where not in chosen:
                mask = batch.column(bound.where).fill_null(False)
                chosen[bound.where] = mask, rows.where(mask.to_numpy(zero_copy_only=False))
            mask, some = chosen[bound.where]
            yield bound, [column.filter(mask) for column in columns], some

    def merge(self, keys: list[Any], key_groups: npt.NDArray[np.int32], new: list[Part]) -> list[Part]:
        """Merge parts into the state of distinct keys and return the new ones."""
        now: list[Part] = [[] for _ in new]

        def merge(some: slice, stored: list[Any]) -> Iterator[tuple[Any, ...]]:
            merged = self.merged(self.parts_of(stored), [part[some] for part in new])
            for whole, part in zip(now, merged, strict=True):
                whole += part
            return zip(*merged, strict=True)

        try:
            self.accumulators.transform_many(keys, merge, key_groups)
        except StateValueError as error:
            raise self.overflow(keys, now, error) from error
        return now

    def merged(self, stored: list[Part], new: list[Part]) -> list[Part]:
        """Return stored parts merged with those of later rows of the same keys."""
        merged: list[Part] = []
        for bound in self._kept.values():
            place = self._places[bound.name]
            merged += bound.merge(stored[place], new[place])
        return merged

    def parts_of(self, stored: list[Any]) -> list[Part]:
        """Return accumulators as columns of their parts."""
        if None in stored:
            stored = [self._nothing if one is None else one for one in stored]
        return [list(map(itemgetter(place), stored)) for place in range(len(self._nothing))]

    def overflow(self, keys: list[Any], now: list[Part], error: StateValueError) -> KeyedStateError:
        """Return the error for parts that the state has refused; the last keys may have none yet."""
        for bound in self._kept.values():
            if isinstance(bound, UserDefined):
                continue
            for part, type in zip(now[self._places[bound.name]], bound.parts.values(), strict=True):
                for key, value in zip(keys, part, strict=False):
                    if value is not None and not type.is_value(value):
                        return AggregateOverflowError(bound.name, repr(type), key)
        return error

    def _batches(self, rows: GroupedRows, results: list[pa.Array]) -> Iterator[pa.RecordBatch]:
        return in_slices(pa.RecordBatch.from_arrays([*rows.key_columns, *results], schema=self.output))

    def results_of(self, parts: list[Column]) -> list[pa.Array]:
        """Return the columns of the results of accumulators that are columns themselves."""
        return [bound.results_of(parts[self._places[bound.name]]) for bound in self.aggregates.values()]

    def results(self, parts: list[Part]) -> list[pa.Array]:
        """Return the columns of the results of accumulators."""
        return [bound.results(parts[self._places[bound.name]]) for bound in self.aggregates.values()]


def in_slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows in output batches."""
    for start in range(0, len(batch), OUTPUT_ROWS):
        yield batch.slice(start, OUTPUT_ROWS)


def are_apart(touched: Sequence[GroupedRows]) -> bool:
    """Return whether no two batches have rows of the same key group, and so none of the same key."""
    if len(touched) < 2:
        return True
    last = max(int(rows.key_groups.max()) for rows in touched)
    batches = sum(np.bincount(rows.key_groups, minlength=last + 1) > 0 for rows in touched)
    return bool(np.max(batches) == 1)


def _check_shared(name: str, kept: BoundAggregate, bound: BoundAggregate) -> None:
    """Refuse two functions of the user that would have one accumulator."""
    if kept is bound or not (isinstance(kept, UserDefined) or isinstance(bound, UserDefined)):
        return
    if getattr(kept, "function", None) is not getattr(bound, "function", None) or kept.parts != bound.parts:
        raise InvalidAggregateError(
            name,
            f"another aggregate is {bound.name} too; name one with aggregate_with(..., name=...)",
        )
