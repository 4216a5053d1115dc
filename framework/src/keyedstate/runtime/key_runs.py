"""The rows of a batch for a function that takes them one by one: grouped by key, or in their order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import sub
from typing import Any

import pyarrow as pa

from keyedstate.row_path import repeated
from keyedstate.runtime.event_time import event_times
from keyedstate.runtime.grouping import GroupedRows, keys_of
from keyedstate.runtime.row_classes import RowClass, rows_from
from keyedstate.state.context import KeySequence
from keyedstate.types import from_arrow_type, infer

#: Rows of one chunk, which are Python objects at the same time. They, their output and the state that they
#: use fit into a processor's own cache: with 10,000 rows an epoch takes a sixth longer.
ROWS_AT_ONCE = 1_000


@dataclass(frozen=True)
class KeyRuns:
    """A chunk of rows as runs of consecutive rows with one key."""

    #: The key of each run.
    keys: KeySequence
    #: The number of rows of each run.
    counts: Sequence[int]
    #: The rows, without the columns of `key_values`.
    batch: pa.RecordBatch
    #: Key columns, with one object for all rows of a key.
    key_values: Mapping[str, list[Any]]
    #: The columns that a function sees.
    names: Sequence[str]
    #: The class of rows that the function names.
    row_class: RowClass | None
    #: Whether the next chunk has more rows of the last key.
    is_continued: bool = False

    def rows(self) -> Iterator[Any]:
        """Iterate over the rows as Python objects."""
        found = self.key_values
        columns = [found[name] if name in found else self.batch.column(name) for name in self.names]
        return rows_from(self.row_class, self.names, columns)

    def times(self, time_column: str | None) -> Iterator[int | None] | None:
        """Iterate over the event times of the rows; None without a time column."""
        return None if time_column is None else iter(event_times(self.batch.column(time_column)))


class RowsByKey:
    """Makes `KeyRuns` of batches; their `KeyRuns.batch` has the time column and, if `whole`, all columns."""

    def __init__(
        self,
        key_columns: Sequence[str],
        key_group_column: str,
        time_column: str | None,
        *,
        whole: bool = False,
        row_class: RowClass | None = None,
    ) -> None:
        self._key_columns = tuple(key_columns)
        self._key_group_column = key_group_column
        self._time_column = time_column
        self._whole = whole
        self._row_class = row_class

    def grouped(self, batch: pa.RecordBatch) -> Iterator[KeyRuns]:
        """Yield the rows grouped by key, those of one key in their order.

        No key comes twice in a chunk, so the state of its keys can be read before it and written after it in
        bulk, which outweighs the sorting even at one row a key. A small batch with less than two rows a key
        stays in its order.
        """
        columns = [batch.column(name) for name in self._key_columns]
        grouped = GroupedRows(columns, batch.column(self._key_group_column).to_numpy())
        if batch.num_rows < ROWS_AT_ONCE and 2 * len(grouped) > batch.num_rows:
            yield from self.in_order(batch)
            return
        names = self._shown(batch)
        # A batch needs a column, or it has no number of rows.
        whole = self._whole or len(names) == len(columns)
        shared = {
            name: values
            for name, column, values in zip(self._key_columns, columns, grouped.key_values, strict=True)
            if not whole and name != self._time_column and _is_same_in_rows(column.type)
        }
        batch = batch.select([name for name in names if name not in shared])
        batch = batch.take(pa.array(grouped.rows_by_key))
        key_groups = grouped.key_groups.tolist()
        bounds = grouped.bounds.tolist()
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            end = min(start + ROWS_AT_ONCE, batch.num_rows)
            first, after = bisect_right(bounds, start) - 1, bisect_right(bounds, end - 1)
            keys = slice(first, after)
            starts = [start, *bounds[first + 1 : after]]
            counts = list(map(sub, [*starts[1:], end], starts))
            yield KeyRuns(
                KeySequence(grouped.keys[keys], key_groups[keys], True),
                counts,
                batch.slice(start, ROWS_AT_ONCE),
                {name: repeated(values[keys], counts) for name, values in shared.items()},
                names,
                self._row_class,
                bounds[after] > end,
            )

    def in_order(self, batch: pa.RecordBatch) -> Iterator[KeyRuns]:
        """Yield the rows in their order."""
        names = self._shown(batch)
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            some = batch.slice(start, ROWS_AT_ONCE)
            keys = keys_of([some.column(name) for name in self._key_columns])
            key_groups = some.column(self._key_group_column).to_numpy().tolist()
            sequence = KeySequence(keys, key_groups, False)
            yield KeyRuns(sequence, [1] * len(keys), some.select(names), {}, names, self._row_class)

    def _shown(self, batch: pa.RecordBatch) -> list[str]:
        return [name for name in batch.schema.names if name != self._key_group_column]


def _is_same_in_rows(arrow_type: pa.DataType) -> bool:
    """Return whether all rows of a key can share its value: the key's type is the row's, and immutable."""
    of_keys = from_arrow_type(arrow_type)
    return of_keys.immutable and not of_keys.needs_canonical and of_keys == infer(arrow_type)
