"""The function of ``aggregate(row_kind=...)``: results say what they replace, rows may take others back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.aggregates.declaration import Aggregate, BoundAggregate, Part
from keyedstate.aggregates.function import Aggregation, are_apart, in_slices
from keyedstate.aggregates.numbers import count
from keyedstate.backend import Column, ColumnTable
from keyedstate.errors import InvalidAggregateError, StateValueError
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.functions.vectorized import KeyedBatch
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.runtime.row_kinds import changes, check_row_kind, taken_back
from keyedstate.state import Ttl

T = TypeVar("T")

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Changed:
    """The results of some keys before and after their rows, and which of the keys existed and exist."""

    rows: GroupedRows
    before: list[pa.Array]
    after: list[pa.Array]
    existed: Flags
    exist: Flags


class ChangingAggregation(Aggregation):
    """An aggregation whose results have row kinds, so that other operators and sinks see what they replace.

    An epoch emits for each key how its results have changed since the epoch before: ``+I`` for a new key, a
    pair of ``-U`` and ``+U`` where they differ, ``-D`` where all rows of the key were taken back.

    Parameters
    ----------
    key_columns, types, aggregates, ttl
        As for `Aggregation`.
    row_kind : str
        The column of the results' row kinds.
    read : str, optional
        The column of the rows' own row kinds: ``-U`` and ``-D`` take a row back.  None where rows are only
        added.

    Raises
    ------
    InvalidAggregateError
        Also for an aggregate that cannot take a row back, if rows may do so.
    RowKindError
    """

    def __init__(
        self,
        key_columns: Sequence[str],
        types: Mapping[str, pa.DataType],
        aggregates: Mapping[str, Aggregate],
        ttl: Ttl | None,
        row_kind: str,
        read: str | None,
    ) -> None:
        self._row_kind = row_kind
        self._read = read
        if read is not None:
            check_row_kind(read, {name: str(type) for name, type in types.items()})
        super().__init__(key_columns, types, aggregates, ttl)
        if type(row_kind) is not str or not row_kind:
            raise InvalidAggregateError(
                None, f"row_kind={row_kind!r} is no name; name the column of row kinds"
            )
        for taken, what in ((self.key_columns, "a key column"), (self.aggregates, "an aggregate")):
            if row_kind in taken:
                raise InvalidAggregateError(row_kind, f"{what} is named as the row kinds; rename one of them")

    def _of_rows(self, bound: BoundAggregate) -> BoundAggregate:
        if self._read is None:
            return bound
        changing = bound.of_changes()
        changing.where = bound.where
        return changing

    def _not_shown(self) -> Sequence[BoundAggregate]:
        """Return the number of a key's rows where some may be taken back: without any it has no results.

        State without it is of rows that were only added, and is left out: its sums do not count their values.
        """
        if self._read is None:
            return ()
        rows = count().bound({})
        rows.name = "rows(*)"
        return (rows,)

    @property
    def output(self) -> pa.Schema:
        """The key columns, the results, and the row kinds."""
        return super().output.append(pa.field(self._row_kind, pa.string(), nullable=False))

    def open(self, ctx: Context) -> None:
        self._changed: list[_Changed] = []

    # -- rows -----------------------------------------------------------------------------------------------

    def process_batch(self, batch: KeyedBatch, ctx: Context) -> None:
        table = self.column_table
        self._changed.append(self._in_objects(batch) if table is None else self._in_columns(batch, table))

    def _in_objects(self, batch: KeyedBatch) -> _Changed:
        rows = batch.groups
        stored = self.accumulators.get_many(rows.keys, rows.key_groups)
        if self._read is not None:
            stored = [None if one is None or one[0] is None else one for one in stored]
        existed = np.fromiter((one is not None for one in stored), np.bool_, len(rows))
        before = self.parts_of(stored)
        new = self._net(batch.rows, rows, existed, self.reduce, lambda bound, *parts: bound.without(*parts))
        after = self.merged(before, new)
        exist = self._exist(rows, after[0])
        self._store(rows, after, exist)
        # A user's function has no result without rows.
        places = np.flatnonzero(existed).tolist()
        of_these = pa.array(np.cumsum(existed) - 1, mask=~existed)
        results = self.results([[part[place] for place in places] for part in before])
        return _Changed(rows, [each.take(of_these) for each in results], self.results(after), existed, exist)

    def _in_columns(self, batch: KeyedBatch, table: ColumnTable[Any]) -> _Changed:
        columns = [batch.column(name) for name in self.key_columns]
        keys, namespaces = self.keys_for(columns), [self.accumulators.namespace]
        entries = table.locate(keys, batch.key_groups, namespaces)
        rows = GroupedRows(columns, batch.key_groups, (entries.codes, entries.first_rows))
        existed, old = entries.exist.copy(), entries.read()
        if self._read is not None:
            existed &= old[0].there
            old = [Column(part.values, part.there & existed) for part in old]
        new = self._net(
            batch.rows,
            rows,
            existed,
            self.reduce_columns,
            lambda bound, *parts: bound.without_columns(*parts),
        )
        now = self.merged_columns(old, new, rows)
        entries.write(now)
        exist = self._exist(rows, now[0].values)
        if not exist.all():
            gone = pa.array(rows.first_rows[~exist])
            groups = rows.key_groups[~exist]
            table.locate([key.take(gone) for key in keys], groups, namespaces).remove()
        return _Changed(rows, self.results_of(old), self.results_of(now), existed, exist)

    def _net(
        self,
        batch: pa.RecordBatch,
        rows: GroupedRows,
        existed: Flags,
        reduce: Callable[[pa.RecordBatch, GroupedRows], list[T]],
        without: Callable[[BoundAggregate, list[T], list[T]], list[T]],
    ) -> list[T]:
        """Return the parts of the rows that are added, less those of the rows that are taken back."""
        back = None if self._read is None else taken_back(self._read, batch.column(self._read))
        if back is None or not back.any():
            return reduce(batch, rows)
        added, taken = (
            reduce(batch.filter(pa.array(which)), rows.where(which))
            for which in (~back, back & _can_be_taken_back(back, rows.codes, existed))
        )
        parts: list[T] = []
        for bound in self._kept.values():
            place = self._places[bound.name]
            parts += without(bound, added[place], taken[place])
        return parts

    def _exist(self, rows: GroupedRows, counts: Sequence[int] | npt.NDArray[Any]) -> Flags:
        """Return which keys have rows, by the first part of accumulators where rows are taken back."""
        return np.ones(len(rows), np.bool_) if self._read is None else np.asarray(counts) > 0

    def _store(self, rows: GroupedRows, parts: list[Part], exist: Flags) -> None:
        values = list(zip(*parts, strict=True))
        keys, groups = rows.keys, rows.key_groups
        gone = np.flatnonzero(~exist).tolist()
        some = np.flatnonzero(exist).tolist() if gone else range(len(rows))
        try:
            self.accumulators.update_many(
                [keys[place] for place in some], [values[place] for place in some], groups[exist]
            )
        except StateValueError as error:
            raise self.overflow(keys, parts, error) from error
        self.accumulators.clear_many([keys[place] for place in gone], groups[~exist])

    def end_epoch(self, ctx: Context) -> Iterator[pa.RecordBatch]:
        changed, self._changed = self._changed, []
        if not are_apart([each.rows for each in changed]):
            changed = [_combined(changed)]
        for each in changed:
            keys = each.rows.key_columns
            schema = super().output
            before, after = (
                pa.RecordBatch.from_arrays([*keys, *results], schema=schema)
                for results in (each.before, each.after)
            )
            yield from in_slices(
                changes(before, after, each.existed, each.exist, self._row_kind, keys=len(keys))
            )


def _can_be_taken_back(back: Flags, codes: npt.NDArray[np.int64], existed: Flags) -> Flags:
    """Return which rows of a batch have one of their key before them, as Flink leaves out the others.

    There are others where the state of their key has expired.
    """
    has_row = np.ones(len(back), np.bool_)
    of_unknown = ~existed[codes]
    if not (back & of_unknown).any():
        return has_row
    counts = dict.fromkeys(np.flatnonzero(~existed).tolist(), 0)
    for row in np.flatnonzero(of_unknown).tolist():
        key = int(codes[row])
        if not back[row]:
            counts[key] += 1
        elif counts[key]:
            counts[key] -= 1
        else:
            has_row[row] = False
    return has_row


def aggregation(
    key_columns: Sequence[str],
    types: Mapping[str, pa.DataType],
    aggregates: Mapping[str, Aggregate],
    ttl: Ttl | None,
    row_kinds: tuple[str | None, str | None],
) -> Aggregation:
    """Return the function of an ``aggregate()``; raises as `Aggregation` and `ChangingAggregation`.

    `row_kinds` are the columns of the row kinds of the rows, and of the results, where they have some.
    """
    read, shown = row_kinds
    if read is None and shown is None:
        return Aggregation(key_columns, types, aggregates, ttl)
    # Rows with row kinds have results with them, by default under the same name.
    row_kind = read if shown is None else shown
    assert row_kind is not None, "one of both is given"
    return ChangingAggregation(key_columns, types, aggregates, ttl, row_kind, read)


def _combined(changed: Sequence[_Changed]) -> _Changed:
    """Return the changes of several batches as one for each key: from its first rows to its last ones."""
    columns = zip(*(each.rows.key_columns for each in changed), strict=True)
    rows = GroupedRows(
        list(map(pa.concat_arrays, columns)), np.concatenate([each.rows.key_groups for each in changed])
    )
    last = rows.last_rows
    return _Changed(
        rows,
        [pa.concat_arrays(parts).take(pa.array(rows.first_rows)) for parts in _each(changed, "before")],
        [pa.concat_arrays(parts).take(pa.array(last)) for parts in _each(changed, "after")],
        np.concatenate([each.existed for each in changed])[rows.first_rows],
        np.concatenate([each.exist for each in changed])[last],
    )


def _each(changed: Sequence[_Changed], side: str) -> Iterator[tuple[pa.Array, ...]]:
    return zip(*(getattr(each, side) for each in changed), strict=True)
