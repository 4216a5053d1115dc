"""The join with a small table that every task has: ``keyed(bids, "auction").broadcast_join(items, "item")``.

The right rows are the broadcast side: each replaces the one with the same values in the columns of the join.
A left row meets the table as it is when the row comes, and need not be keyed by these columns.  So a value
that most rows have is no hot key.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.errors import InvalidJoinError
from keyedstate.joins.columns import (
    Fold,
    JoinedColumn,
    JoinType,
    check_column,
    deletion_place,
    has_null,
    joined_columns,
)
from keyedstate.joins.join_function import NULL_KEY
from keyedstate.runtime.functions.connected_inputs import ConnectedInput, ConnectedInputs
from keyedstate.runtime.functions.keyed import BroadcastContext, Context
from keyedstate.runtime.functions.vectorized import KeyedBatch, VectorizedBroadcastProcessFunction
from keyedstate.runtime.grouping import keys_of
from keyedstate.state import BroadcastState
from keyedstate.types import from_arrow_type, infer, tuple_of

T = TypeVar("T")

#: The columns of a join: names that both sides have, or the right name of each left one.
On = str | Sequence[str] | Mapping[str, str]
_TYPES = (JoinType.INNER, JoinType.LEFT, JoinType.SEMI, JoinType.ANTI)


class BroadcastJoinFunction(VectorizedBroadcastProcessFunction):
    """Joins left rows with the table of right rows; made by `keyedstate.joins.broadcast_join`."""

    def __init__(self, how: JoinType, on: Mapping[str, str], deleted: str | None) -> None:
        self._how = how
        self._on = dict(on)
        self._deleted = deleted
        self._left: ConnectedInput | None = None
        self._right: ConnectedInput | None = None

    def for_rows(
        self, schema: pa.Schema, key_columns: Sequence[str], time_column: str | None
    ) -> BroadcastJoinFunction:
        """Return the function for left rows of these columns; raises `InvalidJoinError`."""
        for name in self._on:
            check_column("the left rows", name, schema)
        bound = copy.copy(self)
        bound._left = ConnectedInput(schema, tuple(key_columns), time_column)
        return bound._checked()

    def for_broadcast(self, schema: pa.Schema) -> BroadcastJoinFunction:
        """Return the function for right rows of these columns; raises `InvalidJoinError`."""
        for name in self._on.values():
            check_column("the broadcast rows", name, schema)
        if self._deleted is not None:
            deletion_place("the broadcast rows", self._deleted, schema)
        bound = copy.copy(self)
        bound._right = ConnectedInput(schema, tuple(self._on.values()), None)
        return bound._checked()

    def _checked(self) -> BroadcastJoinFunction:
        if self._left is None or self._right is None:
            return self
        for name, other in self._on.items():
            one, two = self._left.schema.field(name).type, self._right.schema.field(other).type
            if one != two:
                raise InvalidJoinError(
                    f"the columns {name!r} and {other!r}",
                    f"the types {one} of the left and {two} of the broadcast rows differ, so their keys are "
                    "stored differently",
                    "Cast one column to the type of the other.",
                )
        return self

    def with_names(
        self, of_left: Callable[[str], str], of_right: Callable[[str], str]
    ) -> BroadcastJoinFunction:
        """Return the function with the columns of the join and of deletions under other names."""
        bound = copy.copy(self)
        bound._on = {of_left(left): of_right(right) for left, right in self._on.items()}
        bound._deleted = None if self._deleted is None else of_right(self._deleted)
        return bound

    @property
    def inputs(self) -> ConnectedInputs:
        """The columns of both sides."""
        assert self._left is not None and self._right is not None, "it was declared with both sides"
        return ConnectedInputs((self._left, self._right))

    def output_columns(self, fold: Fold) -> list[JoinedColumn]:
        """Return the columns of joined rows; raises `InvalidJoinError`."""
        return joined_columns(self.inputs, fold, self._how)

    def open(self, ctx: Context) -> None:
        # Names do not matter any more: the declared output has them in this order.
        self._columns = self.output_columns(lambda name: name)
        schema = self.inputs.second.schema
        self._rows = infer(schema)
        parts = [from_arrow_type(schema.field(name).type) for name in self._on.values()]
        key = parts[0] if len(parts) == 1 else tuple_of(*parts)
        # With other columns another table begins: the keys of this one would mean something else.
        self._state = ctx.state(BroadcastState(f"table by {', '.join(self._on.values())}", key, self._rows))
        self._table = _Table(schema)
        entries = dict(self._state.items())
        if entries:
            rows = pa.RecordBatch.from_struct_array(self._rows.to_arrow(list(entries.values())))
            # The table may have had fewer columns, or narrower ones.
            self._table.put(list(entries), rows.cast(schema))

    def process_broadcast(self, batch: pa.RecordBatch, ctx: BroadcastContext) -> None:
        """Put rows into the table, in their order; a row with a null in the key can meet none."""
        schema = self.inputs.second.schema
        rows = batch.cast(schema)
        keys = keys_of([rows.column(name) for name in self._on.values()])
        last = {key: row for row, key in enumerate(keys) if not self._is_null(key)}
        if self._deleted is not None:
            removes = rows.column(self._deleted).fill_null(False).to_pylist()
            gone = [key for key, row in last.items() if removes[row]]
            for key in gone:
                self._state.remove(key)
                del last[key]
            self._table.remove(gone)
        kept = rows.take(pa.array(list(last.values()), pa.int64()))
        self._state.put_all(dict(zip(last, self._rows.from_arrow(kept.to_struct_array()), strict=True)))
        self._table.put(list(last), kept)

    def process_batch(self, batch: KeyedBatch, ctx: Context) -> Iterable[pa.RecordBatch]:
        """Join left rows with the table as it is."""
        keys = keys_of([batch.column(name) for name in self._on])
        places = self._table.places_of(keys)
        found = places >= 0
        rows = batch.rows
        if self._how in (JoinType.INNER, JoinType.SEMI):
            ctx._dropped[NULL_KEY] += sum(map(self._is_null, keys)) if not found.all() else 0
            rows, places = rows.filter(pa.array(found)), places[found]
        elif self._how is JoinType.ANTI:
            rows = rows.filter(pa.array(~found))
        right = self._table.take(places) if self._how.of_pairs else []
        left = [rows.column(name) for name in self.inputs.first.schema.names]
        columns = [(left, right)[each.side][each.place] for each in self._columns]
        yield pa.RecordBatch.from_arrays(columns, [each.name for each in self._columns])

    def _is_null(self, key: Any) -> bool:
        return has_null(key, compound=len(self._on) > 1)


class _Table:
    """The broadcast rows by their keys, in columns; a key that is put again gets another place."""

    #: The rows without a key that are always allowed.
    few_unused = 4096

    def __init__(self, schema: pa.Schema) -> None:
        self._rows = pa.Table.from_batches([], schema)
        self._places: dict[Any, int] = {}

    def put(self, keys: Sequence[Any], rows: pa.RecordBatch) -> None:
        """Add rows, or replace those of the same keys, which are distinct."""
        if not keys:
            return
        start = self._rows.num_rows
        self._rows = pa.concat_tables([self._rows, pa.Table.from_batches([rows])])
        self._places.update(zip(keys, range(start, start + len(keys)), strict=True))
        if self._rows.num_rows > 2 * len(self._places) + self.few_unused:
            used = np.fromiter(self._places.values(), np.int64, len(self._places))
            self._rows = self._rows.take(pa.array(used))
            self._places = dict(zip(self._places, range(len(used)), strict=True))

    def remove(self, keys: Iterable[Any]) -> None:
        """Remove the rows of keys, where there are any."""
        for key in keys:
            self._places.pop(key, None)

    def places_of(self, keys: Sequence[Any]) -> npt.NDArray[np.int64]:
        """Return the place of the row of each key; -1 for a key without a row."""
        place: Callable[[Any], int | None] = self._places.get
        return np.fromiter((-1 if (at := place(key)) is None else at for key in keys), np.int64, len(keys))

    def take(self, places: npt.NDArray[np.int64]) -> list[pa.Array]:
        """Return the columns of the rows at places; nulls at -1."""
        if len(self._rows.column(0).chunks) > 1:
            self._rows = self._rows.combine_chunks()
        at = pa.array(places, mask=places < 0)
        return [column.combine_chunks() for column in self._rows.take(at).columns]


class BroadcastJoinableRows(ABC, Generic[T]):
    """Keyed rows that can be joined with a small table; `T` is the result."""

    def broadcast_join(self, rows: Any, on: On, how: str = "inner", *, deleted: str | None = None) -> T:
        """Join each row with a small table that every task has: ``broadcast_join(items, on="item")``.

        The rows of this input are the left ones.  They meet the table by other columns than their key, as it
        is when they come: they are never emitted again when it changes.  A null equals nothing.

        Parameters
        ----------
        rows : object
            The rows of the table, as `broadcast` takes them.  Each replaces the one with the same values in
            the columns of `on`.
        on : str, sequence of str, or mapping of str to str
            The columns that are equal in both rows, or the right one of each left one.
        how : {"inner", "left", "semi", "anti"}, optional
            "left" emits all left rows, with nulls where the table has no row.  "semi" emits those for which
            it has one, and "anti" those for which it has none, with the left columns alone.
        deleted : str, optional
            A boolean column of `rows`, true in a row that removes the one with its values of `on`.

        Returns
        -------
        DataFrame or ResultStream
            The key columns, the others of the left input, and those of the table without the ones of `on`.
            A name that both have gets a prefix: ``left_name``, ``right_name``.

        Raises
        ------
        InvalidJoinError
        RowKindError
            For rows that may take earlier ones back.
        BroadcastFrameError, SourceError
            As `broadcast`; other errors as `process`.
        """
        return self._broadcast_joined(broadcast_join(on, how, deleted=deleted), rows)

    @abstractmethod
    def _broadcast_joined(self, function: BroadcastJoinFunction, rows: Any) -> T:
        """Return the result of a join that does not know the columns of both sides yet."""


def broadcast_join(on: On, how: str = "inner", *, deleted: str | None = None) -> BroadcastJoinFunction:
    """Declare a join with a broadcast table without Spark; the result is a function for a test harness.

    Parameters
    ----------
    on : str, sequence of str, or mapping of str to str
        The columns that are equal in both rows, or the right one of each left one.
    how : {"inner", "left", "semi", "anti"}, optional
    deleted : str, optional
        A boolean column of the broadcast rows, true in a row that removes the one of its key.

    Returns
    -------
    BroadcastJoinFunction

    Raises
    ------
    InvalidJoinError
    """
    names = {on: on} if isinstance(on, str) else on
    if not isinstance(names, Mapping):
        names = {name: name for name in names}
    if not names or not all(isinstance(name, str) for pair in names.items() for name in pair):
        raise InvalidJoinError(f"on={on!r}", "it names no columns", "Give on='item', for instance.")
    chosen = JoinType.of(how)
    if chosen not in _TYPES:
        raise InvalidJoinError(
            f"the {how} join with a broadcast table",
            "each task has the whole table and a part of the left rows, so none knows which rows of the "
            "table have no match",
            "Give 'inner', 'left', 'semi' or 'anti'; or key both sides and connect them.",
        )
    return BroadcastJoinFunction(chosen, names, deleted)
