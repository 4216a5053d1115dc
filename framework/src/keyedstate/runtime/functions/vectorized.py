"""Vectorised process functions: whole Arrow batches in, whole Arrow batches out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.runtime.functions.keyed import BroadcastContext, Context, KeyedFunction
from keyedstate.runtime.grouping import GroupedRows, keys_of
from keyedstate.runtime.timers import TimerBatch


class KeyedBatch:
    """The rows that a vectorised function handles at once, and their keys.

    Attributes
    ----------
    rows : pyarrow.RecordBatch
        The columns of the DataFrame; the rows of one key are in their order.
    key_groups : ndarray of int32
        The key group of each row, for the bulk methods of states.
    """

    def __init__(
        self, rows: pa.RecordBatch, key_columns: Sequence[str], key_groups: npt.NDArray[np.int32]
    ) -> None:
        self.rows = rows
        self.key_groups = key_groups
        self._key_columns = key_columns

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.rows.num_rows)

    def column(self, name: str) -> pa.Array:
        """Return a column of the rows."""
        return self.rows.column(name)

    @cached_property
    def keys(self) -> list[Any]:
        """The key of each row, as ``ctx.key`` of a `KeyedProcessFunction` would be."""
        return keys_of([self.rows.column(name) for name in self._key_columns])

    @cached_property
    def groups(self) -> GroupedRows:
        """The distinct keys, and which row has which."""
        return GroupedRows([self.rows.column(name) for name in self._key_columns], self.key_groups)


class VectorizedProcessFunction(KeyedFunction):
    """Reads batches of rows of many keys, uses states by columns of keys, and gives batches of rows.

    There is no current key: states are read and written by their bulk methods (``get_many``, ``update_many``,
    ``transform_many``, ``add_many``, ``put_many``, ``clear_many`` ...), which take keys and their key groups.
    The size of batches is undefined and may differ when an epoch runs again: the state after an epoch must
    not depend on it.

    Attributes
    ----------
    batch_rows, batch_bytes : int
        Batches from Spark are joined until they have so many rows or bytes. Larger batches read and write the
        state of a key less often.
    """

    batch_rows: int = 100_000
    batch_bytes: int = 64 << 20

    def process_batch(self, batch: KeyedBatch, ctx: Context) -> Iterable[pa.RecordBatch | pa.Table] | None:
        """Handle some rows; at least one.

        Parameters
        ----------
        batch : KeyedBatch
        ctx : Context
            Its ``key`` is None. Its ``timestamp`` is the latest event time of the epoch so far; states that
            expire in event time are stamped with it.

        Returns
        -------
        iterable of pyarrow.RecordBatch or pyarrow.Table, or None
            Usually a generator. Each has the declared columns, in any order; types are cast where that
            changes no value.
        """
        raise NotImplementedError

    def on_timers(self, timers: TimerBatch, ctx: Context) -> Iterable[pa.RecordBatch | pa.Table] | None:
        """Handle due timers of one time domain, at least one; returns as `process_batch`.

        Called before the first batch of an epoch, and at its end after `end_epoch`, with the timers in the
        order of their times. A timer that is registered here and due comes in a later call. Without this
        method a function has no timers. The ``key`` of the context is None.
        """
        raise NotImplementedError

    def end_epoch(self, ctx: Context) -> Iterable[pa.RecordBatch | pa.Table] | None:
        """Finish the epoch, once after its last batch and even without any; returns as `process_batch`."""
        return None


class VectorizedBroadcastProcessFunction(VectorizedProcessFunction):
    """Reads batches of keyed rows, and batches with every row of a second, small input.

    As with `KeyedBroadcastProcessFunction`, every task runs `process_broadcast` for the rows of the broadcast
    side, before rows with keys, and only there `keyedstate.state.BroadcastState` can be written.
    """

    _has_broadcast_side = True

    def process_broadcast(
        self, batch: pa.RecordBatch, ctx: BroadcastContext
    ) -> Iterable[pa.RecordBatch | pa.Table] | None:
        """Handle some rows of the broadcast side, at least one; returns as `process_batch`.

        It may depend only on the rows and the broadcast state, or the tasks would differ.  Every task puts
        out the batches that it yields.
        """
        raise NotImplementedError
