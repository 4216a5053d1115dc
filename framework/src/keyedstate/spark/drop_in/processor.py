"""A ``StatefulProcessor`` of the user as a function of a keyed operator."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues
from pyspark.sql.types import StructType

from keyedstate.runtime.event_time import event_time_array
from keyedstate.runtime.functions.groups import GroupedFunction
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.grouping import Integers
from keyedstate.runtime.timers import TimeDomain
from keyedstate.spark.drop_in.handle import INITIALIZED, KeyedHandle
from keyedstate.spark.drop_in.row_class import row_maker

#: A column with the row of the initial state; null in rows of the input.
INITIAL_COLUMN = "__keyedstate_initial_state"

#: A key, its items, and those of its initial state; None for no key of an initial state.
Group: TypeAlias = tuple[tuple[Any, ...], Iterator[Any], "Iterator[Any] | None"]

#: What Spark's timer values have where there is no time.
_NO_TIME = TimerValues(-1, -1)


class ProcessorFunction(GroupedFunction):
    """Runs a processor of the user in a task.

    Parameters
    ----------
    key_columns : sequence of str
    output : pyarrow.Schema
    schemas : mapping of str to StructType
        The schemas of states that `init` gives as text.
    event_time_column : str, optional
        The column of the output with its event time.
    computed_keys : sequence of str, optional
        Columns of the key that the processor does not get in rows.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        time_domain: TimeDomain | None,
        key_columns: Sequence[str],
        output: pa.Schema,
        schemas: Mapping[str, StructType],
        event_time_column: str | None = None,
        computed_keys: Sequence[str] = (),
    ) -> None:
        self.event_time_column = event_time_column
        self._processor = processor
        self.time_domain = time_domain
        self._key_columns = list(key_columns)
        self._output = output
        self._schemas = dict(schemas)
        self._computed_keys = list(computed_keys)

    def for_rows(
        self, schema: pa.Schema, key_columns: Sequence[str], time_column: str | None
    ) -> ProcessorFunction:
        """Return the function with the columns of the key."""
        bound = copy.copy(self)
        bound._key_columns = list(key_columns)
        return bound

    def open(self, ctx: Context) -> None:
        """Call the processor's ``init``."""
        self._key_row = row_maker(tuple(self._key_columns))
        timers = None if self.time_domain is None else self.timers
        handle = KeyedHandle(self.time_domain, self._schemas, store=_Store(ctx), timers=timers)
        self._processor.init(handle)
        handle.phase = INITIALIZED

    def close(self) -> None:
        """Call the processor's ``close``."""
        self._processor.close()

    def batches_of(self, output: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        """Return what the processor has put out as batches of the declared columns.

        Raises PySparkRuntimeError for rows that a later operator would drop as late.
        """
        for batch in self.columns_of(output):
            if self.event_time_column is not None and self.late_until is not None:
                _refuse_late(batch.column(self.event_time_column), self.late_until)
            yield batch

    @abstractmethod
    def columns_of(self, output: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        """Return what the processor has put out as batches."""

    @abstractmethod
    def keys(self, rows: pa.RecordBatch, starts: Integers) -> Iterator[tuple[Any, ...]]:
        """Yield the keys of the rows that are the first ones of a key."""

    @abstractmethod
    def items(self, rows: pa.RecordBatch, counts: Integers) -> tuple[Iterator[Any], Integers]:
        """Return rows as a processor gets them, and how many items each key has of how many rows."""

    def groups(self, rows: pa.RecordBatch, counts: Sequence[int]) -> Iterator[Group]:
        """Yield the key, the items, and the items of the initial state of each key."""
        of_rows = np.array(counts)
        starts = np.cumsum(of_rows) - of_rows
        keys = self.keys(rows, starts)
        if self._computed_keys:
            rows = rows.drop_columns(self._computed_keys)
        initial: Iterator[Any] = repeat(None)
        if INITIAL_COLUMN in rows.schema.names:
            given = rows.column(INITIAL_COLUMN)
            rows = rows.drop_columns([INITIAL_COLUMN])
            if given.null_count < len(given):
                of_state = given.is_valid()
                rows = rows.filter(pc.invert(of_state))
                of_initial = np.add.reduceat(of_state.to_numpy(zero_copy_only=False), starts, dtype=np.int64)
                of_rows = of_rows - of_initial
                state_rows = pa.RecordBatch.from_struct_array(given.filter(of_state))
                initial = split(*self.items(state_rows, of_initial))
        return zip(keys, split(*self.items(rows, of_rows)), initial, strict=False)

    def process_group(self, rows: Group, ctx: Context) -> Iterable[Any]:
        """Call ``handleInputRows`` with the key and its rows, after ``handleInitialState``."""
        key, items, initial = rows
        times = self._timer_values(ctx)
        if initial is not None:
            for item in initial:
                self._processor.handleInitialState(key, item, times)
            first = next(items, None)
            if first is None:
                return ()
            items = chain((first,), items)
        return self._processor.handleInputRows(key, items, times)

    def process_timer(self, time: int, ctx: Context) -> Iterable[Any]:
        """Call ``handleExpiredTimer``."""
        parts = ctx.key if len(self._key_columns) > 1 else (ctx.key,)
        return self._processor.handleExpiredTimer(
            key=self._key_row(parts),
            timerValues=self._timer_values(ctx),
            expiredTimerInfo=ExpiredTimerInfo(time),
        )

    def _timer_values(self, ctx: Context) -> TimerValues:
        if self.time_domain is None:
            return _NO_TIME
        # Spark's watermark begins with 0; a batch has none.
        watermark = -1 if ctx.epoch is None else max(ctx.watermark, 0)
        return TimerValues(ctx.timer_service.current_processing_time, watermark)


class _Store:
    """Finds states for a handle."""

    def __init__(self, ctx: Context) -> None:
        self.state = ctx.state
        self.clear_state = ctx._backend.clear_state


def _refuse_late(column: pa.Array, watermark: int) -> None:
    if pa.types.is_struct(column.type):
        column = column.field("end")  # of a window
    times, missing = event_time_array(column)
    late = times <= watermark
    if missing is not None:
        late &= ~missing
    if late.any():
        raise PySparkRuntimeError(
            "[EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED] Previous node emitted a row with "
            f"eventTime={times[int(late.argmax())]} which is older than current_watermark_value={watermark} "
            "This can lead to correctness issues in the stateful operators downstream in the execution "
            "pipeline. Please correct the operator logic to emit rows after current global watermark value. "
            "SQLSTATE: 42815"
        )


def split(items: Iterator[Any], counts: Integers) -> Iterator[Iterator[Any]]:
    """Yield the items of each key, which follow each other for all keys."""
    for count in counts.tolist():
        group = islice(items, count)
        yield group
        # A processor need not read all of its rows.
        deque(group, maxlen=0)
