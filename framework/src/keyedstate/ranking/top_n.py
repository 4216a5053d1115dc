"""The first rows of each key in an order, by columns: `top_n`.

The state of a key is the list of its first rows, without the columns of the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.aggregates import Aggregate
from keyedstate.aggregates.function import in_slices
from keyedstate.aggregates.ranking import TopRows
from keyedstate.errors import InvalidAggregateError, InvalidRankingError, StateMigrationError
from keyedstate.ranking.deduplication import RowsFunction, check_columns
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.functions.vectorized import KeyedBatch
from keyedstate.runtime.row_kinds import changes
from keyedstate.state import Ttl, ValueState
from keyedstate.types import BOOLEAN, RowSerializer, from_arrow_type, nullable, row_of
from keyedstate.types.contract.transposing import transposed

#: The state of a key's first rows.
STATE_NAME = "first-rows"
#: A state without entries, whose type names the order of these.
ORDER = "first-rows-order"


class TopN(RowsFunction):
    """Emits the first rows of each key with their rank; made by `keyedstate.ranking.top_n`."""

    def __init__(
        self,
        aggregate: Aggregate,
        rank: str,
        *,
        changed_only: bool = True,
        ttl: Ttl | None = None,
        row_kind: str | None = None,
    ) -> None:
        self._aggregate = aggregate
        self._rank = rank
        self._changed_only = changed_only
        self._ttl = ttl
        self._row_kind = row_kind

    def _bound(self, schema: pa.Schema, time_column: str | None) -> TopN:
        types = dict(zip(schema.names, schema.types, strict=True))
        for name, way_out in (
            (self._rank, "Name the column of the rank with rank=."),
            (self._row_kind, "Name the column of the row kinds with row_kind=."),
        ):
            if name in types:
                raise InvalidRankingError("top_n()", f"the rows have a column {name!r} already", way_out)
        check_columns("top_n()", self._aggregate.by, schema)
        others = [name for name in schema.names if name not in self._key_columns]
        try:
            best = self._aggregate.over(others or schema.names, str).bound(types)
        except InvalidAggregateError as error:
            raise InvalidRankingError("top_n()", error.reason, "Order by another column.") from error
        assert isinstance(best, TopRows)
        self._best = best
        self._key_types = [types[name] for name in self._key_columns]
        self._columns = schema.names
        self._ranked = schema.append(pa.field(self._rank, pa.int32(), nullable=False))
        self.output = self._ranked
        if self._row_kind is not None:
            self.output = self._ranked.append(pa.field(self._row_kind, pa.string(), nullable=False))
        #: The declaration, and the accessor once the function is opened.
        self.kept: Any = ValueState(STATE_NAME, best.type, ttl=self._ttl)
        return self

    def open(self, ctx: Context) -> None:
        order = self._best.order
        try:
            ctx._backend.get_state(ValueState(ORDER, row_of({order: BOOLEAN})))
        except StateMigrationError as error:
            if not isinstance(error.written, RowSerializer):
                raise
            (before,) = error.written.names
            raise InvalidRankingError(
                "top_n()",
                f"the order is {order}, and the restored state has the first rows by {before}",
                "Declare it as it was, or give it a new uid.",
            ) from None
        #: The first rows of keys before this epoch, and now.
        self._before: dict[Any, list[Any] | None] = {}
        self._now: dict[Any, list[Any]] = {}

    def process_batch(self, batch: KeyedBatch, ctx: Context) -> None:
        rows, best = batch.groups, self._best
        (new,) = best.reduce([batch.column(name) for name in best.columns], rows)
        places = [place for place, found in enumerate(new) if found is not None]
        keys = [rows.keys[place] for place in places]
        before, now = self._before, self._now

        def merge(some: slice, stored: list[Any]) -> list[Any]:
            merged = []
            for key, old, place in zip(keys[some], stored, places[some], strict=True):
                found = new[place] if old is None else best.both(old, new[place])
                before.setdefault(key, old)
                now[key] = found
                merged.append(found)
            return merged

        self.kept.transform_many(keys, merge, rows.key_groups[places])

    def end_epoch(self, ctx: Context) -> Iterator[pa.RecordBatch]:
        before, now = self._before, self._now
        self._before, self._now = {}, {}
        emitted: dict[Any, list[int]] = {}
        for key, rows in now.items():
            old = before[key] or []
            # Rows that stay are the same objects where the backend keeps objects.
            places = [
                place
                for place, row in enumerate(rows)
                if place >= len(old) or not (old[place] is row or old[place] == row)
            ]
            if self._row_kind is not None:
                places += range(len(rows), len(old))
            elif places and not self._changed_only:
                places = list(range(len(rows)))
            if places:
                emitted[key] = places
        if not emitted:
            return
        made = self._rows(emitted, now, before)
        if self._row_kind is not None:
            existed, exist = _are_there(emitted, before), _are_there(emitted, now)
            made = changes(self._rows(emitted, before, now), made, existed, exist, self._row_kind)
        yield from in_slices(made)

    def _rows(
        self,
        emitted: dict[Any, list[int]],
        first: Mapping[Any, list[Any] | None],
        other: Mapping[Any, list[Any] | None],
    ) -> pa.RecordBatch:
        """Return the rows of keys at some places of their first rows; where none exists, the other one."""
        found = [
            rows[place] if place < len(rows) else (other[key] or ())[place]
            for key, places in emitted.items()
            for rows in [first[key] or ()]
            for place in places
        ]
        structs = self._best.row_type.to_arrow(found)
        of_rows = pa.array(np.repeat(np.arange(len(emitted)), list(map(len, emitted.values()))))
        keys = list(emitted)
        parts = [keys] if len(self._key_types) == 1 else transposed(keys, len(self._key_types))
        by_name = {
            name: nullable(from_arrow_type(type)).to_arrow(values).cast(type).take(of_rows)
            for name, type, values in zip(self._key_columns, self._key_types, parts, strict=True)
        }
        columns = [
            by_name[name] if name in by_name else structs.field(name).cast(self._ranked.field(name).type)
            for name in self._columns
        ]
        ranks = pa.array([place + 1 for places in emitted.values() for place in places], pa.int32())
        return pa.RecordBatch.from_arrays([*columns, ranks], schema=self._ranked)


def _are_there(emitted: dict[Any, list[int]], first: Mapping[Any, list[Any] | None]) -> npt.NDArray[np.bool_]:
    """Return at which of the places there is a row."""
    there = [
        place < count
        for key, places in emitted.items()
        for count in [len(first[key] or ())]
        for place in places
    ]
    return np.array(there, np.bool_)
