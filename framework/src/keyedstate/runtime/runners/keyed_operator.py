"""The keyed operator: the rows of one partition in, rows out, state in between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.errors import UserFunctionError
from keyedstate.runtime.event_time import event_time_array, largest_by_input
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs
from keyedstate.runtime.functions.failures import user_function_error_of
from keyedstate.runtime.functions.keyed import Context, KeyedFunction
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.row_classes import RowClass
from keyedstate.runtime.side_outputs import MAIN, Outputs, SideRows
from keyedstate.runtime.timers import USER_TIMERS, AtEnd, KeyTimers, TimeDomain
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME
from keyedstate.state.kinds.accessor import declared_states
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.operator.list_states import declared_operator_states
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.time import EventTime, TimerService, TimerTarget

#: Output rows and bytes that are gathered before they become one Arrow batch.
OUTPUT_BATCH_ROWS = 10_000
OUTPUT_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class OperatorSpec:
    """What an operator runs with, apart from its function and its keyed state."""

    key_columns: Sequence[str]
    #: Name of the int32 column with each row's key group, which the function does not see.
    key_group_column: str
    #: Of the rows that the function yields.
    output: OutputSchema
    #: With any, batches come out as `keyedstate.runtime.side_outputs` says.
    side_outputs: Mapping[str, OutputSchema] = field(default_factory=dict)
    epoch: int | None
    #: With the operator state that the task restores.
    operator_states: OperatorStateBackend = field(default_factory=OperatorStateBackend)
    #: The number of this task, from 0, and how many there are.
    task: int = 0
    parallelism: int = 1
    #: The event time of the rows of one input.
    event_time: EventTime | None = None
    #: The inputs of a `KeyedCoProcessFunction`, with the columns of their event times.
    connected: ConnectedInputs | None = None
    #: The classes that the function names for its rows, where they were looked up on another machine.
    row_classes: Mapping[str, RowClass] | None = None


class KeyedOperator(ABC):
    """Runs a process function over the rows of one partition; `keyed_operator` makes one."""

    #: Whether the function gives batches, and no single rows.
    _by_columns = False

    def __init__(self, function: KeyedFunction, backend: KeyedStateBackend, spec: OperatorSpec) -> None:
        self._function: KeyedFunction = function
        self._backend = backend
        self._key_columns = tuple(spec.key_columns)
        self._key_group_column = spec.key_group_column
        self._outputs = Outputs(spec.output, spec.side_outputs)
        self._side_rows = SideRows(self._outputs, by_columns=self._by_columns)
        self._operator_states = spec.operator_states
        self._context = Context(
            function, backend, spec.operator_states, spec.epoch, spec.task, spec.parallelism, self._side_rows
        )
        self._timers = self._context._timers
        #: Rows of this epoch that were dropped, by reason such as ``late``.
        self.rows_dropped = self._context._dropped
        self._user_timers: TimerService | None = None
        self._opened = False
        #: Whether the timers that are due when an epoch begins have fired.
        self._began = False
        self._time_column = None if spec.event_time is None else spec.event_time.column
        self._input_column = None if spec.event_time is None else spec.event_time.inputs
        #: The rows of each connected input; empty for one input.
        self.rows_by_input: dict[str, int] = {}
        #: The same as `largest_event_time`, of each input.
        self.largest_event_times: dict[str, int] = {}
        #: Of all rows of the epoch so far, in milliseconds; None where no row had any.
        self.largest_event_time: int | None = None
        #: In milliseconds; `BEFORE_TIME` where none was known.
        self.watermark_before = BEFORE_TIME
        #: Without rows of the broadcast side.
        self.rows_in = 0
        self.rows_out = 0

    # -- differs by the kind of function --------------------------------------------------------------------

    @abstractmethod
    def _process(self, batches: Iterator[pa.RecordBatch], *, until_end: bool) -> Iterator[pa.RecordBatch]:
        """Run the function over batches that have rows; `until_end` is that of `process_rows`."""

    @abstractmethod
    def _process_one(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Run the function over one batch."""

    @abstractmethod
    def _timer_target(self) -> TimerTarget | None:
        """Return the target of the user's timers; None where the function has no method for them."""

    @abstractmethod
    def _fire(self, domain: TimeDomain) -> Iterator[pa.RecordBatch]:
        """Fire the timers of one domain that are due."""

    def _end(self) -> Iterator[pa.RecordBatch]:
        """Yield the function's output at the end of an epoch, before timers fire."""
        yield from ()

    def _end_keys(self) -> Iterator[pa.RecordBatch]:
        """Yield the function's output at the end of the epoch of each key, after timers have fired."""
        yield from ()

    def process_broadcast(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the function over every row of the broadcast side and yield its output; raises as `process`.

        `batches` has the same rows in the same order on every task. A function without a broadcast side reads
        nothing.
        """
        yield from ()

    # -- common to all --------------------------------------------------------------------------------------

    def open(self) -> None:
        """Bind the declared states and open the function; does nothing if it is open."""
        if self._opened:
            return
        for descriptor in declared_states(self._function):
            descriptor.bind(self._function, self._context.state(descriptor))
        for operator_state in declared_operator_states(self._function):
            operator_state.bind(self._function, self._context.state(operator_state))
        target = self._timer_target()
        if target is not None:
            self._user_timers = self._timers.service(USER_TIMERS, target)
            self._context._key_timers = KeyTimers(self._user_timers)
        self._opened = True
        try:
            self._function.open(self._context)
        except (Exception, SystemExit) as error:
            raise self._failure("open", error) from error

    def begin_epoch(self, epoch: int) -> None:
        """Begin another epoch; the function stays open."""
        self._context.epoch = epoch
        self._context.key = None
        self._backend.current.clear()
        self._began = False
        # A run that repeats the last micro-batch of an earlier run may have more input after it.
        self._timers.clock.event_time_over = False
        self.largest_event_time = None
        self.largest_event_times = {}
        self.rows_by_input = {}
        self.rows_in = self.rows_out = 0
        self.rows_dropped.clear()

    def set_watermark_before(self, watermark: int | None) -> None:
        """Set the watermark of the epoch before, None where none was known."""
        self.watermark_before = BEFORE_TIME if watermark is None else watermark

    def set_processing_time(self, time: int) -> None:
        """Set the processing time of the epoch's timers, in milliseconds since 1970 UTC."""
        self._timers.clock.begin_epoch(time)

    def process(
        self,
        batches: Iterator[pa.RecordBatch],
        at_end: AtEnd = AtEnd.EPOCH,
        after_rows: Iterable[pa.RecordBatch] = (),
    ) -> Iterator[pa.RecordBatch]:
        """Run the function over all rows of an epoch, end the epoch, and yield the output.

        The watermark follows from earlier epochs, so timers that are due by it fire before the first row. At
        the end those fire that `at_end` says, for instance timers that rows have registered for the past.
        `after_rows` is the output of what comes in between, such as a watermark that advances; it is read
        after the last row.

        Raises `UserFunctionError` where the function raises, and `OutputTypeError` where it yields a row that
        is not of the declared schema.
        """
        # Where all timers fire, time moves to its end before the epoch ends.
        yield from self.process_rows(batches, until_end=at_end in (AtEnd.EPOCH, AtEnd.NOTHING))
        yield from after_rows
        yield from self.end_epoch(at_end)

    def process_rows(
        self, batches: Iterable[pa.RecordBatch], *, until_end: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Run the function over some rows of an epoch, which continues, and yield its output.

        With `until_end` they are the last ones, and only timers that are due come before the epoch's end.
        Rows of one key keep their order; see `process` for errors.
        """
        yield from self._begin()
        yield from self._process((batch for batch in batches if batch.num_rows), until_end=until_end)

    def process_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Run the function over one batch and yield its output; the epoch continues."""
        yield from self._begin()
        yield from self._process_one(batch)

    def _begin(self) -> Iterator[pa.RecordBatch]:
        if not self._began:
            self._began = True
            yield from self.fire_timers()

    def end_epoch(self, at_end: AtEnd = AtEnd.EPOCH) -> Iterator[pa.RecordBatch]:
        """Yield the output of the function and timers at the end of the epoch, and end it for the state."""
        if at_end in (AtEnd.INPUT, AtEnd.DRAINED):
            self._timers.clock.event_time_over = True
        if at_end is AtEnd.INPUT:
            self._timers.clock.set_processing_time(END_OF_TIME)
        yield from self._end()
        if at_end is not AtEnd.NOTHING:
            yield from self.fire_timers()
        yield from self._end_keys()
        yield from self._take_side_rows()
        self._backend.end_epoch()

    def fire_timers(self) -> Iterator[pa.RecordBatch]:
        """Fire the due timers of event time, then of processing time, and yield their output."""
        for domain in TimeDomain:
            yield from self._fire(domain)

    def close(self) -> None:
        """Close the function; calling it again does nothing."""
        if not self._opened:
            return
        self._opened = False
        try:
            self._function.close()
        except (Exception, SystemExit) as error:
            raise self._failure("close", error) from error

    def _tagged(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return yielded rows in the form in which they leave the operator."""
        self.rows_out += rows.num_rows
        return self._outputs.tagged(MAIN, rows)

    def _take_side_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the function has put out to side outputs since the last call."""
        for batch in self._side_rows.take():
            self.rows_out += batch.num_rows
            yield batch

    def _note_event_times(self, batch: pa.RecordBatch) -> None:
        """Update the largest event times with those of a batch."""
        if self._time_column is None:
            return
        times, missing = event_time_array(batch.column(self._time_column))
        self._note_times(times, missing)
        if self._input_column is not None:
            largest = self.largest_event_times
            of_rows = pa.array(times, mask=missing)
            for name, time in largest_by_input(batch.column(self._input_column), of_rows).items():
                largest[name] = max(time, largest.get(name, time))

    def _note_times(
        self, times: npt.NDArray[np.int64], missing: npt.NDArray[np.bool_] | None, name: str | None = None
    ) -> None:
        """Update the largest event times with some, which may be those of the input `name`."""
        known = times if missing is None else times[~missing]
        if not len(known):
            return
        latest, before = int(known.max()), self.largest_event_time
        self.largest_event_time = latest if before is None else max(latest, before)
        if name is not None:
            self.largest_event_times[name] = max(latest, self.largest_event_times.get(name, latest))

    def _failure(self, step: str, error: BaseException, time: int | None = None) -> UserFunctionError:
        self._side_rows.clear()
        return user_function_error_of(self._function, step, self._context, error, time)
