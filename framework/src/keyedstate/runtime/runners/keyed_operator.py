"""The keyed operator: the rows of one partition in, rows out, state in between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.errors import UserFunctionError
from keyedstate.runtime.event_time import event_time_array, largest_by_input
from keyedstate.runtime.failures import user_function_error_of
from keyedstate.runtime.function import Context, KeyedFunction
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.side_outputs import MAIN, Outputs, SideRows
from keyedstate.runtime.timers import USER_TIMERS, AtEnd, KeyTimers, TimeDomain
from keyedstate.state.clock import END_OF_TIME
from keyedstate.state.kinds.accessor import declared_states
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.operator.list_states import declared_operator_states
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.time import EventTime, TimerService, TimerTarget

#: Output rows and bytes that are gathered before they become one Arrow batch.
OUTPUT_BATCH_ROWS = 10_000
OUTPUT_BYTES = 4 << 20


class KeyedOperator(ABC):
    """Runs a process function over the rows of one partition; made by `keyed_operator`.

    There is a subclass for each kind of function.

    Parameters
    ----------
    function : KeyedFunction
    backend : KeyedStateBackend
    key_columns : sequence of str
    key_group_column : str
    output : OutputSchema
    side_outputs : mapping of str to OutputSchema
    epoch : int or None
    operator_states : OperatorStateBackend
    task, parallelism : int
    event_time : EventTime or None

    Attributes
    ----------
    rows_in : int
        Rows of the broadcast side are not counted.
    rows_by_input : dict of str to int
        Those of each of two connected inputs; empty where there is one.
    rows_out : int
    rows_dropped : Counter of str
        Of the rows of this epoch, by why; such as ``late``.
    largest_event_time : int or None
        Of all rows so far, in milliseconds; None where no row had any.
    largest_event_times : dict of str to int
        The same of each input.
    """

    #: Whether the function gives batches, and no single rows.
    _by_columns = False

    def __init__(
        self,
        function: KeyedFunction,
        backend: KeyedStateBackend,
        *,
        key_columns: Sequence[str],
        key_group_column: str,
        output: OutputSchema,
        side_outputs: Mapping[str, OutputSchema],
        epoch: int | None,
        operator_states: OperatorStateBackend,
        task: int,
        parallelism: int,
        event_time: EventTime | None,
    ) -> None:
        self._function: KeyedFunction = function
        self._backend = backend
        self._key_columns = tuple(key_columns)
        self._key_group_column = key_group_column
        self._outputs = Outputs(output, side_outputs)
        self._side_rows = SideRows(self._outputs, by_columns=self._by_columns)
        self._operator_states = operator_states
        self._context = Context(function, backend, operator_states, epoch, task, parallelism, self._side_rows)
        self._timers = self._context._timers
        self.rows_dropped = self._context._dropped
        self._user_timers: TimerService | None = None
        self._opened = False
        #: Whether the timers that are due when an epoch begins have fired.
        self._began = False
        self._time_column = None if event_time is None else event_time.column
        self._input_column = None if event_time is None else event_time.inputs
        self.rows_by_input: dict[str, int] = {}
        self.largest_event_times: dict[str, int] = {}
        self.largest_event_time: int | None = None
        self.rows_in = 0
        self.rows_out = 0

    # -- what depends on the kind of function ---------------------------------------------------------------

    @abstractmethod
    def _process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the function over batches that have rows."""

    @abstractmethod
    def _process_one(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Run the function over one batch."""

    @abstractmethod
    def _timer_target(self) -> TimerTarget | None:
        """Return what is called with the user's timers; None where the function has no method for them."""

    @abstractmethod
    def _fire(self, domain: TimeDomain) -> Iterator[pa.RecordBatch]:
        """Fire the timers of one domain that are due."""

    def _end(self) -> Iterator[pa.RecordBatch]:
        """Yield what the function gives at the end of an epoch, before timers fire."""
        yield from ()

    def process_broadcast(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the function over every row of the broadcast side and yield its output.

        A function without a broadcast side reads nothing.

        Parameters
        ----------
        batches : iterable of pyarrow.RecordBatch
            The same rows in the same order on every task; with the columns that the function sees.

        Raises
        ------
        UserFunctionError, OutputTypeError
            As `process`.
        """
        yield from ()

    # -- what all have in common ----------------------------------------------------------------------------

    def open(self) -> None:
        """Bind the declared states and open the function; one that is open stays as it is."""
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
        """Continue with another epoch, as if the operator had been made for it; the function stays open."""
        self._context.epoch = epoch
        self._context.key = None
        self._backend.current.clear()
        self._began = False
        self.largest_event_time = None
        self.largest_event_times = {}
        self.rows_by_input = {}
        self.rows_in = self.rows_out = 0
        self.rows_dropped.clear()

    def set_processing_time(self, time: int) -> None:
        """Fix the processing time by which timers are registered and fire, in milliseconds since 1970 UTC."""
        self._timers.begin_epoch(time)

    def process(
        self, batches: Iterator[pa.RecordBatch], at_end: AtEnd = AtEnd.EPOCH
    ) -> Iterator[pa.RecordBatch]:
        """Run the function over every row and yield its output; at the end the epoch is over.

        The watermark says what the rows of earlier epochs have made certain, so timers that are due by it
        fire before the first row, as where a watermark comes between two rows.  At the end those fire that
        rows have registered for a time that has passed.

        Parameters
        ----------
        batches : iterator of pyarrow.RecordBatch
        at_end : AtEnd, optional
            Which timers fire then; those that are due by default.

        Raises
        ------
        UserFunctionError
            Where the function raises.
        OutputTypeError
            Where it yields a row that is not of the declared schema.
        """
        yield from self._begin()
        yield from self._process(batch for batch in batches if batch.num_rows)
        yield from self.end_epoch(at_end)

    def process_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Run the function over the rows of one batch and yield its output; the epoch continues."""
        yield from self._begin()
        yield from self._process_one(batch)

    def _begin(self) -> Iterator[pa.RecordBatch]:
        if not self._began:
            self._began = True
            yield from self.fire_timers()

    def end_epoch(self, at_end: AtEnd = AtEnd.EPOCH) -> Iterator[pa.RecordBatch]:
        """Yield what the function and timers give at the end of the epoch, and end it for the backend."""
        if at_end in (AtEnd.INPUT, AtEnd.DRAINED):
            self._timers.end_event_time()
        if at_end is AtEnd.INPUT:
            self._timers.set_processing_time(END_OF_TIME)
        yield from self._end()
        if at_end is not AtEnd.NOTHING:
            yield from self.fire_timers()
        yield from self._take_side_rows()
        self._backend.end_epoch()

    def fire_timers(self) -> Iterator[pa.RecordBatch]:
        """Fire the timers that are due, by the watermark and by processing time, and yield what they give.

        Raises
        ------
        UserFunctionError, OutputTypeError
            As `process`.
        """
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
        """Return rows that the function yielded as they leave the operator."""
        self.rows_out += rows.num_rows
        return self._outputs.tagged(MAIN, rows)

    def _take_side_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield what the function has put out to side outputs since the last time."""
        for batch in self._side_rows.take():
            self.rows_out += batch.num_rows
            yield batch

    def _note_event_times(self, batch: pa.RecordBatch) -> None:
        """See the largest event time of a batch, and that of each input."""
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
        """See the largest of some event times, which may be of one input."""
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
