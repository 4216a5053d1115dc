"""Windows as a process function: it adds each row to its windows, and returns the rows that these yield."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from keyedstate.errors import InvalidFunctionError, MissingTimestampError
from keyedstate.runtime.functions.keyed import Context, KeyedProcessFunction
from keyedstate.state import StateDescriptor
from keyedstate.state.kinds.accessor import declared_states
from keyedstate.time import Timer, datetime_of
from keyedstate.types import TimeWindow, TypeSerializer, infer
from keyedstate.windows.declaration.contents import ReducedRows, WindowContents
from keyedstate.windows.declaration.contexts import WindowContext
from keyedstate.windows.declaration.definition import WindowDefinition
from keyedstate.windows.declaration.function import ProcessWindowFunction
from keyedstate.windows.declaration.skipped_rows import SkippedRows
from keyedstate.windows.row.operator import TIMERS, WindowOperator, check_state_name

#: The columns of a window's start and end.
WINDOW_START = "window_start"
WINDOW_END = "window_end"


class WindowsOfKeys:
    """Runs the window operator in a process function, and returns the rows that windows yield."""

    _definition: WindowDefinition
    _contents: WindowContents
    _function: ProcessWindowFunction
    _out: list[Any]

    def _open_windows(
        self, ctx: Context, element_type: TypeSerializer[Any], late: Callable[[Any], None]
    ) -> None:
        """Open the function of the windows; `late` is called with an element that is too late."""
        function = self._function
        for descriptor in declared_states(function):
            descriptor.bind(function, ctx.state(descriptor))
        function.open()
        self._out = []
        self._operator = WindowOperator(
            self._definition,
            self._contents,
            function,
            element_type,
            backend=ctx._backend,
            timers=ctx._timers,
            emit=self._emit,
            output=ctx.output,
            late=late,
        )
        # The target of the timers is the function and not the operator, so that it can return rows.
        ctx._timers.service(TIMERS, self, self._definition.assigner.window_serializer)

    def on_event_time(self, timer: Timer) -> Iterable[Any] | None:
        """Handle a timer of event time, and return the rows that its window yields."""
        self._operator.on_event_time(timer)
        return self._drain()

    def on_processing_time(self, timer: Timer) -> Iterable[Any] | None:
        """Handle a timer of processing time, and return the rows that its window yields."""
        self._operator.on_processing_time(timer)
        return self._drain()

    def close(self) -> None:
        """Close the function of the windows."""
        self._function.close()

    def _emit(self, rows: Iterable[Any]) -> None:
        self._out.extend(rows)

    def _drain(self) -> list[Any] | None:
        if not self._out:
            return None
        rows, self._out = self._out, []
        return rows


class WindowedFunction(WindowsOfKeys, KeyedProcessFunction):
    """Puts the rows of a key into windows and calls a function when they fire; made by `windowed`."""

    def __init__(
        self,
        definition: WindowDefinition,
        contents: WindowContents,
        function: ProcessWindowFunction,
        skipped: SkippedRows,
    ) -> None:
        definition.check_contents(contents)
        for state in declared_states(function):
            check_state_name(state.name)
        self.side_outputs = skipped.side_outputs
        self._definition = definition
        self._contents = contents
        self._function = function
        self._skipped = skipped
        self._schema: pa.Schema | None = None

    def for_rows(
        self, schema: pa.Schema, key_columns: Sequence[str], time_column: str | None
    ) -> WindowedFunction:
        bound = copy.copy(self)
        bound._schema = schema
        if isinstance(self._function, WindowRow):
            reduced = isinstance(self._contents, ReducedRows)
            bound._function = self._function.bound_to(schema, key_columns, reduced=reduced)
        return bound

    def states(self) -> list[StateDescriptor[Any]]:
        """Return the states that are known before there is a window: its contents, and the function's own."""
        assert self._schema is not None
        return [self._contents.descriptor(infer(self._schema)), *declared_states(self._function)]

    def open(self, ctx: Context) -> None:
        if self._schema is None:
            raise InvalidFunctionError(
                type(self).__name__,
                "it does not know the columns of its rows; declare windows with keyed(...).window(...)",
            )
        self._open_windows(ctx, infer(self._schema), partial(self._skipped.put_late, ctx))

    def process(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        try:
            self._operator.process(row, ctx.timestamp)
        except MissingTimestampError as error:
            self._skipped.put_timeless(ctx, row, error)
        return self._drain()


class WindowRow(ProcessWindowFunction):
    """Yields one row of a window: the key, the window's bounds, and its reduced or aggregated rows."""

    def __init__(self, definition: WindowDefinition) -> None:
        self._has_bounds = definition.has_bounds
        self._single_key = True
        self._places: list[int] | None = None

    def bound_to(self, schema: pa.Schema, key_columns: Sequence[str], *, reduced: bool) -> WindowRow:
        """Return the function for rows of these columns; of a reduced row it leaves the key columns out."""
        bound = copy.copy(self)
        bound._single_key = len(key_columns) == 1
        if reduced:
            bound._places = [place for place, name in enumerate(schema.names) if name not in key_columns]
        return bound

    def process(self, elements: Any, ctx: WindowContext) -> Iterable[Any]:
        key = (ctx.key,) if self._single_key else ctx.key
        bounds = window_bounds(ctx.window) if self._has_bounds else ()
        return ((*key, *bounds, *self._values(elements)),)

    def _values(self, elements: Any) -> Iterable[Any]:
        if self._places is not None:
            return [elements[place] for place in self._places]
        return elements if isinstance(elements, (tuple, list)) else (elements,)


def window_bounds(window: TimeWindow) -> tuple[dt.datetime | None, dt.datetime | None]:
    """Return a window's start and end in UTC; None for what is outside the years 1 to 9999."""
    return datetime_of(window.start), datetime_of(window.end)
