"""Windows as a process function: rows go into windows, and what these give comes out as rows."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from keyedstate.errors import InvalidFunctionError, MissingTimestampError
from keyedstate.runtime.event_time import DROP, FAIL, LATE, MISSING, TIMELESS
from keyedstate.runtime.function import Context, KeyedProcessFunction
from keyedstate.state import StateDescriptor
from keyedstate.state.kinds.accessor import declared_states
from keyedstate.time import Timer
from keyedstate.types import TIME_WINDOW, TimeWindow, infer
from keyedstate.windows.declaration.contents import ReducedRows, WindowContents
from keyedstate.windows.declaration.definition import WindowDefinition
from keyedstate.windows.declaration.function import ProcessWindowFunction, WindowContext
from keyedstate.windows.row.operator import TIMERS, WindowOperator, check_state_name

#: The columns of a window's start and end.
WINDOW_START = "window_start"
WINDOW_END = "window_end"
_1970 = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


class WindowedFunction(KeyedProcessFunction):
    """Puts the rows of a key into windows and calls a function when they fire; made by `windowed`."""

    def __init__(
        self,
        definition: WindowDefinition,
        contents: WindowContents,
        function: ProcessWindowFunction,
        *,
        side_outputs: Mapping[str, Any],
        late: str | None,
        missing: str,
    ) -> None:
        definition.check_contents(contents)
        for state in declared_states(function):
            check_state_name(state.name)
        self.definition = definition
        self.side_outputs = side_outputs
        self._contents = contents
        self._function = function
        self._late_output = late
        self._missing = missing
        self._schema: pa.Schema | None = None
        self._out: list[Any] = []

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
        function = self._function
        for descriptor in declared_states(function):
            descriptor.bind(function, ctx.state(descriptor))
        function.open()
        self._out = []
        self._set_aside = ctx._set_aside
        self._operator = WindowOperator(
            self.definition,
            self._contents,
            function,
            infer(self._schema),
            backend=ctx._backend,
            timers=ctx._timers,
            emit=self._emit,
            output=ctx.output,
            late=self._late,
        )
        # What the timers of windows give is to be put out.
        ctx._timers.service(TIMERS, self, self.definition.assigner.window_serializer)

    def process(self, row: Any, ctx: Context) -> Iterable[Any]:
        try:
            self._operator.process(row, ctx.timestamp)
        except MissingTimestampError:
            if self._missing == FAIL:
                raise
            self._set_aside(None if self._missing == DROP else MISSING, TIMELESS, row)
        return self._taken()

    def on_event_time(self, timer: Timer) -> Iterable[Any]:
        """Return what a window gives at a time of event time."""
        self._operator.on_event_time(timer)
        return self._taken()

    def on_processing_time(self, timer: Timer) -> Iterable[Any]:
        """Return what a window gives at a time of the clock."""
        self._operator.on_processing_time(timer)
        return self._taken()

    def close(self) -> None:
        self._function.close()

    # -- output -------------------------------------------------------------------------------------------

    def _taken(self) -> list[Any]:
        taken, self._out = self._out, []
        return taken

    def _emit(self, rows: Iterable[Any]) -> None:
        self._out.extend(rows)

    def _late(self, row: Any) -> None:
        self._set_aside(self._late_output, LATE, row)


class WindowRow(ProcessWindowFunction):
    """Gives one row of a window: the key, the window's bounds, and what has become of its rows.

    Parameters
    ----------
    definition : WindowDefinition
    """

    def __init__(self, definition: WindowDefinition) -> None:
        self._bounded = has_bounds(definition)
        self._single_key = True
        self._places: list[int] | None = None

    def bound_to(self, schema: pa.Schema, key_columns: Sequence[str], *, reduced: bool) -> WindowRow:
        """Return the function for rows of these columns; a reduced one gives its columns beside the key's."""
        bound = copy.copy(self)
        bound._single_key = len(key_columns) == 1
        if reduced:
            bound._places = [place for place, name in enumerate(schema.names) if name not in key_columns]
        return bound

    def process(self, elements: Any, ctx: WindowContext) -> Iterable[Any]:
        key = (ctx.key,) if self._single_key else ctx.key
        bounds = window_bounds(ctx.window) if self._bounded else ()
        if self._places is not None:
            values: tuple[Any, ...] = tuple([elements[place] for place in self._places])
        else:
            values = tuple(elements) if isinstance(elements, (tuple, list)) else (elements,)
        return ((*key, *bounds, *values),)


def has_bounds(definition: WindowDefinition) -> bool:
    """Return whether windows have a start and an end, so that there are columns of these."""
    return bool(definition.assigner.window_serializer == TIME_WINDOW)


def window_bounds(window: TimeWindow) -> tuple[dt.datetime | None, dt.datetime | None]:
    """Return a window's start and end in UTC; None for what is outside the years 1 to 9999."""
    return _datetime(window.start), _datetime(window.end)


def _datetime(time: int) -> dt.datetime | None:
    try:
        return _1970 + dt.timedelta(milliseconds=time)
    except OverflowError:
        return None
