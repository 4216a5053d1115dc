"""Functions that handle all rows of a key in an epoch at once, and then the timers that are due."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from keyedstate.runtime.functions.keyed import Context, KeyedFunction
from keyedstate.runtime.group_timers import GroupTimers
from keyedstate.runtime.timers import TimeDomain


class GroupedFunction(KeyedFunction):
    """Handles all rows of one key of an epoch in one call, and the timers after the rows of all keys.

    Attributes
    ----------
    time_domain : TimeDomain or None
        That of the timers; None without timers. In event time rows are dropped that are not after the
        watermark of the epoch before.
    timers : GroupTimers
        Those of the current key, from `open` on; missing without timers.
    late_until : int or None
        The watermark of the epoch before, where the rows have event times; None for a bounded input.
    """

    time_domain: TimeDomain | None = None
    timers: GroupTimers
    late_until: int | None = None

    @abstractmethod
    def groups(self, rows: pa.RecordBatch, counts: Sequence[int]) -> Iterator[Any]:
        """Yield the rows of each key in the form that `process_group` takes.

        Parameters
        ----------
        rows : pyarrow.RecordBatch
            Those of one key are consecutive and in their order.
        counts : sequence of int
            How many rows each key has.
        """

    @abstractmethod
    def process_group(self, rows: Any, ctx: Context) -> Iterable[Any]:
        """Handle the rows of the current key, and return the output."""

    @abstractmethod
    def process_timer(self, time: int, ctx: Context) -> Iterable[Any]:
        """Handle a timer of the current key, and return the output."""

    @abstractmethod
    def batches_of(self, output: Sequence[Any]) -> Iterable[pa.RecordBatch]:
        """Return items that the other methods have put out as batches of the declared columns."""
