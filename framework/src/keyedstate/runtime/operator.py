"""The keyed operator: the rows of one partition in, rows out, state in between."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from keyedstate.runtime.errors import ProcessFunctionError
from keyedstate.runtime.event_time import event_times
from keyedstate.runtime.function import (
    BroadcastContext,
    Context,
    KeyedBroadcastProcessFunction,
    KeyedFunction,
    KeyedProcessFunction,
    check_function,
)
from keyedstate.runtime.grouping import GroupedRows, keys_of
from keyedstate.runtime.output import OutputError, OutputSchema
from keyedstate.runtime.rows import iterate_rows
from keyedstate.runtime.vectorized import KeyedBatch, VectorizedProcessFunction, put_together
from keyedstate.state import (
    KeyedStateBackend,
    OperatorStateBackend,
    declared_operator_states,
    declared_states,
)
from keyedstate.types import TypeSerializer, from_arrow_type, nullable, tuple_of

#: Output rows that are gathered before they become one Arrow batch.
OUTPUT_BATCH_ROWS = 10_000
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
    function : KeyedProcessFunction or VectorizedProcessFunction
    backend : KeyedStateBackend
        Opened over the partition's key groups, with `key_serializer_for` the key columns.
    key_columns : sequence of str
    key_group_column : str
        Name of the int32 column with each row's key group; it is not shown to the function.
    output : OutputSchema
    epoch : int or None
    operator_states : OperatorStateBackend, optional
        With what the task restores; an empty one by default.
    task, parallelism : int, optional
        Which task this is, from 0, and of how many.
    time_column : str, optional
        The column with each row's event time, for which `keyedstate.runtime.event_time.is_event_time`.

    Attributes
    ----------
    rows_in : int
        Rows of the broadcast side are not counted.
    rows_out : int
    largest_event_time : int or None
        Of all rows so far, in milliseconds; None where no row had any.
    """

    def __init__(
        self,
        function: KeyedFunction,
        backend: KeyedStateBackend,
        *,
        key_columns: Sequence[str],
        key_group_column: str,
        output: OutputSchema,
        epoch: int | None,
        operator_states: OperatorStateBackend | None = None,
        task: int = 0,
        parallelism: int = 1,
        time_column: str | None = None,
    ) -> None:
        check_function(function)
        self._function = function
        self._backend = backend
        self._key_columns = tuple(key_columns)
        self._key_group_column = key_group_column
        self._output = output
        self._operator_states = OperatorStateBackend() if operator_states is None else operator_states
        self._context = Context(function, backend, self._operator_states, epoch, task, parallelism)
        self._opened = False
        self._time_column = time_column
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
        self.largest_event_time = None
        self.rows_in = self.rows_out = 0

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the function over every row and yield its output; at the end the epoch is over.

        Raises
        ------
        ProcessFunctionError
            Where the function raises.
        OutputTypeError
            Where it yields a row that is not of the declared schema.
        """
        filled: Iterator[pa.RecordBatch] = (batch for batch in batches if batch.num_rows)
        function = self._function
        if isinstance(function, VectorizedProcessFunction):
            for batch in put_together(filled, function.batch_rows, function.batch_bytes):
                yield from self._process_vectorized(function, batch)
        elif isinstance(function, KeyedProcessFunction) and not self._operator_states.metas():
            for batch in put_together(filled, GROUPED_ROWS, GROUPED_BYTES):
                for rows, keys in self._by_key(batch):
                    yield from self._process_rows(function, rows, keys)
        else:
            # Operator state would show in which order rows of different keys are handled.
            for batch in filled:
                yield from self.process_batch(batch)
        yield from self.end_epoch()

    def _by_key(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, list[Any]]]:
        """Yield the rows with those of one key behind each other, and their keys, in smaller batches.

        The rows of one key keep their order.  What the first of them has brought into the processor's caches
        is there for the others; with less than two rows of a key on average that does not pay, and the rows
        stay in their order.
        """
        key_groups = batch.column(self._key_group_column).to_numpy()
        grouped = GroupedRows([batch.column(name) for name in self._key_columns], key_groups)
        if 2 * len(grouped) <= batch.num_rows:
            order = grouped.rows_by_key
            batch = batch.take(pa.array(order))
            keys = list(map(grouped.keys.__getitem__, grouped.codes[order].tolist()))
        else:
            keys = keys_of([batch.column(name) for name in self._key_columns])
        for start in range(0, batch.num_rows, OUTPUT_BATCH_ROWS):
            yield batch.slice(start, OUTPUT_BATCH_ROWS), keys[start : start + OUTPUT_BATCH_ROWS]

    def end_epoch(self) -> Iterator[pa.RecordBatch]:
        """Yield what the function gives at the end of the epoch, and end it for the backend."""
        function = self._function
        if isinstance(function, VectorizedProcessFunction):
            self._begin_step()
            yield from self._given("end_epoch", lambda: function.end_epoch(self._context))
        self._backend.end_epoch()

    def process_broadcast(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run a `KeyedBroadcastProcessFunction` over every row of the broadcast side and yield its output.

        Another function has no broadcast side, and nothing is read then.

        Parameters
        ----------
        batches : iterable of pyarrow.RecordBatch
            The same rows in the same order on every task; with the columns that the function sees.

        Raises
        ------
        ProcessFunctionError, OutputTypeError
            As `process`.
        """
        function = self._function
        if not isinstance(function, KeyedBroadcastProcessFunction):
            return
        context = BroadcastContext(self._context)
        self._context.key = None
        self._backend.current.clear()
        out: list[Any] = []
        with self._operator_states.broadcast_side():
            for batch in batches:
                for row in iterate_rows(batch.schema.names, batch.columns):
                    try:
                        result = function.process_broadcast(row, context)
                        if result.__class__ in _SINGLE_ROWS:
                            raise _single_row("process_broadcast", result)
                        out.extend(() if result is None else result)
                    except (Exception, SystemExit) as error:
                        raise self._failure("process_broadcast", error) from error
                    if len(out) >= OUTPUT_BATCH_ROWS:
                        yield self._emit(out, [None], 0, [])
                        out = []
        if out:
            yield self._emit(out, [None], 0, [])

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
        function = self._function
        if isinstance(function, VectorizedProcessFunction):
            yield from self._process_vectorized(function, batch)
        elif isinstance(function, KeyedProcessFunction):
            keys = keys_of([batch.column(name) for name in self._key_columns])
            yield from self._process_rows(function, batch, keys)

    def _process_vectorized(
        self, function: VectorizedProcessFunction, batch: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        self._event_times(batch)
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
            if given is None:
                return
            if isinstance(given, (pa.RecordBatch, pa.Table)):
                raise TypeError(f"{step}() must yield its batches or return a list of them, not one batch")
            for made in given:
                for batch in self._output.conform(made):
                    self.rows_out += batch.num_rows
                    yield batch
        except OutputError:
            raise
        except (Exception, SystemExit) as error:
            raise self._failure(step, error) from error

    def _process_rows(
        self, function: KeyedProcessFunction, batch: pa.RecordBatch, keys: list[Any]
    ) -> Iterator[pa.RecordBatch]:
        key_groups = batch.column(self._key_group_column).to_numpy().tolist()
        names = [name for name in batch.schema.names if name != self._key_group_column]
        rows = iterate_rows(names, [batch.column(name) for name in names])
        context, backend, process = self._context, self._backend, function.process
        current = backend.current
        times = self._event_times(batch)
        out: list[Any] = []
        ends: list[int] = []  # ends[i]: rows of `out` after input row first + i
        first = 0
        for index, (key, key_group, row) in enumerate(zip(keys, key_groups, rows, strict=True)):
            context.key = current.key = key
            current.key_group = key_group
            if times is not None:
                current.timestamp = times[index]
            # Looked up anew for each row: one before may have been the first to use a state that expires.
            if backend.on_record is not None:
                backend.on_record()
            try:
                result = process(row, context)
                if result is not None:
                    if result.__class__ in _SINGLE_ROWS:
                        raise _single_row("process", result)
                    out.extend(result)
            except (Exception, SystemExit) as error:
                raise self._failure("process", error) from error
            ends.append(len(out))
            if len(out) >= OUTPUT_BATCH_ROWS:
                yield self._emit(out, keys, first, ends)
                out, ends, first = [], [], index + 1
        if out:
            yield self._emit(out, keys, first, ends)
        self.rows_in += batch.num_rows

    def _emit(self, out: list[Any], keys: list[Any], first: int, ends: list[int]) -> pa.RecordBatch:
        self.rows_out += len(out)
        return self._output.to_batch(out, lambda row: keys[first + bisect_right(ends, row)])

    def _event_times(self, batch: pa.RecordBatch) -> list[int | None] | None:
        if self._time_column is None:
            return None
        times = event_times(batch.column(self._time_column))
        known = [time for time in times if time is not None]
        if self.largest_event_time is not None:
            known.append(self.largest_event_time)
        self.largest_event_time = max(known, default=None)
        return times

    def _failure(self, step: str, error: BaseException) -> ProcessFunctionError:
        return ProcessFunctionError(
            type(self._function).__name__, step, self._context.key, self._context.epoch, error
        )


def _single_row(step: str, result: object) -> TypeError:
    return TypeError(f"{step}() must yield its rows or return a list of them, not {result!r}")


#: Results that are surely one row where rows are expected: iterating over them would yield its fields.
_SINGLE_ROWS = frozenset((tuple, dict, str, bytes))
