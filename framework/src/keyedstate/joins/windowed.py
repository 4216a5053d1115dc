"""Windows of two inputs as a function: their rows share windows, and meet when these fire.

An element of a window is a pair of a left and a right row, one of which is None (Flink's ``TaggedUnion``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from keyedstate.errors import MissingTimestampError
from keyedstate.joins.columns import (
    Fold,
    JoinedColumn,
    JoinedRows,
    JoinType,
    WindowColumn,
    has_null,
    joined_columns,
)
from keyedstate.joins.join_function import JoinFunction
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs
from keyedstate.runtime.functions.keyed import Context
from keyedstate.state import StateDescriptor
from keyedstate.state.kinds.accessor import declared_states
from keyedstate.types import TypeSerializer, nullable, tuple_of
from keyedstate.windows import WINDOW_END, WINDOW_START, ProcessWindowFunction
from keyedstate.windows.declaration.contents import AllRows
from keyedstate.windows.declaration.contexts import WindowContext
from keyedstate.windows.declaration.definition import WindowDefinition
from keyedstate.windows.row.operator import check_state_name
from keyedstate.windows.row.process_function import WindowsOfKeys, window_bounds


class CoGroupFunction:
    """Reads the rows of both inputs in one window when it fires (Flink's ``CoGroupFunction``).

    States that are declared as class attributes belong to the key, as `WindowContext.global_state` does.  One
    object serves many keys and windows, so keep nothing of them on ``self``.
    """

    def process(self, left: list[Any], right: list[Any], ctx: WindowContext) -> Iterable[Any] | None:
        """Handle the rows of a window; called at every firing.

        Parameters
        ----------
        left, right : list of tuple
            The rows of the first and of the second input, in the order in which they came.  One may be empty.
        ctx : WindowContext

        Returns
        -------
        iterable of rows, or None
            Usually a generator.
        """
        raise NotImplementedError

    def open(self) -> None:
        """Prepare; called once before the first row. Declared states are bound already."""

    def clear(self, ctx: WindowContext) -> None:
        """Remove per-window state; called when the window is removed."""

    def close(self) -> None:
        """Clean up; called once after the last row and after an error."""


class _CoGrouped(ProcessWindowFunction):
    """Calls the user's function with the rows of each side."""

    def __init__(self, function: CoGroupFunction) -> None:
        self._function = function

    def process(self, elements: Any, ctx: WindowContext) -> Iterable[Any] | None:
        return self._function.process(*_sides(elements), ctx)

    def open(self) -> None:
        self._function.open()

    def clear(self, ctx: WindowContext) -> None:
        self._function.clear(ctx)

    def close(self) -> None:
        self._function.close()


class _JoinedWindow(ProcessWindowFunction):
    """Yields the joined rows of a window."""

    def __init__(self, how: JoinType, inputs: ConnectedInputs, *, with_bounds: bool) -> None:
        self._how = how
        self._rows = JoinedRows(inputs)
        self._with_bounds = with_bounds
        self._keys = len(inputs.first.key_columns)

    def process(self, elements: Any, ctx: WindowContext) -> Iterable[Any]:
        rows = self._joined(*_sides(elements), ctx.key)
        if not self._with_bounds:
            return rows
        bounds, keys = window_bounds(ctx.window), self._keys
        return [row[:keys] + bounds + row[keys:] for row in rows]

    def _joined(self, left: list[Any], right: list[Any], key: Any) -> list[Any]:
        how, rows = self._how, self._rows
        if left and right and not has_null(key, compound=self._keys > 1):
            of_left = list(map(rows.of_left, left))
            if how.of_pairs:
                of_right = list(map(rows.of_right, right))
                return [one + other for one in of_left for other in of_right]
            return of_left if how is JoinType.SEMI else []
        keeps_left, keeps_right = how.keeps
        if not how.of_pairs:
            return list(map(rows.of_left, left)) if keeps_left else []
        alone = [rows.alone(row, of_right=False) for row in left] if keeps_left else []
        return alone + [rows.alone(row, of_right=True) for row in right] if keeps_right else alone


def _sides(elements: Iterable[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    left: list[Any] = []
    right: list[Any] = []
    for one, other in elements:
        if one is None:
            right.append(other)
        else:
            left.append(one)
    return left, right


class WindowedJoinFunction(WindowsOfKeys, JoinFunction):
    """Puts the rows of two inputs into the windows of their key; made by `keyedstate.joins.windowed`.

    `how` is the type of the join, or `function` what is called with the rows of a window.
    """

    _declared_by = "window()"

    def __init__(
        self,
        definition: WindowDefinition,
        side_outputs: Mapping[str, Any],
        missing: str,
        *,
        how: JoinType | None = None,
        function: CoGroupFunction | None = None,
    ) -> None:
        super().__init__(side_outputs, missing)
        self._definition = definition
        self._contents = AllRows()
        self._how = how
        self._grouping = function
        for state in [] if function is None else declared_states(function):
            check_state_name(state.name)

    def for_inputs(self, inputs: ConnectedInputs) -> WindowedJoinFunction:
        """Return the function for rows of these columns.

        Raises
        ------
        InvalidWindowError
            For windows in event time over rows without one.
        """
        self._definition.check_event_time(known=inputs.have_event_time)
        bound = self._bound(inputs)
        if self._how is not None:
            with_bounds = self._definition.has_bounds
            bound._function = _JoinedWindow(self._how, inputs, with_bounds=with_bounds)
        return bound

    def output_columns(self, inputs: ConnectedInputs, fold: Fold) -> list[JoinedColumn | WindowColumn] | None:
        if self._how is None:
            return None
        bounds = [WINDOW_START, WINDOW_END] if self._definition.has_bounds else []
        columns = joined_columns(inputs, fold, self._how, bounds)
        keys = len(inputs.first.key_columns)
        return [*columns[:keys], *map(WindowColumn, bounds), *columns[keys:]]

    def _element_type(self) -> TypeSerializer[Any]:
        return tuple_of(*(nullable(type_) for _, type_ in self._row_types()))

    def states(self) -> list[StateDescriptor[Any]]:
        """Return the states that are known before there is a window: its contents, and the function's own."""
        of_function = [] if self._grouping is None else declared_states(self._grouping)
        return [self._contents.descriptor(self._element_type()), *of_function]

    def open(self, ctx: Context) -> None:
        element_type = self._element_type()
        if self._grouping is not None:
            for descriptor in declared_states(self._grouping):
                descriptor.bind(self._grouping, ctx.state(descriptor))
            self._function = _CoGrouped(self._grouping)

        def late(element: tuple[Any, Any]) -> None:
            left, right = element
            of_right = left is None
            self._set_late_aside(right if of_right else left, ctx, of_right)

        self._open_windows(ctx, element_type, late)

    def process1(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        return self._add(row, (row, None), ctx, of_right=False)

    def process2(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        return self._add(row, (None, row), ctx, of_right=True)

    def _add(
        self, row: Any, element: tuple[Any, Any], ctx: Context, *, of_right: bool
    ) -> Iterable[Any] | None:
        # A function may want the rows of a null key, and a join those of a side that it keeps.
        if self._how is not None and not self._how.keeps[of_right] and self._has_null_key(ctx):
            return None
        try:
            self._operator.process(element, ctx.timestamp)
        except MissingTimestampError:
            self._time_of(row, ctx, of_right)
            return None
        return self._drain()
