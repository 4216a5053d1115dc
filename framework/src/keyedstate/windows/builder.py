"""How users declare windows: ``windowed(Tumbling.of("1 hour")).allowed_lateness("10 min").reduce(f)``.

``keyed(df, "k").window(...)`` has the same methods and gives a DataFrame where this gives a process function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from keyedstate.aggregates import Aggregate
from keyedstate.aggregates.declaration import all_aggregates, require_aggregate
from keyedstate.durations import Duration
from keyedstate.errors import InvalidAggregateError, InvalidWindowError, forgotten_call
from keyedstate.runtime.event_time import MISSING
from keyedstate.runtime.function import KeyedFunction
from keyedstate.runtime.function_builder import FunctionBuilder
from keyedstate.runtime.function_checks import check_methods
from keyedstate.state import AggregateFunction
from keyedstate.types import TypeSerializer
from keyedstate.windows.columnar.aggregation import DeclaredAggregation
from keyedstate.windows.declaration.assigners import WindowAssigner
from keyedstate.windows.declaration.contents import AggregatedRows, AllRows, ReducedRows, WindowContents
from keyedstate.windows.declaration.definition import WindowDefinition
from keyedstate.windows.declaration.evictors import Evictor
from keyedstate.windows.declaration.function import ProcessWindowFunction
from keyedstate.windows.declaration.triggers import Trigger
from keyedstate.windows.row.process_function import WindowedFunction, WindowRow, has_bounds

T = TypeVar("T")


@dataclass(frozen=True)
class WindowOutput:
    """Which columns a windowed function puts out.

    Attributes
    ----------
    schema : object
        The declared columns; None for those of the input that are no key.  A function takes the Arrow schema
        of the input and the key columns and returns Arrow's fields.
    with_window : bool
        Whether the key columns, and the window's start and end where `bounded`, come before these.
    bounded : bool
    """

    schema: object
    with_window: bool
    bounded: bool


class Windowed(FunctionBuilder, Generic[T]):
    """Rows of a key that are put into windows; each method returns another one, the last ones what is made.

    Parameters
    ----------
    definition : WindowDefinition
    missing : {"fail", "drop", "side output"}
        What is done with a row that has no event time, where its windows need one.
    finish : callable
        Makes what the user gets of a function and what it puts out.
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
        """Fire when a trigger says so, and not as is usual for the windows.

        Raises
        ------
        InvalidWindowError
            For one that cannot merge what it remembers, where windows merge.
        """
        return self._changed(_definition=self._definition.with_trigger(trigger))

    def evictor(self, evictor: Evictor[Any]) -> Windowed[T]:
        """Let an evictor leave rows of a window out; all rows of a window are kept then.

        Raises
        ------
        InvalidWindowError
        """
        return self._changed(_definition=self._definition.with_evictor(evictor))

    def allowed_lateness(self, lateness: Duration) -> Windowed[T]:
        """Keep windows for a while after their end, and fire them again for rows that come late.

        Raises
        ------
        InvalidWindowError
            For a negative one, and for windows by the clock.
        InvalidDurationError
        """
        return self._changed(_definition=self._definition.with_allowed_lateness(lateness))

    def side_output_late_data(self, name: str = "late") -> Windowed[T]:
        """Put rows that come too late for all of their windows out to a side output, with all their columns.

        Raises
        ------
        InvalidWindowError
            For windows by the clock.
        SideOutputNameError
            For a name that another output has.
        """
        self._definition.refuse_processing_time("a side output of late rows")
        return self.side_output(name, None)._changed(_late=name)

    def side_output(self, name: str, schema: object) -> Windowed[T]:
        """Declare a side output, for `keyedstate.windows.declaration.function.WindowContext.output`.

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

    # -- what is made of a window -------------------------------------------------------------------------

    def process(self, function: ProcessWindowFunction, schema: object = None) -> T:
        """Call a function with all rows of a window.

        Parameters
        ----------
        function : ProcessWindowFunction
        schema : str or StructType
            The columns of what it yields; the harness is told them itself.

        Raises
        ------
        InvalidWindowError
        """
        return self._made(AllRows(), _checked("process()", function), schema, with_window=False)

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
            Called with the reduced row.  Without it the key, the window's start and end and the other columns
            of the reduced row come out.
        schema : str or StructType, optional
            The columns of what the function yields.

        Raises
        ------
        InvalidWindowError
        """
        return self._reduced(ReducedRows(reduce), "reduce()", function, schema)

    def aggregate(
        self, aggregates: Mapping[str, Aggregate] = MappingProxyType({}), /, **named: Aggregate
    ) -> T:
        """Compute declared aggregates of the rows of a window: ``aggregate(n=count(), late=mean("delay"))``.

        The key, the window's start and end and the aggregates come out.  Tumbling and sliding windows, and
        sessions of a fixed gap, in event time that fire at their end are computed by columns; others keep
        their rows until they fire.

        Parameters
        ----------
        aggregates : mapping, optional
            Aggregates by the names of their output columns, for names that are no Python identifiers.
        named : Aggregate
            Aggregates by the names of their output columns.  See `keyedstate.aggregates`.

        Raises
        ------
        InvalidAggregateError
        """
        chosen = all_aggregates(aggregates, named)
        if not chosen:
            raise InvalidAggregateError(None, "there is none; name at least one, as in aggregate(n=count())")
        for name, aggregate in chosen.items():
            require_aggregate(name, aggregate)
        made = DeclaredAggregation(self._definition, chosen, self._sides, self._late, self._missing)
        return self._finish(made, self._output(made.result_fields, True))

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
            The columns of the result, which is one value or a tuple; of what the function yields, if any.
        function : ProcessWindowFunction, optional
            Called with the result.  Without it the key, the window's start and end and the result come out.

        Raises
        ------
        InvalidWindowError
            Also where windows merge and the aggregate function has no ``merge``.
        """
        return self._reduced(
            AggregatedRows(aggregate, accumulator_type), "aggregate_with()", function, schema
        )

    def _reduced(
        self, contents: WindowContents, method: str, function: ProcessWindowFunction | None, schema: object
    ) -> T:
        if function is None:
            return self._made(contents, WindowRow(self._definition), schema, with_window=True)
        return self._made(contents, _checked(method, function), schema, with_window=False)

    def _made(
        self,
        contents: WindowContents,
        function: ProcessWindowFunction,
        schema: object,
        *,
        with_window: bool,
    ) -> T:
        made = WindowedFunction(
            self._definition,
            contents,
            function,
            side_outputs=self._sides,
            late=self._late,
            missing=self._missing,
        )
        return self._finish(made, self._output(schema, with_window))

    def _output(self, schema: object, with_window: bool) -> WindowOutput:
        return WindowOutput(schema, with_window, has_bounds(self._definition))


def windowed(assigner: WindowAssigner[Any], *, missing: str = "fail") -> Windowed[Any]:
    """Declare windows without Spark; what is made at the end is a process function, for the harness.

    Parameters
    ----------
    assigner : WindowAssigner
    missing : {"fail", "drop", "side output"}, optional
        What is done with a row that has no event time, where its windows need one.  The side output is named
        ``missing``.

    Raises
    ------
    InvalidWindowError
    """
    return Windowed(WindowDefinition.of(assigner), missing, lambda function, output: function)


def _checked(method: str, function: object) -> ProcessWindowFunction:
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
    return function
