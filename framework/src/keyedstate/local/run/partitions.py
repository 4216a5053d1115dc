"""The partition of an operator that keeps no state: as a task over a batch DataFrame runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import pyarrow as pa

from keyedstate.epoch.partition_plan import PartitionPlan
from keyedstate.runtime.timers import AtEnd


class BoundedPartition:
    """The state and the function of one partition over all its rows; a `Partition` without epochs."""

    #: As that of a `Partition`; none is known.
    watermark: int | None = None

    def __init__(self, plan: PartitionPlan, number: int) -> None:
        with contextlib.ExitStack() as opened:
            keyed = opened.enter_context(contextlib.closing(plan.open_backend(plan.key_groups(number))))
            states = opened.enter_context(contextlib.closing(plan.operator_states()))
            self._operator = plan.operator(keyed, states, number, None)
            opened.callback(self._operator.close)
            self._closing = opened.pop_all()

    def process_broadcast(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the function over rows of the broadcast side."""
        self._operator.open()
        yield from self._operator.process_broadcast(batches)

    def process(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the function over some keyed rows."""
        self._operator.open()
        yield from self._operator.process_rows(batches)

    def process_rows_in_flight(self) -> Iterator[pa.RecordBatch]:
        """Do nothing: there is no checkpoint."""
        yield from ()

    def advance(self, watermark: int | None) -> Iterator[pa.RecordBatch]:
        """Do nothing: time stands still until the input is over."""
        yield from ()

    def end(self, at_end: AtEnd) -> Iterator[pa.RecordBatch]:
        """Fire all timers and yield the last output."""
        self._operator.open()
        yield from self._operator.end_epoch(at_end)

    def close(self) -> None:
        """Close the function and release the state; calling it again does nothing."""
        with self._closing:
            pass
