"""Functions that handle whole batches: `VectorizedProcessFunction`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.errors import OutputError
from keyedstate.runtime.functions.keyed import BroadcastContext
from keyedstate.runtime.functions.vectorized import (
    KeyedBatch,
    VectorizedBroadcastProcessFunction,
    VectorizedProcessFunction,
)
from keyedstate.runtime.runners.keyed_operator import KeyedOperator
from keyedstate.runtime.timers import TimeDomain, TimerBatch
from keyedstate.time import DueTimers, Timer, TimerTarget

#: The least rows of a part of a batch.
PART_ROWS = 16_384


class BatchOperator(KeyedOperator):
    """Runs a `VectorizedProcessFunction`."""

    _by_columns = True
    _function: VectorizedProcessFunction

    def _process(self, batches: Iterator[pa.RecordBatch], *, until_end: bool) -> Iterator[pa.RecordBatch]:
        for batch in joined(batches, self._function.batch_rows, self._function.batch_bytes):
            yield from self._process_one(batch)

    def _process_one(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._note_event_times(batch)
        self._begin_step()
        names = [name for name in batch.schema.names if name != self._key_group_column]
        key_groups = batch.column(self._key_group_column).to_numpy()
        for rows, groups in self._parts(batch.select(names), key_groups):
            keyed = KeyedBatch(rows, self._key_columns, groups)
            yield from self._given(
                "process_batch", partial(self._function.process_batch, keyed, self._context)
            )
        self.rows_in += batch.num_rows

    def _parts(
        self, rows: pa.RecordBatch, key_groups: npt.NDArray[np.int32]
    ) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int32]]]:
        """Yield a large batch in parts of some key groups each, where entries of states are on disk.

        What comes back for one part may leave before the next one: memory has no room for all at once.
        """
        if rows.num_rows < 2 * PART_ROWS or not self._backend.has_spilled:
            yield rows, key_groups
            return
        order = np.argsort(key_groups.astype(np.uint16), kind="stable")  # so narrow, it is sorted by digits
        ordered = key_groups[order]
        start = 0
        while start < len(order):
            last = min(start + PART_ROWS, len(order)) - 1
            end = int(np.searchsorted(ordered, ordered[last], side="right"))
            yield rows.take(pa.array(order[start:end])), ordered[start:end]
            start = end

    def _end(self) -> Iterator[pa.RecordBatch]:
        self._begin_step()
        yield from self._given("end_epoch", partial(self._function.end_epoch, self._context))

    def _timer_target(self) -> TimerTarget | None:
        if type(self._function).on_timers is VectorizedProcessFunction.on_timers:
            return None
        return NotOneByOne()

    def _fire(self, domain: TimeDomain) -> Iterator[pa.RecordBatch]:
        service = self._user_timers
        if service is None:
            return
        in_event_time = domain is TimeDomain.EVENT_TIME
        due = partial(service.due_timers_together, in_event_time=in_event_time)
        with self._timers.clock.firing(
            service.current_watermark if in_event_time else service.current_processing_time
        ):
            # Again after each: an iterator that has ended does not see timers registered since.
            while batch := _timer_batch(due(), self._function.batch_rows, domain):
                self._begin_step()
                yield from self._given("on_timers", partial(self._function.on_timers, batch, self._context))

    def _begin_step(self) -> None:
        """Unset the current key, and show states the present time."""
        self._context.key = None
        self._backend.current.clear()
        self._backend.current.timestamp = self.largest_event_time
        if self._backend.on_record is not None:
            self._backend.on_record()

    def _given(self, step: str, call: Callable[[], Any]) -> Iterator[pa.RecordBatch]:
        """Call a method of the function and yield its batches in the declared schema."""
        try:
            given = call()
            if isinstance(given, (pa.RecordBatch, pa.Table)):
                raise TypeError(f"{step}() must yield its batches or return a list of them, not one batch")
            for made in () if given is None else given:
                for batch in self._outputs.main.conform(made):
                    yield self._tagged(batch)
                yield from self._take_side_rows()
            yield from self._take_side_rows()
            self._backend.balance_memory()
        except OutputError:
            raise
        except (Exception, SystemExit) as error:
            raise self._failure(step, error) from error


class BroadcastBatchOperator(BatchOperator):
    """Runs a `VectorizedBroadcastProcessFunction`."""

    _function: VectorizedBroadcastProcessFunction

    def process_broadcast(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = BroadcastContext(self._context)
        self._context.key = None
        self._backend.current.clear()
        with self._operator_states.broadcast_side():
            for batch in batches:
                if batch.num_rows:
                    step = partial(self._function.process_broadcast, batch, context)
                    yield from self._given("process_broadcast", step)


class NotOneByOne:
    """The target of timers that are never delivered one by one."""

    def on_event_time(self, timer: Timer) -> Any:
        """Never called."""

    def on_processing_time(self, timer: Timer) -> Any:
        """Never called."""


def joined(batches: Iterator[pa.RecordBatch], rows: int, size: int) -> Iterator[pa.RecordBatch]:
    """Join batches until they have at least so many rows or bytes."""
    waiting: list[pa.RecordBatch] = []
    waiting_rows = waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_rows += batch.num_rows
        waiting_bytes += batch.nbytes
        if waiting_rows >= rows or waiting_bytes >= size:
            yield _one_batch(waiting)
            waiting, waiting_rows, waiting_bytes = [], 0, 0
    if waiting:
        yield _one_batch(waiting)


def _one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    schema = batches[0].schema
    columns = [pa.concat_arrays([batch.column(number) for batch in batches]) for number in range(len(schema))]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _timer_batch(due: Iterator[DueTimers], size: int, domain: TimeDomain) -> TimerBatch | None:
    """Take timers until there are at least `size`, and return them; None if none is due."""
    keys: list[Any] = []
    key_groups: list[int] = []
    times: list[int] = []
    counts: list[int] = []
    for timers in due:
        keys += timers.keys
        key_groups += timers.key_groups
        times.append(timers.time)
        counts.append(len(timers))
        if len(keys) >= size:
            break
    if not keys:
        return None
    return TimerBatch(keys, key_groups, np.repeat(np.array(times, np.int64), counts), domain)
