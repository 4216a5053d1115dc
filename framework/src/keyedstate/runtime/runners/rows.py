"""Functions that handle one row at a time: of one input, with a broadcast side, of several inputs."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from types import GeneratorType
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from keyedstate.runtime.event_time import event_time_array
from keyedstate.runtime.functions.checks import BROADCAST, ROWS, row_classes
from keyedstate.runtime.functions.connected_inputs import (
    ConnectedInput,
    KeyedCoProcessFunction,
    process_method,
)
from keyedstate.runtime.functions.keyed import (
    BroadcastContext,
    Context,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    OnTimerContext,
)
from keyedstate.runtime.functions.row_runs import RowRun, RunFunction
from keyedstate.runtime.key_runs import ROWS_AT_ONCE, KeyRuns, RowsByKey
from keyedstate.runtime.row_classes import rows_from
from keyedstate.runtime.runners.batches import joined
from keyedstate.runtime.runners.keyed_operator import (
    OUTPUT_BATCH_ROWS,
    OUTPUT_BYTES,
    KeyedOperator,
    OperatorSpec,
)
from keyedstate.runtime.timers import TimeDomain
from keyedstate.state.context import KeySequence
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.time import Timer, TimerTarget

#: Rows and bytes that are joined to be grouped by key.
GROUPED_ROWS = 131_072
GROUPED_BYTES = 6 << 20
#: Chunks of rows whose output may become one batch: rows of any size wait until then, and the chunks' keys.
OUTPUT_CHUNKS = 5
#: Results that are one row where rows are expected: iterating over them would yield its fields.
_SINGLE_ROWS = frozenset((tuple, dict, str, bytes))


class _Calls(NamedTuple):
    """The calls of a function with the rows of some keys."""

    #: What the function is called with under each key.
    rows_by_key: Iterable[Iterable[Any]]
    #: The event time of each row; None where no row has one, or the function reads them with the rows.
    times: Iterator[int | None] | None
    function: Callable[[Any, Context], Any]
    #: Returns the name of the user's method that a call stands for.
    step_of: Callable[[Any], str]


class _Output:
    """Rows that are no batch yet, and the keys under which they were put out; none of a broadcast side."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.keys: list[Any] = []
        #: The number of rows after those of each key.
        self.ends: list[int] = []
        self.chunks = 0

    def key_of(self, row: int) -> Any:
        """Return the key of a row by its number; None without keys."""
        return self.keys[bisect_right(self.ends, row)] if self.keys else None

    def clear(self) -> None:
        """Forget the rows and their keys."""
        self.rows.clear()
        self.keys.clear()
        self.ends.clear()
        self.chunks = 0


