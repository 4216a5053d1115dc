"""The keyed operator: the rows of one partition in, rows out, state in between."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.errors import OutputError, UserFunctionError
from keyedstate.runtime.event_time import event_time_array, largest_by_input
from keyedstate.runtime.failures import user_function_error_of
from keyedstate.runtime.function import (
    BroadcastContext,
    Context,
    KeyedBroadcastProcessFunction,
    KeyedFunction,
    KeyedProcessFunction,
)
from keyedstate.runtime.function_checks import BROADCAST, ROWS, check_function
from keyedstate.runtime.function_checks import row_classes as classes_of_rows
from keyedstate.runtime.key_runs import KeyRuns, RowsByKey
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.row_classes import RowClass, rows_from
from keyedstate.runtime.runners.connected import (
    INPUTS,
    ConnectedInputs,
    ConnectedRows,
    KeyedCoProcessFunction,
    check_inputs,
    in_turn,
)
from keyedstate.runtime.runners.vectorized import (
    KeyedBatch,
    VectorizedProcessFunction,
    put_together,
    timer_batch,
)
from keyedstate.runtime.side_outputs import MAIN, Outputs, SideRows
from keyedstate.runtime.timer_calls import PER_RECORD, OnTimer, handles_timers
from keyedstate.runtime.timers import USER_TIMERS, AtEnd, KeyTimers, TimeDomain
from keyedstate.state import (
    END_OF_TIME,
    KeyedStateBackend,
    OperatorStateBackend,
    declared_operator_states,
    declared_states,
)
from keyedstate.time import EventTime, TimerService
from keyedstate.types import TypeSerializer, from_arrow_type, nullable, tuple_of

#: Output rows and bytes that are gathered before they become one Arrow batch.
OUTPUT_BATCH_ROWS = 10_000
OUTPUT_BYTES = 4 << 20
#: Rows and bytes that are put together to be grouped by key for a per-record function.
GROUPED_ROWS = 131_072
GROUPED_BYTES = 4 << 20


def key_serializer_for(types: Sequence[pa.DataType]) -> TypeSerializer[Any]:
    """Return the serializer of a key made of columns of these Arrow types.

    Every column is nullable: a null key is a key like any other, as in Spark's ``GROUP BY``.  Several
    columns make a tuple.
    """
    parts = [nullable(from_arrow_type(type_)) for type_ in types]
    return parts[0] if len(parts) == 1 else tuple_of(*parts)


class KeyedOperator:
    """Runs a process function over the rows of one partition.

    Parameters
    ----------
    function : KeyedProcessFunction, VectorizedProcessFunction or KeyedCoProcessFunction
    backend : KeyedStateBackend
        Opened over the partition's key groups, with `key_serializer_for` the key columns.
    key_columns : sequence of str
    key_group_column : str
        Name of the int32 column with each row's key group; it is not shown to the function.
    output : OutputSchema
    side_outputs : mapping of str to OutputSchema, optional
        Where there are any, batches of all outputs come out as `keyedstate.runtime.side_outputs` has them.
    row_classes : mapping of str to RowClass, optional
        Those that the function names for its rows, where they were looked up elsewhere.
    epoch : int or None
    operator_states : OperatorStateBackend, optional
        With what the task restores; an empty one by default.
    task, parallelism : int, optional
        Which task this is, from 0, and of how many.
    event_time : EventTime, optional
        The event time of the rows of one input.
    connected : ConnectedInputs, optional
        The two inputs of a `KeyedCoProcessFunction`, which say themselves where their event times are.

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

    def __init__(
        self,
        function: KeyedFunction,
        backend: KeyedStateBackend,
        *,
        key_columns: Sequence[str],
        key_group_column: str,
        output: OutputSchema,
        side_outputs: Mapping[str, OutputSchema] = MappingProxyType({}),
        row_classes: Mapping[str, RowClass] | None = None,
        epoch: int | None,
        operator_states: OperatorStateBackend | None = None,
        task: int = 0,
        parallelism: int = 1,
        event_time: EventTime | None = None,
        connected: ConnectedInputs | None = None,
    ) -> None:
        check_function(function)
        check_inputs(function, connected=connected is not None)
        self._function = function
        self._has_timers = handles_timers(function)
        self._backend = backend
        self._key_columns = tuple(key_columns)
        self._key_group_column = key_group_column
        self._outputs = Outputs(output, side_outputs)
        self._side_rows = SideRows(self._outputs, by_columns=isinstance(function, VectorizedProcessFunction))
        self._operator_states = OperatorStateBackend() if operator_states is None else operator_states
        self._context = Context(
            function, backend, self._operator_states, epoch, task, parallelism, self._side_rows
        )
        self._timers = self._context._timers
        self.rows_dropped = self._context._dropped
        self._user_timers: TimerService | None = None
        self._opened = False
        #: Whether the timers that are due when an epoch begins have fired.
        self._began = False
        self._row_classes = classes_of_rows(function) if row_classes is None else row_classes
        self._rows = RowsByKey(
            key_columns,
            key_group_column,
            None if event_time is None else event_time.column,
            whole=connected is not None,
            row_class=self._row_classes.get(ROWS),
        )
        self._time_column = None if event_time is None else event_time.column
        self._input_column = None if event_time is None else event_time.inputs
        self._connected = connected
        self.rows_by_input: dict[str, int] = {}
        self.largest_event_times: dict[str, int] = {}
        self.largest_event_time: int | None = None
        self.rows_in = 0
        self.rows_out = 0

    def open(self) -> None:
        """Bind the declared states and open the function; one that is open stays as it is."""
        if self._opened:
            return
        for descriptor in declared_states(self._function):
            descriptor.bind(self._function, self._context.state(descriptor))
        for operator_state in declared_operator_states(self._function):
            operator_state.bind(self._function, self._context.state(operator_state))
        if self._has_timers:
            on_timer = OnTimer(self._function, self._context)
            self._user_timers = self._timers.service(USER_TIMERS, on_timer)
            self._context._key_timers = KeyTimers(self._user_timers)
        self._opened = True
        try:
            self._function.open(self._context)
        except (Exception, SystemExit) as error:
            raise self._failure("open", error) from error

    def begin_epoch(self, epoch: int) -> None:
        """Go on with another epoch, as if the operator had been made for it; the function stays open."""
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
        filled: Iterator[pa.RecordBatch] = (batch for batch in batches if batch.num_rows)
        function = self._function
        yield from self._begin()
        if isinstance(function, VectorizedProcessFunction):
            for batch in put_together(filled, function.batch_rows, function.batch_bytes):
                yield from self._process_vectorized(function, batch)
        elif isinstance(function, PER_RECORD) and not self._operator_states.metas():
            yield from put_together(self._process_by_key(function, filled), OUTPUT_BATCH_ROWS, OUTPUT_BYTES)
        else:
            # Operator state would show in which order rows of different keys are handled.
            for batch in filled:
                yield from self.process_batch(batch)
        yield from self.end_epoch(at_end)

    def _begin(self) -> Iterator[pa.RecordBatch]:
        if not self._began:
            self._began = True
            yield from self.fire_timers()

    def end_epoch(self, at_end: AtEnd = AtEnd.EPOCH) -> Iterator[pa.RecordBatch]:
        """Yield what the function and timers give at the end of the epoch, and end it for the backend."""
        function = self._function
        if at_end in (AtEnd.INPUT, AtEnd.DRAINED):
            self._timers.end_event_time()
        if at_end is AtEnd.INPUT:
            self._timers.set_processing_time(END_OF_TIME)
        if isinstance(function, VectorizedProcessFunction):
            self._begin_step()
            yield from self._given("end_epoch", lambda: function.end_epoch(self._context))
        if at_end is not AtEnd.NOTHING:
            yield from self.fire_timers()
        yield from self._put_aside()
        self._backend.end_epoch()

    def fire_timers(self) -> Iterator[pa.RecordBatch]:
        """Fire the timers that are due, by the watermark and by processing time, and yield what they give.

        Raises
        ------
        UserFunctionError, OutputTypeError
            As `process`.
        """
        function = self._function
        for domain in TimeDomain:
            if isinstance(function, VectorizedProcessFunction):
                if self._user_timers is not None:
                    yield from self._fire_together(function, self._user_timers, domain)
            else:
                yield from self._fire(domain)

    def _fire(self, domain: TimeDomain) -> Iterator[pa.RecordBatch]:
        """Fire the timers of one domain, one after the other."""
        context, backend, timers = self._context, self._backend, self._timers
        in_event_time = domain is TimeDomain.EVENT_TIME
        due = timers.due_event_time_timers() if in_event_time else timers.due_processing_time_timers()
        out: list[Any] = []
        keys: list[Any] = []
        ends: list[int] = []  # ends[i]: rows of `out` after the timer of keys[i]
        with contextlib.closing(due):
            for target, timer in due:
                context.key = timer.key
                # The time of a row is what states that expire in event time are stamped with.
                backend.current.timestamp = timer.time if in_event_time else None
                if backend.on_record is not None:
                    backend.on_record()
                try:
                    told = target.on_event_time if in_event_time else target.on_processing_time
                    result = told(timer)
                    if result is not None:
                        if result.__class__ in _SINGLE_ROWS:
                            raise _single_row("on_timer", result)
                        out.extend(result)
                except (Exception, SystemExit) as error:
                    raise self._failure("on_timer", error, timer.time) from error
                keys.append(timer.key)
                ends.append(len(out))
                if len(keys) >= OUTPUT_BATCH_ROWS or len(out) >= OUTPUT_BATCH_ROWS:
                    if out:
                        yield self._emit(out, keys, ends)
                    yield from self._put_aside()
                    out, keys, ends = [], [], []
        if out:
            yield self._emit(out, keys, ends)
        yield from self._put_aside()
        backend.current.timestamp = None

    def _fire_together(
        self, function: VectorizedProcessFunction, service: TimerService, domain: TimeDomain
    ) -> Iterator[pa.RecordBatch]:
        """Fire the timers of one domain, many at once."""
        if domain is TimeDomain.EVENT_TIME:
            until, due = service.current_watermark, service.due_event_time_timers_together
        else:
            until, due = service.current_processing_time, service.due_processing_time_timers_together
        with self._timers.firing(until):
            # Anew after each: one that has come to its end sees nothing of what was registered since.
            while batch := timer_batch(due(), function.batch_rows, domain):
                self._begin_step()
                yield from self._given("on_timers", partial(function.on_timers, batch, self._context))

    def process_broadcast(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run a `KeyedBroadcastProcessFunction` over every row of the broadcast side and yield its output.

        Another function has no broadcast side, and nothing is read then.

        Parameters
        ----------
        batches : iterable of pyarrow.RecordBatch
            The same rows in the same order on every task; with the columns that the function sees.

        Raises
        ------
        UserFunctionError, OutputTypeError
            As `process`.
        """
        function = self._function
        if not isinstance(function, KeyedBroadcastProcessFunction):
            return
        context = BroadcastContext(self._context)
        row_class = self._row_classes.get(BROADCAST)
        self._context.key = None
        self._backend.current.clear()
        out: list[Any] = []
        with self._operator_states.broadcast_side():
            for batch in batches:
                for row in rows_from(row_class, batch.schema.names, batch.columns):
                    try:
                        result = function.process_broadcast(row, context)
                        if result.__class__ in _SINGLE_ROWS:
                            raise _single_row("process_broadcast", result)
                        out.extend(() if result is None else result)
                    except (Exception, SystemExit) as error:
                        raise self._failure("process_broadcast", error) from error
                    if len(out) >= OUTPUT_BATCH_ROWS:
                        yield self._emit(out, [None], [])
                        out = []
        if out:
            yield self._emit(out, [None], [])
        yield from self._put_aside()

    def close(self) -> None:
        """Close the function; calling it again does nothing."""
        if not self._opened:
            return
        self._opened = False
        try:
            self._function.close()
        except (Exception, SystemExit) as error:
            raise self._failure("close", error) from error

    def process_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Run the function over the rows of one batch and yield its output; the epoch goes on."""
        yield from self._begin()
        function = self._function
        if isinstance(function, VectorizedProcessFunction):
            yield from self._process_vectorized(function, batch)
        elif isinstance(function, PER_RECORD):
            self._note_event_times(batch)
            for some in self._rows.in_order(batch):
                yield from self._process_runs(function, some)
            self.rows_in += batch.num_rows

    def _process_vectorized(
        self, function: VectorizedProcessFunction, batch: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        self._note_event_times(batch)
        self._begin_step()
        names = [name for name in batch.schema.names if name != self._key_group_column]
        key_groups = batch.column(self._key_group_column).to_numpy()
        keyed = KeyedBatch(batch.select(names), self._key_columns, key_groups)
        yield from self._given("process_batch", lambda: function.process_batch(keyed, self._context))
        self.rows_in += batch.num_rows

    def _begin_step(self) -> None:
        """Leave no current key, and let states see the present time."""
        self._context.key = None
        self._backend.current.clear()
        self._backend.current.timestamp = self.largest_event_time
        if self._backend.on_record is not None:
            self._backend.on_record()

    def _given(self, step: str, call: Callable[[], Any]) -> Iterator[pa.RecordBatch]:
        """Yield the batches that a vectorised function gives, as they are declared."""
        try:
            given = call()
            if isinstance(given, (pa.RecordBatch, pa.Table)):
                raise TypeError(f"{step}() must yield its batches or return a list of them, not one batch")
            for made in () if given is None else given:
                for batch in self._outputs.main.conform(made):
                    self.rows_out += batch.num_rows
                    yield self._outputs.tagged(MAIN, batch)
                yield from self._put_aside()
            yield from self._put_aside()
        except OutputError:
            raise
        except (Exception, SystemExit) as error:
            raise self._failure(step, error) from error

    def _process_by_key(
        self, function: KeyedProcessFunction | KeyedCoProcessFunction, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Run a function over rows grouped by key, and yield its output in small batches."""
        for batch in put_together(batches, GROUPED_ROWS, GROUPED_BYTES):
            self._note_event_times(batch)
            for some in self._rows.grouped(batch):
                yield from self._process_runs(function, some)
            self.rows_in += batch.num_rows

    def _process_runs(
        self, function: KeyedProcessFunction | KeyedCoProcessFunction, some: KeyRuns
    ) -> Iterator[pa.RecordBatch]:
        context, backend, current = self._context, self._backend, self._backend.current
        process: Callable[[Any, Context], Any]
        rows: Iterator[Any]
        times: Iterator[int | None] | None
        if isinstance(function, KeyedCoProcessFunction):
            rows, times, process = self._of_both_inputs(function, some.batch)
        else:
            rows, times, process = some.rows(), some.times(self._time_column), function.process
        limit = OUTPUT_BATCH_ROWS
        out: list[Any] = []
        keys = some.keys.keys
        ends: list[int] = []  # ends[i]: rows of `out` after those of keys[i]
        backend.hold_values(some.keys)
        try:
            for current.turn, (key, current.key_group, count) in enumerate(
                zip(keys, some.keys.key_groups, some.counts, strict=True)
            ):
                context.key = current.key = key
                for row in islice(rows, count):
                    if times is not None:
                        current.timestamp = next(times)
                    # Looked up for each row: one before may have been the first to use a state that expires.
                    if backend.on_record is not None:
                        backend.on_record()
                    try:
                        result = process(row, context)
                        if result.__class__ is list:
                            out += result
                        elif result is not None:
                            if result.__class__ in _SINGLE_ROWS:
                                raise _single_row(_step(function, row), result)
                            out.extend(result)
                    except (Exception, SystemExit) as error:
                        raise self._failure(_step(function, row), error) from error
                    if len(out) >= limit:
                        ends.append(len(out))
                        # Whoever does not come back finds the state as it is without being held.
                        backend.write_held()
                        yield self._emit(out, keys, ends)
                        backend.hold_values(some.keys)
                        out, ends = [], [0] * current.turn
                ends.append(len(out))
        finally:
            backend.write_held()
        if out:
            yield self._emit(out, keys, ends)
        yield from self._put_aside()

    def _of_both_inputs(
        self, function: KeyedCoProcessFunction, batch: pa.RecordBatch
    ) -> tuple[
        Iterator[tuple[bool, Any]], Iterator[int | None] | None, Callable[[tuple[bool, Any], Context], Any]
    ]:
        """Return the rows of a batch, each behind whether it is of the second input; and what handles them.

        The times of the rows come between the two.
        """
        assert self._connected is not None, "checked when the operator was made"
        of_second, parts = self._connected.separate(batch, self._key_columns)
        rows = [
            rows_from(self._row_classes.get(name), part.input.schema.names, part.columns)
            for name, part in zip(INPUTS, parts, strict=True)
        ]
        times = [self._event_times_of(name, part) for name, part in zip(INPUTS, parts, strict=True)]
        both_times = None
        if self._connected.have_event_time:
            both_times = in_turn(of_second, *map(iter, times))
        processes = (function.process1, function.process2)

        def process(row: tuple[bool, Any], context: Context) -> Any:
            return processes[row[0]](row[1], context)

        return zip(of_second, in_turn(of_second, *rows), strict=True), both_times, process

    def _event_times_of(self, name: str, part: ConnectedRows) -> list[int | None]:
        """Count the rows of one of two inputs and return their event times; none where it has no such."""
        self.rows_by_input[name] = self.rows_by_input.get(name, 0) + len(part)
        if part.times is None:
            return []
        times, missing = event_time_array(part.times)
        self._note_times(times, missing, name)
        found: list[int | None] = pa.array(times, mask=missing).to_pylist()
        return found

    def _emit(self, out: list[Any], keys: list[Any], ends: list[int]) -> pa.RecordBatch:
        self.rows_out += len(out)
        rows = self._outputs.main.to_batch(out, lambda row: keys[bisect_right(ends, row)])
        return self._outputs.tagged(MAIN, rows)

    def _put_aside(self) -> Iterator[pa.RecordBatch]:
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


def _step(function: KeyedFunction, row: Any) -> str:
    if isinstance(function, KeyedCoProcessFunction):
        return "process2" if row[0] else "process1"
    return "process"


def _single_row(step: str, result: object) -> TypeError:
    return TypeError(f"{step}() must yield its rows or return a list of them, not {result!r}")


#: Results that are surely one row where rows are expected: iterating over them would yield its fields.
_SINGLE_ROWS = frozenset((tuple, dict, str, bytes))
