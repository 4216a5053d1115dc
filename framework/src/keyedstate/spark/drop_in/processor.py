"""A ``StatefulProcessor`` of the user as a function of a keyed operator."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues
from pyspark.sql.types import StructType

from keyedstate.runtime.functions.groups import GroupedFunction
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.timers import TimeDomain
from keyedstate.spark.drop_in.handle import INITIALIZED, KeyedHandle
from keyedstate.spark.drop_in.row_class import row_maker

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
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        time_domain: TimeDomain | None,
        key_columns: Sequence[str],
        output: pa.Schema,
        schemas: Mapping[str, StructType],
    ) -> None:
        self._processor = processor
        self.time_domain = time_domain
        self._key_columns = list(key_columns)
        self._output = output
        self._schemas = dict(schemas)

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

    def process_group(self, rows: tuple[tuple[Any, ...], Iterator[Any]], ctx: Context) -> Iterable[Any]:
        """Call ``handleInputRows`` with the key and its rows."""
        return self._processor.handleInputRows(*rows, self._timer_values(ctx))

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


def split(
    keys: Iterable[tuple[Any, ...]], items: Iterator[Any], counts: Sequence[int]
) -> Iterator[tuple[tuple[Any, ...], Iterator[Any]]]:
    """Yield each key with its items, which follow each other for all keys."""
    for key, count in zip(keys, counts, strict=True):
        group = islice(items, count)
        yield key, group
        # A processor need not read all of its rows.
        deque(group, maxlen=0)
