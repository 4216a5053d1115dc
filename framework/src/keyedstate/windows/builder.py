"""How users declare windows: ``windowed(Tumbling.of("1 hour")).allowed_lateness("10 min").reduce(f)``.

``keyed(df, "k").window(...)`` has the same methods and returns a DataFrame where this returns a process
function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from keyedstate.aggregates import Aggregate
from keyedstate.aggregates.declaration import all_aggregates
from keyedstate.durations import Duration
from keyedstate.errors import InvalidWindowError, forgotten_call
from keyedstate.runtime.event_time import MISSING
from keyedstate.runtime.functions.builder import FunctionBuilder
from keyedstate.runtime.functions.checks import check_methods
from keyedstate.runtime.functions.keyed import KeyedFunction
from keyedstate.state import AggregateFunction
from keyedstate.types import TypeSerializer
from keyedstate.windows.columnar.aggregation import DeclaredAggregation
from keyedstate.windows.declaration.assigners import WindowAssigner
from keyedstate.windows.declaration.contents import AggregatedRows, AllRows, ReducedRows, WindowContents
from keyedstate.windows.declaration.definition import WindowDefinition
from keyedstate.windows.declaration.evictors import Evictor
from keyedstate.windows.declaration.function import ProcessWindowFunction
from keyedstate.windows.declaration.skipped_rows import SkippedRows
from keyedstate.windows.declaration.triggers import Trigger
from keyedstate.windows.row.process_function import WindowedFunction, WindowRow

T = TypeVar("T")


@dataclass(frozen=True)
class WindowOutput:
    """The output columns of a windowed function."""

    #: The declared columns; None for those of the input that are no key.  Or a function that takes the Arrow
    #: schema of the input and the key columns and returns Arrow fields.
    schema: object
    #: Whether the key columns, and the window's start and end where `bounded`, come before these.
    with_window: bool
    bounded: bool


class Windowed(FunctionBuilder, Generic[T]):
    """The windows of the rows of a key.

    The methods up to `side_output` return another builder, the others the result of `finish`, which takes the
    function and its output columns. They raise `InvalidWindowError` for what cannot be used. `missing` is
    that of `windowed`.
    """

    _error = InvalidWindowError

    def __init__(
        self,
        definition: WindowDefinition,
        missing: str,
        finish: Callable[[KeyedFunction, WindowOutput], T],
    ) -> None:
        super().__init__(missing)
        self._definition = definition
        self._finish = finish
        self._late: str | None = None
        if self._missing == MISSING:
            definition.refuse_processing_time("missing='side output'")
            self._sides[MISSING] = None

    def trigger(self, trigger: Trigger[Any]) -> Windowed[T]:
        """Replace the default trigger of the windows; where windows merge, it must merge too."""
        return self._changed(_definition=self._definition.with_trigger(trigger))

    def evictor(self, evictor: Evictor[Any]) -> Windowed[T]:
        """Let an evictor leave rows of a window out; windows keep all of their rows then."""
        return self._changed(_definition=self._definition.with_evictor(evictor))

    def allowed_lateness(self, lateness: Duration) -> Windowed[T]:
        """Keep windows in event time for a while after their end, and fire them again for late rows."""
        return self._changed(_definition=self._definition.with_allowed_lateness(lateness))

    def side_output_late_data(self, name: str = "late") -> Windowed[T]:
        """Emit rows that are too late for all of their windows to a side output, with all their columns.

        Raises `SideOutputNameError` for a name that another output has.
        """
        self._definition.refuse_processing_time("a side output of late rows")
        return self.side_output(name, None)._changed(_late=name)

    def side_output(self, name: str, schema: object) -> Windowed[T]:
        """Declare a side output, for `keyedstate.windows.declaration.contexts.WindowContext.output`.

        Parameters
        ----------
        name : str
        schema : str or StructType
            Its columns; None for those of the input.

        Raises
        ------
        SideOutputNameError
            For a name that another output has.
        """
        return self._with_side_output(name, schema)

    # -- the result of a window ---------------------------------------------------------------------------

    def process(self, function: ProcessWindowFunction, schema: object = None) -> T:
        """Call a function with all rows of a window.

        Parameters
        ----------
        function : ProcessWindowFunction
        schema : str or StructType
            The columns of its rows; a test harness has its own parameter for them.
        """
        _check_function("process()", function)
        return self._applied(AllRows(), "process()", function, schema)

    def reduce(
        self,
        reduce: Callable[[Any, Any], Any],
        function: ProcessWindowFunction | None = None,
        schema: object = None,
    ) -> T:
        """Reduce the rows of a window to one as they come.

        Parameters
        ----------
        reduce : callable
            Returns two rows as one, for example ``lambda a, b: a._replace(n=a.n + b.n)``.
        function : ProcessWindowFunction, optional
            Called with the reduced row.  Without it the output is the key, the window's start and end and the
            other columns of the reduced row.
        schema : str or StructType, optional
            The columns of the function's rows.
        """
        return self._applied(ReducedRows(reduce), "reduce()", function, schema)

    def aggregate(
        self, aggregates: Mapping[str, Aggregate] = MappingProxyType({}), /, **named: Aggregate
    ) -> T:
        """Compute declared aggregates of the rows of a window: ``aggregate(n=count(), late=mean("delay"))``.

        The output is the key, the window's start and end and the aggregates.  Tumbling and sliding windows,
        and sessions of a fixed gap, in event time that fire at their end are computed by columns; others keep
        their rows until they fire.

        Parameters
        ----------
        aggregates : mapping, optional
            As `named`, for names that are no Python identifiers.
        named : Aggregate
            Aggregates of `keyedstate.aggregates` by the names of their output columns.
        """
        chosen = all_aggregates(aggregates, named)
        aggregation = DeclaredAggregation(self._definition, chosen, self._skipped_rows())
        return self._finish(aggregation, self._output(aggregation.result_fields, True))

    def aggregate_with(
        self,
        aggregate: AggregateFunction[Any, Any, Any],
        accumulator_type: TypeSerializer[Any],
        schema: object = None,
        function: ProcessWindowFunction | None = None,
    ) -> T:
        """Add the rows of a window to an accumulator as they come.

        Parameters
        ----------
        aggregate : AggregateFunction
        accumulator_type : TypeSerializer
        schema : str or StructType
            The columns of the result, which is one value or a tuple; with a function, those of its rows.
        function : ProcessWindowFunction, optional
            Called with the result.  Without it the output is the key, the window's start and end and the
            result.

        Raises
        ------
        InvalidWindowError
            Also where windows merge and the aggregate function has no ``merge``.
        """
        contents = AggregatedRows(aggregate, accumulator_type)
        return self._applied(contents, "aggregate_with()", function, schema)

    def _applied(
        self, contents: WindowContents, method: str, function: ProcessWindowFunction | None, schema: object
    ) -> T:
        """Finish with a function of a window's contents; None for one row of them."""
        output = self._output(schema, with_window=function is None)
        if function is None:
            function = WindowRow(self._definition)
        else:
            _check_function(method, function)
        windowed = WindowedFunction(self._definition, contents, function, self._skipped_rows())
        return self._finish(windowed, output)

    def _skipped_rows(self) -> SkippedRows:
        return SkippedRows(self._sides, self._late, self._missing)

    def _output(self, schema: object, with_window: bool) -> WindowOutput:
        return WindowOutput(schema, with_window, self._definition.has_bounds)


def windowed(assigner: WindowAssigner[Any], *, missing: str = "fail") -> Windowed[Any]:
    """Declare windows without Spark; the result is a process function, for a test harness.

    Parameters
    ----------
    assigner : WindowAssigner
    missing : {"fail", "drop", "side output"}, optional
        What is done with a row that has no event time, where its windows need one.  The side output is named
        ``missing``.
    """
    return Windowed(WindowDefinition.of(assigner), missing, lambda function, output: function)


def _check_function(method: str, function: object) -> None:
    if not isinstance(function, ProcessWindowFunction):
        raise InvalidWindowError(
            method,
            f"its function is {function!r}{forgotten_call(function)}",
            "Give an instance of a ProcessWindowFunction.",
        )
    check_methods(
        function,
        (ProcessWindowFunction,),
        {"process": ("elements", "ctx")},
        {"open": (), "clear": ("ctx",), "close": ()},
    )
