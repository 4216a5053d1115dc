"""One row of each key, the first or the last one, by columns.

The state of a key has what a later row is compared with, and never the row itself: the columns of the order,
or the event time of the first row, or that there was a row.  Where rows are in the order in which they come,
the last one needs no state.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.aggregates import Aggregation, max_by, min_by
from keyedstate.aggregates.function import OUTPUT_ROWS
from keyedstate.aggregates.ranking import BestRow, By, order_columns
from keyedstate.backend import Column, ColumnTable, LocatedEntries
from keyedstate.durations import Duration, milliseconds
from keyedstate.errors import InvalidAggregateError, InvalidRankingError, MissingTimestampError
from keyedstate.runtime.event_time import LATE, event_time_array
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.functions.vectorized import KeyedBatch, VectorizedProcessFunction
from keyedstate.runtime.grouping import GroupedRows, canonical_column
from keyedstate.runtime.timers import TimerBatch
from keyedstate.state import Ttl, ValueState
from keyedstate.types import INT64, accumulators_of, from_arrow_type, nullable
from keyedstate.types.contract.transposing import transposed

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: The state of a key's kept row.
STATE_NAME = "kept-row"
#: Before every time.
_NEVER = np.iinfo(np.int64).min // 2


class RowsFunction(VectorizedProcessFunction):
    """A function of rows whose columns it does not know before `for_rows`."""

    batch_rows = Aggregation.batch_rows
    batch_bytes = Aggregation.batch_bytes

    output: pa.Schema
    _key_columns: tuple[str, ...] = ()

    def for_rows(
        self, schema: pa.Schema, key_columns: Sequence[str], time_column: str | None
    ) -> RowsFunction:
        """Return the function for rows of these columns; raises `InvalidRankingError`."""
        bound = copy.copy(self)
        bound.output = schema
        bound._key_columns = tuple(key_columns)
        return bound._bound(schema, time_column)

    def _bound(self, schema: pa.Schema, time_column: str | None) -> RowsFunction:
        raise NotImplementedError


def check_columns(part: str, columns: Sequence[str], schema: pa.Schema) -> None:
    """Raise `InvalidRankingError` for a column that the rows do not have."""
    for column in columns:
        if column not in schema.names:
            reason = f"the rows have no column {column!r}, but {', '.join(schema.names)}"
            raise InvalidRankingError(part, reason, "Name one of these.")


class Deduplication(RowsFunction):
    """Emits the first or last row of each key; made by `keyedstate.ranking.deduplicate`."""

    def __init__(self, *, keep: str, by: By | None, within: Duration | None, ttl: Ttl | None) -> None:
        if keep not in ("first", "last"):
            raise InvalidRankingError(
                "deduplicate()", f"keep={keep!r} is no choice", "Give 'first' or 'last'."
            )
        if ttl is not None and not isinstance(ttl, Ttl):
            raise InvalidRankingError(
                "deduplicate()", f"its ttl is {ttl!r}", "Give Ttl.of('7 days') or the like."
            )
        self._last = keep == "last"
        self._within = None if within is None else milliseconds(within)
        if self._within is not None and self._within <= 0:
            raise InvalidRankingError("deduplicate()", f"within={within!r} is no time", "Give a longer one.")
        if self._within is not None and (self._last or by is not None):
            raise InvalidRankingError(
                "deduplicate()",
                "within= is for the first row in the order in which rows come",
                "Give ttl=Ttl.of(...) to forget keys.",
            )
        if ttl is not None and (within is not None or (self._last and by is None)):
            way_out = "Give one of both." if within is not None else "Leave it out: no state is kept."
            raise InvalidRankingError("deduplicate()", "ttl= has no use here", way_out)
        try:
            self._by = () if by is None else order_columns("deduplicate", by)
        except InvalidAggregateError as error:
            raise InvalidRankingError("deduplicate()", error.reason, "Name columns of the rows.") from error
        self._ttl = ttl
        self._time_column: str | None = None
        self._best: BestRow | None = None

    def _bound(self, schema: pa.Schema, time_column: str | None) -> RowsFunction:
        types = dict(zip(schema.names, schema.types, strict=True))
        parts = {"rows": nullable(INT64)}
        ttl = self._ttl
        if self._within is not None:
            self._time_column = time_column
            if time_column is None:
                ttl = Ttl.of(self._within)
            else:
                parts = {"time": nullable(INT64)}
        if self._by:
            check_columns("deduplicate()", self._by, schema)
            by = list(self._by)
            order = max_by(*by, by=by, ties="last") if self._last else min_by(*by, by=by)
            try:
                best = order.bound(types)
            except InvalidAggregateError as error:
                raise InvalidRankingError(
                    "deduplicate()", error.reason, "Order by another column."
                ) from error
            assert isinstance(best, BestRow)
            self._best = best
            parts = {f"{order.name} {name}": nullable(type) for name, type in best.parts.items()}
        if not self._last or self._by:
            #: The declaration, and the accessor once the function is opened.
            self.kept: Any = ValueState(STATE_NAME, accumulators_of(parts), ttl=ttl)
        self._nothing = (None,) * len(parts)
        self._table_types = [nullable(from_arrow_type(types[name])).arrow_type for name in self._key_columns]
        return self

    def open(self, ctx: Context) -> None:
        #: Rows that are emitted at the end of the epoch, and their key groups.
        self._chosen: list[tuple[pa.RecordBatch, npt.NDArray[np.int32]]] = []

    # -- rows ---------------------------------------------------------------------------------------------

    def process_batch(self, batch: KeyedBatch, ctx: Context) -> Iterator[pa.RecordBatch]:
        if self._time_column is not None:
            yield from self._batches(batch.rows, self._first_within(batch, ctx))
        elif self._best is not None:
            self._choose(batch, self._better_rows(batch, self._best))
        elif self._last:
            self._choose(batch, batch.groups.last_rows)
        else:
            yield from self._batches(batch.rows, self._new_rows(batch))

    def _choose(self, batch: KeyedBatch, rows: Integers) -> None:
        if len(rows):
            self._chosen.append((batch.rows.take(pa.array(rows)), batch.key_groups[rows]))

    def end_epoch(self, ctx: Context) -> Iterator[pa.RecordBatch]:
        chosen, self._chosen = self._chosen, []
        if not chosen:
            return
        rows = chosen[0][0]
        if len(chosen) > 1:
            table = pa.Table.from_batches([batch for batch, _ in chosen]).combine_chunks()
            (rows,) = table.to_batches()
            keys = [rows.column(name) for name in self._key_columns]
            by_key = GroupedRows(keys, np.concatenate([groups for _, groups in chosen]))
            # The rows of a later batch are better than those that were chosen before.
            rows = rows.take(pa.array(by_key.last_rows))
        yield from self._batches(rows, np.arange(len(rows)))

    def _batches(self, rows: pa.RecordBatch, chosen: Integers) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(chosen), OUTPUT_ROWS):
            yield rows.take(pa.array(chosen[start : start + OUTPUT_ROWS]))

    # -- state --------------------------------------------------------------------------------------------

    @property
    def _column_table(self) -> ColumnTable[Any] | None:
        return None if self._best is not None and not self._best.by_columns else self.kept.column_table

    def _keys_for(self, batch: KeyedBatch) -> tuple[list[pa.Array], list[pa.Array]]:
        """Return the key columns, and the same in the types of a table of columns."""
        columns = [batch.column(name) for name in self._key_columns]
        canonical = map(canonical_column, columns)
        cast = [
            column if column.type == type else column.cast(type)
            for column, type in zip(canonical, self._table_types, strict=True)
        ]
        return columns, cast

    def _new_rows(self, batch: KeyedBatch) -> Integers:
        """Return the first row of each key that had none before, and remember it."""
        table = self._column_table
        if table is not None:
            _, keys = self._keys_for(batch)
            entries = table.locate(keys, batch.key_groups, [self.kept.namespace])
            new = ~entries.exist
            first_rows = entries.first_rows[new]
            self._write(table, entries, keys, batch, new, [Column(np.ones(len(entries), np.int64))])
            return np.sort(first_rows)
        rows = batch.groups
        found = self.kept.get_many(rows.keys, rows.key_groups)
        places = [place for place, value in enumerate(found) if value is None]
        keys = [rows.keys[place] for place in places]
        self.kept.update_many(keys, [(1,)] * len(keys), rows.key_groups[places])
        return np.sort(rows.first_rows[places])

    def _better_rows(self, batch: KeyedBatch, best: BestRow) -> Integers:
        """Return the rows that are better than the kept ones of their keys, at most one each."""
        table = self._column_table
        if table is not None:
            columns, keys = self._keys_for(batch)
            entries = table.locate(keys, batch.key_groups, [self.kept.namespace])
            rows = GroupedRows(columns, batch.key_groups, (entries.codes, entries.first_rows))
            order = [batch.column(name) for name in best.columns]
            picked = best.picked(order, rows)
            stored, new = entries.read(), best.columns_of(order, picked)
            wins = best.wins_of_columns(stored, new)
            self._write(table, entries, keys, batch, wins, best.chosen_columns(stored, new, wins))
            return picked[wins & (picked >= 0)]
        rows = batch.groups
        order = [batch.column(name) for name in best.columns]
        picked = best.picked(order, rows)
        groups, found_rows = rows.key_groups, np.flatnonzero(picked >= 0)
        keys = [rows.keys[place] for place in found_rows.tolist()]
        parts = best.parts_of(order, picked[found_rows])
        stored_values = [
            self._nothing if value is None else value
            for value in self.kept.get_many(keys, groups[found_rows])
        ]
        kept = transposed(stored_values, len(parts))
        won = np.flatnonzero(best.wins(kept, parts))
        values = list(zip(*parts, strict=True))
        some = won.tolist()
        self.kept.update_many(
            [keys[place] for place in some], [values[place] for place in some], groups[found_rows[won]]
        )
        return picked[found_rows[won]]

    def _write(
        self,
        table: ColumnTable[Any],
        entries: LocatedEntries,
        keys: list[pa.Array],
        batch: KeyedBatch,
        chosen: Flags,
        columns: list[Column],
    ) -> None:
        """Write some of the located entries: the others have not changed, and are in no delta."""
        if chosen.all():
            entries.write(columns)
        elif chosen.any():
            rows = entries.first_rows[chosen]
            some = [key.take(pa.array(rows)) for key in keys]
            located = table.locate(some, batch.key_groups[rows], [self.kept.namespace])
            located.write([column.take(np.flatnonzero(chosen)) for column in columns])

    def _first_within(self, batch: KeyedBatch, ctx: Context) -> Integers:
        """Return the rows that are no duplicates of a row at most `within` older, in event time."""
        assert self._time_column is not None and self._within is not None, "looked at before"
        times, missing = event_time_array(batch.column(self._time_column))
        if missing is not None:
            raise MissingTimestampError("deduplicate(within=...)")
        rows = batch.groups
        stored = self.kept.get_many(rows.keys, rows.key_groups)
        kept = _times_of(stored)
        left = np.flatnonzero(times >= ctx.watermark)
        if len(left) < len(times):
            ctx._dropped[LATE] += len(times) - len(left)
        chosen: list[Integers] = []
        while len(left):
            left = left[times[left] >= kept[rows.codes[left]] + self._within]
            some, first = np.unique(rows.codes[left], return_index=True)
            # The others of a key are compared with this one in the next round.
            firsts = left[first]
            kept[some] = times[firsts]
            chosen.append(firsts)
        if not chosen:
            return np.empty(0, np.int64)
        found = np.sort(np.concatenate(chosen))
        self._remember(rows, kept, np.unique(rows.codes[found]), ctx)
        return found

    def _remember(self, rows: GroupedRows, kept: Integers, changed: Integers, ctx: Context) -> None:
        assert self._within is not None, "looked at before"
        keys = [rows.keys[place] for place in changed.tolist()]
        groups = rows.key_groups[changed]
        self.kept.update_many(keys, [(time,) for time in kept[changed].tolist()], groups)
        ctx.timer_service.register_event_time_timers(keys, kept[changed] + self._within, groups)

    def on_timers(self, timers: TimerBatch, ctx: Context) -> Iterator[pa.RecordBatch]:
        if self._within is not None:
            groups = np.asarray(timers.key_groups, np.int32)
            stored = self.kept.get_many(timers.keys, groups)
            ends = _times_of(stored) + self._within
            # A later row may have been kept since, or `within` have become longer.
            over, later = (np.flatnonzero(where) for where in (ends <= timers.times, ends > timers.times))
            self.kept.clear_many([timers.keys[place] for place in over.tolist()], groups[over])
            left = [timers.keys[place] for place in later.tolist()]
            ctx.timer_service.register_event_time_timers(left, ends[later], groups[later])
        yield from ()


def _times_of(stored: Sequence[Any]) -> Integers:
    """Return the times of kept values; `_NEVER` without one, and where an earlier run has kept no times."""
    return np.array([_NEVER if value is None or value[0] is None else value[0] for value in stored], np.int64)
