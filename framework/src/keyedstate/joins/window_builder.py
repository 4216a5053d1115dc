"""How users declare windows of two inputs: ``connect(a, b).window(Tumbling.of("1 hour")).join("left")``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from keyedstate.durations import Duration
from keyedstate.errors import InvalidJoinError, InvalidWindowError, forgotten_call
from keyedstate.joins.columns import JoinType
from keyedstate.joins.join_function import (
    LATE_LEFT,
    LATE_RIGHT,
    MISSING_LEFT,
    MISSING_RIGHT,
    JoinFunction,
    check_side_output,
)
from keyedstate.joins.windowed import CoGroupFunction, WindowedJoinFunction
from keyedstate.runtime.event_time import MISSING
from keyedstate.runtime.functions.builder import FunctionBuilder
from keyedstate.runtime.functions.checks import check_methods
from keyedstate.windows import Evictor, Trigger, WindowAssigner
from keyedstate.windows.declaration.definition import WindowDefinition

T = TypeVar("T")


class WindowedInputs(FunctionBuilder, Generic[T]):
    """The windows of the rows of two inputs with one key; made by `windowed`.

    The methods up to `side_output` return another builder, the others the result of `finish`, which takes the
    function and the declared schema of its rows, None for those of a join.  Functions of assigners, triggers
    and evictors get a pair of a left and a right row, one of which is None.
    """

    _error = InvalidWindowError

    def __init__(
        self, definition: WindowDefinition, missing: str, finish: Callable[[JoinFunction, object], T]
    ) -> None:
        super().__init__(missing)
        self._definition = definition
        self._finish = finish
        if self._missing == MISSING:
            definition.refuse_processing_time("missing='side output'")
            self._sides = {MISSING_LEFT: None, MISSING_RIGHT: None}

    def trigger(self, trigger: Trigger[Any]) -> WindowedInputs[T]:
        """Replace the default trigger of the windows; where windows merge, it must merge too."""
        return self._changed(_definition=self._definition.with_trigger(trigger))

    def evictor(self, evictor: Evictor[Any]) -> WindowedInputs[T]:
        """Let an evictor leave rows of a window out."""
        return self._changed(_definition=self._definition.with_evictor(evictor))

    def allowed_lateness(self, lateness: Duration) -> WindowedInputs[T]:
        """Keep windows in event time for a while after their end, and fire them again for late rows."""
        return self._changed(_definition=self._definition.with_allowed_lateness(lateness))

    def side_output_late_data(self) -> WindowedInputs[T]:
        """Emit rows that are too late for all of their windows to ``late_left`` and ``late_right``.

        Without this they are dropped.
        """
        self._definition.refuse_processing_time("a side output of late rows")
        return self._changed(_sides={**self._sides, LATE_LEFT: None, LATE_RIGHT: None})

    def side_output(self, name: str, schema: object) -> WindowedInputs[T]:
        """Declare a side output, for `output` of the context of a `CoGroupFunction`.

        Parameters
        ----------
        name : str
        schema : str or StructType
            Its columns.

        Raises
        ------
        SideOutputNameError
            For a name that another output has.
        InvalidJoinError
            Without a schema.
        """
        check_side_output(name, schema)
        return self._with_side_output(name, schema)

    def join(self, how: str = "inner") -> T:
        """Join the rows of each window when it fires.

        Parameters
        ----------
        how : {"inner", "left", "right", "full", "semi", "anti"}, optional
            "left", "right" and "full" emit rows whose window has no row of the other side, with nulls for
            that side.  "semi" and "anti" emit the left rows of windows with, or without, right rows.

        Returns
        -------
        DataFrame or ResultStream
            The key, the window's start and end, the other columns of the left row, those of the right row.
            Semi and anti joins have no columns of the right row.

        Raises
        ------
        InvalidJoinError, InvalidWindowError
        """
        return self._made(None, how=JoinType.of(how))

    def cogroup(self, function: CoGroupFunction, schema: object = None) -> T:
        """Call a function with all rows of both inputs in a window.

        Parameters
        ----------
        function : CoGroupFunction
        schema : str or StructType
            The columns of its rows; a test harness has its own parameter for them.

        Raises
        ------
        InvalidJoinError, InvalidFunctionError, InvalidWindowError
        """
        if not isinstance(function, CoGroupFunction):
            raise InvalidJoinError(
                "cogroup()",
                f"its function is {function!r}{forgotten_call(function)}",
                "Give an instance of a CoGroupFunction, or call join() for the columns of both rows.",
            )
        check_methods(
            function,
            (CoGroupFunction,),
            {"process": ("left", "right", "ctx")},
            {"open": (), "clear": ("ctx",), "close": ()},
        )
        return self._made(schema, function=function)

    def _made(
        self, schema: object, *, how: JoinType | None = None, function: CoGroupFunction | None = None
    ) -> T:
        made = WindowedJoinFunction(self._definition, self._sides, self._missing, how=how, function=function)
        return self._finish(made, schema)


def windowed(assigner: WindowAssigner[Any], *, missing: str = "fail") -> WindowedInputs[JoinFunction]:
    """Declare windows of two inputs without Spark; the result is a function, for a test harness.

    Parameters
    ----------
    assigner : WindowAssigner
    missing : {"fail", "drop", "side output"}, optional
        What is done with a row that has no event time, where its windows need one.  The side outputs are
        named ``missing_left`` and ``missing_right``.

    Raises
    ------
    InvalidWindowError
    """
    return WindowedInputs(WindowDefinition.of(assigner), missing, lambda function, schema: function)