class RowOperator(KeyedOperator):
    """Runs a `KeyedProcessFunction`."""

    _kind: ClassVar[Any] = KeyedProcessFunction
    #: Whether rows are needed with all of their columns, those of the key too.
    _whole_rows = False
    _function: Any

    def __init__(self, function: Any, backend: KeyedStateBackend, spec: OperatorSpec) -> None:
        super().__init__(function, backend, spec)
        self._row_classes = row_classes(function) if spec.row_classes is None else spec.row_classes
        self._rows = RowsByKey(
            self._key_columns,
            self._key_group_column,
            self._time_column,
            whole=self._whole_rows,
            row_class=self._row_classes.get(ROWS),
        )
        #: The keys whose epoch has yet to end and their key groups; None where the function ends no epochs.
        self._touched: dict[Any, int] | None = None
        if type(function).end_epoch is not self._kind.end_epoch:
            self._touched = {}

    def _process(self, batches: Iterator[pa.RecordBatch], *, until_end: bool) -> Iterator[pa.RecordBatch]:
        if not self._operator_states.metas():
            made = self._process_by_key(batches, until_end=until_end)
            yield from joined(made, OUTPUT_BATCH_ROWS, OUTPUT_BYTES)
            return
        # Operator state would expose the order of rows of different keys.
        for batch in batches:
            yield from self._process_one(batch)

    def _process_one(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._note_event_times(batch)
        output = _Output()
        for some in self._rows.in_order(batch):
            yield from self._process_runs(some, output)
        yield from self._emit_rest(output)
        self.rows_in += batch.num_rows

    def _process_by_key(
        self, batches: Iterator[pa.RecordBatch], *, until_end: bool
    ) -> Iterator[pa.RecordBatch]:
        groups = joined(batches, GROUPED_ROWS, GROUPED_BYTES)
        until_end = until_end and self._may_end_early()
        if until_end:
            # Where there is a second group, a key may have rows in both.
            known = list(islice(groups, 2))
            until_end, groups = len(known) == 1, chain(_taken(known), groups)
        output = _Output()
        for batch in groups:
            self._note_event_times(batch)
            for some in self._rows.grouped(batch):
                yield from self._process_runs(some, output, until_end=until_end)
            self.rows_in += batch.num_rows
        yield from self._emit_rest(output)

    def _may_end_early(self) -> bool:
        """Return whether the end of a key's epoch may come before rows of other keys.

        No timer comes after the key's rows, and nothing of the epoch's end is known later than they are.
        """
        return self._touched == {} and not self._timers.has_services and self._time_column is None

    def _calls(self, some: KeyRuns) -> _Calls:
        """Return the calls for the rows of a chunk."""
        rows = map(islice, repeat(some.rows()), some.counts)
        return _Calls(rows, some.times(self._time_column), self._function.process, lambda _: "process")

    def _process_runs(
        self, some: KeyRuns, output: _Output, *, until_end: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Process a chunk; `until_end` says that it has the last rows of its keys in the epoch.

        Then the epochs of these keys end with the chunk, whose state is in the write-behind cache.
        """
        calls = [self._calls(some)]
        if until_end and some.keys.distinct:
            calls.append(self._ends(len(some.keys.keys), is_continued=some.is_continued))
        elif self._touched is not None:
            self._touched.update(zip(some.keys.keys, some.keys.key_groups, strict=True))
        return self._process_keys(some.keys, calls, output)

    def _end_keys(self) -> Iterator[pa.RecordBatch]:
        if not self._touched:
            return
        touched, self._touched = self._touched, {}
        keys, key_groups = list(touched), list(touched.values())
        self._backend.current.timestamp = None
        output = _Output()
        for start in range(0, len(keys), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            some = KeySequence(keys[part], key_groups[part], True)
            yield from self._process_keys(some, [self._ends(len(some.keys))], output)
        yield from self._emit_rest(output)

    def _ends(self, count: int, *, is_continued: bool = False) -> _Calls:
        """Return the calls that end the epochs of keys, without the last one where it `is_continued`."""
        end_epoch, time = self._function.end_epoch, self.largest_event_time
        of_keys: list[tuple[None, ...]] = [(None,)] * count
        if is_continued:
            of_keys[-1] = ()
        return _Calls(
            of_keys,
            None if time is None else repeat(time),
            lambda _, ctx: end_epoch(ctx),
            lambda _: "end_epoch",
        )

    def _process_keys(
        self, some: KeySequence, calls: Iterable[_Calls], output: _Output
    ) -> Iterator[pa.RecordBatch]:
        """Make the calls for a sequence of keys, one set after the other, and yield their output.

        What is too little for a batch stays in `output`.
        """
        backend = self._backend
        backend.begin_write_behind(some)
        try:
            for those in calls:
                yield from self._call(some, those, output)
        finally:
            backend.end_write_behind()
        backend.balance_memory()
        output.chunks += 1
        if len(output.rows) >= ROWS_AT_ONCE or output.chunks >= OUTPUT_CHUNKS:
            yield from self._emit_rest(output)
        yield from self._take_side_rows()

    def _call(self, some: KeySequence, calls: _Calls, output: _Output) -> Iterator[pa.RecordBatch]:
        """Call a function with the rows of each key, consecutively, and yield batches that are full."""
        context, backend, current = self._context, self._backend, self._backend.current
        rows_by_key, times, process, step_of = calls
        limit = OUTPUT_BATCH_ROWS
        keys = some.keys
        output.keys += keys
        out, ends = output.rows, output.ends
        for current.turn, (key, current.key_group, rows) in enumerate(
            zip(keys, some.key_groups, rows_by_key, strict=True)
        ):
            context.key = current.key = key
            for row in rows:
                if times is not None:
                    current.timestamp = next(times)
                # Looked up for each row: one before may have been the first to use a state that expires.
                if backend.on_record is not None:
                    backend.on_record()
                try:
                    result = process(row, context)
                    # A generator in most functions, so that is asked first.
                    if type(result) is GeneratorType:
                        out += result
                    elif result is not None:
                        if type(result) in _SINGLE_ROWS:
                            raise _single_row(step_of(row), result)
                        out += result
                except (Exception, SystemExit) as error:
                    raise self._failure(step_of(row), error) from error
                if len(out) >= limit:
                    # The caller may stop here: then no value is left in the write-behind cache.
                    backend.end_write_behind()
                    yield self._emit(output)
                    backend.begin_write_behind(some)
                    output.keys += keys[current.turn :]
            ends.append(len(out))

    def _timer_target(self) -> TimerTarget | None:
        if type(self._function).on_timer is self._kind.on_timer:
            return None
        return _OnTimer(self._function, self._context)

    def _fire(self, domain: TimeDomain) -> Iterator[pa.RecordBatch]:
        context, backend, timers = self._context, self._backend, self._timers
        in_event_time = domain is TimeDomain.EVENT_TIME
        due = timers.due_timers(in_event_time=in_event_time)
        touched, output = self._touched, _Output()
        with contextlib.closing(due):
            for target, timer in due:
                context.key = timer.key
                # The time of a row is what states that expire in event time are stamped with.
                backend.current.timestamp = timer.time if in_event_time else None
                if backend.on_record is not None:
                    backend.on_record()
                output.keys.append(timer.key)
                try:
                    call = target.on_event_time if in_event_time else target.on_processing_time
                    result = call(timer)
                    if result is not None:
                        if result.__class__ in _SINGLE_ROWS:
                            raise _single_row("on_timer", result)
                        output.rows.extend(result)
                except (Exception, SystemExit) as error:
                    raise self._failure("on_timer", error, timer.time) from error
                if touched is not None:
                    touched[timer.key] = backend.current.key_group
                output.ends.append(len(output.rows))
                if not len(output.keys) % ROWS_AT_ONCE:
                    backend.balance_memory()
                if len(output.keys) >= OUTPUT_BATCH_ROWS or len(output.rows) >= OUTPUT_BATCH_ROWS:
                    yield from self._emit_rest(output)
                    yield from self._take_side_rows()
        yield from self._emit_rest(output)
        yield from self._take_side_rows()
        backend.current.timestamp = None

    def _emit_rest(self, output: _Output) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an output, if there are any, and clear it."""
        if output.rows:
            yield self._emit(output)
        output.clear()

    def _emit(self, output: _Output) -> pa.RecordBatch:
        """Return the rows of an output, of which there are some, as a batch, and clear it."""
        batch = self._tagged(self._outputs.main.to_batch(output.rows, output.key_of))
        output.clear()
        return batch


class BroadcastOperator(RowOperator):
    """Runs a `KeyedBroadcastProcessFunction`."""

    def process_broadcast(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        function: KeyedBroadcastProcessFunction[Any, Any] = self._function
        context = BroadcastContext(self._context)
        row_class = self._row_classes.get(BROADCAST)
        self._context.key = None
        self._backend.current.clear()
        output = _Output()
        with self._operator_states.broadcast_side():
            for batch in batches:
                for row in rows_from(row_class, batch.schema.names, batch.columns):
                    try:
                        result = function.process_broadcast(row, context)
                        if result.__class__ in _SINGLE_ROWS:
                            raise _single_row("process_broadcast", result)
                        output.rows.extend(() if result is None else result)
                    except (Exception, SystemExit) as error:
                        raise self._failure("process_broadcast", error) from error
                    if len(output.rows) >= OUTPUT_BATCH_ROWS:
                        yield self._emit(output)
                self._backend.balance_memory()
        yield from self._emit_rest(output)
        yield from self._take_side_rows()


class ConnectedOperator(RowOperator):
    """Runs a `KeyedCoProcessFunction`."""

    _kind = KeyedCoProcessFunction
    _whole_rows = True

    def __init__(self, function: Any, backend: KeyedStateBackend, spec: OperatorSpec) -> None:
        super().__init__(function, backend, spec)
        assert spec.connected is not None, "several inputs"
        self._connected = spec.connected

    def _may_end_early(self) -> bool:
        return super()._may_end_early() and all(each.time_column is None for each in self._connected.inputs)

    def _calls(self, some: KeyRuns) -> _Calls:
        """Return the calls for the rows of a chunk, each with the number of its input."""
        numbers, columns = self._connected.separate(some.batch, self._key_columns)
        inputs = list(zip(self._connected.names, self._connected.inputs, columns, strict=True))
        rows = [
            rows_from(self._row_classes.get(name), input_.schema.names, part) for name, input_, part in inputs
        ]
        times = [self._event_times_of(name, input_, part) for name, input_, part in inputs]
        all_times = None
        if self._connected.have_event_time:
            all_times = _in_order(numbers, list(map(iter, times)))
        numbered = zip(numbers, _in_order(numbers, rows), strict=True)
        if isinstance(self._function, RunFunction):
            runs = [RowRun(numbered, all_times, count, self._backend) for count in some.counts]
            return _Calls(runs, None, self._function._process_run, lambda run: process_method(run.number))
        processes = self._function._processes()

        def process(row: tuple[int, Any], context: Context) -> Any:
            return processes[row[0]](row[1], context)

        by_key = map(islice, repeat(numbered), some.counts)
        return _Calls(by_key, all_times, process, lambda row: process_method(row[0]))

    def _event_times_of(self, name: str, input_: ConnectedInput, columns: list[pa.Array]) -> list[int | None]:
        """Count the rows of one input and return their event times; empty without a time column."""
        self.rows_by_input[name] = self.rows_by_input.get(name, 0) + len(columns[0])
        column = input_.times(columns)
        if column is None:
            return []
        times, missing = event_time_array(column)
        self._note_times(times, missing, name)
        found: list[int | None] = pa.array(times, mask=missing).to_pylist()
        return found


def _taken(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a list, and take each out, so that it is freed when its reader drops it."""
    while batches:
        yield batches.pop(0)


def _in_order(numbers: Iterable[int], inputs: Sequence[Iterator[Any]]) -> Iterator[Any]:
    """Merge the items of inputs in the order of the rows, of which the numbers of their inputs are given."""
    following = [items.__next__ for items in inputs]
    for number in numbers:
        yield following[number]()


class _OnTimer:
    """Calls a function with one timer at a time."""

    def __init__(self, function: Any, context: Context) -> None:
        self._on_timer = function.on_timer
        self._function_context = context
        self._context: OnTimerContext | None = None

    def on_event_time(self, timer: Timer) -> Any:
        return self._call(timer, TimeDomain.EVENT_TIME)

    def on_processing_time(self, timer: Timer) -> Any:
        return self._call(timer, TimeDomain.PROCESSING_TIME)

    def _call(self, timer: Timer, domain: TimeDomain) -> Any:
        context = self._context
        if context is None:
            context = self._context = OnTimerContext(self._function_context)
        context.epoch = self._function_context.epoch
        context.key, context._time, context.time_domain = timer.key, timer.time, domain
        return self._on_timer(timer.time, context)


def _single_row(step: str, result: object) -> TypeError:
    return TypeError(f"{step}() must yield its rows or return a list of them, not {result!r}")
