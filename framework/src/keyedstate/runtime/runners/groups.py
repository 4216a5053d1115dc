"""Functions that handle all rows of a key in an epoch at once: `GroupedFunction`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyedstate.errors import OutputError
from keyedstate.runtime.event_time import event_time_array
from keyedstate.runtime.functions.groups import GroupedFunction
from keyedstate.runtime.group_timers import GroupTimers
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.runtime.key_runs import ROWS_AT_ONCE
from keyedstate.runtime.runners.batches import NotOneByOne, joined
from keyedstate.runtime.runners.keyed_operator import OUTPUT_BATCH_ROWS, KeyedOperator
from keyedstate.runtime.timers import USER_TIMERS, AtEnd, TimeDomain
from keyedstate.state.context import KeySequence
from keyedstate.time import TimerTarget

#: So many rows or bytes are never reached: the rows of an epoch are one batch.
_UNLIMITED = 1 << 62
#: The reason for which rows are counted as dropped.
LATE = "late"


class GroupOperator(KeyedOperator):
    """Runs a `GroupedFunction`."""

    _function: GroupedFunction
    _group_timers: GroupTimers | None = None

    def open(self) -> None:
        if self._opened:
            return
        target = self._timer_target()
        domain = self._function.time_domain
        if target is not None and domain is not None:
            service = self._timers.service(USER_TIMERS, target)
            self._group_timers = GroupTimers(
                service, self._backend.current, domain, rows_have_time=self._time_column is not None
            )
            self._function.timers = self._group_timers
        super().open()

    def end_epoch(self, at_end: AtEnd = AtEnd.EPOCH) -> Iterator[pa.RecordBatch]:
        # Spark fires no timers for the end of a bounded input.
        yield from super().end_epoch(AtEnd.EPOCH if at_end is AtEnd.INPUT else at_end)

    def _begin(self) -> Iterator[pa.RecordBatch]:
        if self._context.epoch is None:
            self._timers.clock.set_processing_time(self._backend.clock())
        # Timers wait for the rows of the epoch.
        if self._function.time_domain is TimeDomain.EVENT_TIME:
            self._backend.advance_watermark(0)
        # The watermark begins with 0, as Spark's does.
        known = self._time_column is not None and self._context.epoch is not None
        self._function.late_until = max(self.watermark_before, 0) if known else None
        yield from ()

    def _process(self, batches: Iterator[pa.RecordBatch], *, until_end: bool) -> Iterator[pa.RecordBatch]:
        kept = (self._in_time(batch) for batch in batches)
        for batch in joined((batch for batch in kept if batch.num_rows), _UNLIMITED, _UNLIMITED):
            yield from self._process_groups(batch)

    def _process_one(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        kept = self._in_time(batch)
        if kept.num_rows:
            yield from self._process_groups(kept)

    def _in_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Count the rows of a batch, and return those that are not late."""
        self._note_event_times(batch)
        self.rows_in += batch.num_rows
        late_until = self._function.late_until
        if late_until is None or self._function.time_domain is not TimeDomain.EVENT_TIME:
            return batch
        times, missing = event_time_array(batch.column(self._time_column))
        late = times <= late_until
        if missing is not None:
            late &= ~missing
        if not late.any():
            return batch
        self.rows_dropped[LATE] += int(late.sum())
        return batch.filter(pa.array(~late))

    def _process_groups(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        context, backend, current = self._context, self._backend, self._backend.current
        names = [name for name in batch.schema.names if name != self._key_group_column]
        columns = [batch.column(name) for name in self._key_columns]
        grouped = GroupedRows(columns, batch.column(self._key_group_column).to_numpy())
        ordered = pc.take(batch.select(names), pa.array(grouped.rows_by_key))
        bounds = grouped.bounds
        groups = self._function.groups(ordered, np.diff(bounds).tolist())
        process, on_record = self._function.process_group, backend.on_record
        keys, key_groups = grouped.keys, grouped.key_groups.tolist()
        start = 0
        while start < len(keys):
            end = max(start + 1, int(np.searchsorted(bounds, bounds[start] + ROWS_AT_ONCE, side="right")) - 1)
            some = KeySequence(keys[start:end], key_groups[start:end], True)
            out = _Output(self)
            backend.begin_write_behind(some)
            try:
                for current.turn, (key, current.key_group, group) in enumerate(
                    zip(some.keys, some.key_groups, groups, strict=False)
                ):
                    context.key = current.key = key
                    if on_record is not None:
                        on_record()
                    try:
                        made = iter(process(group, context))
                        full = out.fill(made)
                    except (Exception, SystemExit) as error:
                        raise self._failure("process_group", error) from error
                    if full:
                        # The caller may stop here: then no value is left in the write-behind cache.
                        backend.end_write_behind()
                        yield from out.rest(made, "process_group")
                        backend.begin_write_behind(some)
            finally:
                backend.end_write_behind()
            backend.balance_memory()
            yield from out.take()
            start = end

    def _timer_target(self) -> TimerTarget | None:
        return None if self._function.time_domain is None else NotOneByOne()

    def _fire(self, domain: TimeDomain) -> Iterator[pa.RecordBatch]:
        timers, service = self._group_timers, self._user_timers
        if timers is None or service is None or domain is not self._function.time_domain:
            return
        context, backend, current = self._context, self._backend, self._backend.current
        until = service.current_watermark
        if domain is TimeDomain.PROCESSING_TIME:
            until = service.current_processing_time
        out = _Output(self)
        with self._timers.clock.firing(until):
            for due in timers.due():
                for key, key_group in zip(due.keys, due.key_groups, strict=True):
                    context.key, current.key, current.key_group = key, key, key_group
                    if backend.on_record is not None:
                        backend.on_record()
                    try:
                        made = iter(self._function.process_timer(due.time, context))
                        full = out.fill(made)
                    except (Exception, SystemExit) as error:
                        raise self._failure("process_timer", error, due.time) from error
                    if full:
                        yield from out.rest(made, "process_timer", due.time)
                    timers.fired(due.time)
                backend.balance_memory()
        yield from out.take()


class _Output:
    """Gathers what a function puts out, until it is worth a batch."""

    def __init__(self, operator: GroupOperator) -> None:
        self._operator = operator
        self._items: list[Any] = []

    def fill(self, made: Iterator[Any]) -> bool:
        """Gather output; return whether there is enough for a batch, and maybe more to gather."""
        items = self._items
        items.extend(islice(made, OUTPUT_BATCH_ROWS - len(items)))
        return len(items) >= OUTPUT_BATCH_ROWS

    def rest(self, made: Iterator[Any], step: str, time: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield batches of what was gathered and of the rest of an output."""
        full = True
        while full:
            yield from self.take()
            try:
                full = self.fill(made)
            except (Exception, SystemExit) as error:
                raise self._operator._failure(step, error, time) from error

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield what is gathered in batches."""
        operator = self._operator
        items, self._items[:] = self._items.copy(), []
        try:
            batches = list(operator._function.batches_of(items)) if items else []
        except OutputError:
            raise
        except Exception as error:
            raise operator._failure("batches_of", error) from error
        for batch in batches:
            yield operator._tagged(batch)
