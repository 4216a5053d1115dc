"""How users declare interval joins: ``interval_join("-1 hour", "2 hours").process(function)``.

``connect(a, b).interval_join(...)`` has the same methods and gives a DataFrame where this gives a function of
two inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from keyedstate.durations import Duration, milliseconds
from keyedstate.errors import InvalidJoinError, SideOutputNameError, forgotten_call
from keyedstate.joins.function import (
    LATE_LEFT,
    LATE_RIGHT,
    MISSING_LEFT,
    MISSING_RIGHT,
    IntervalJoinFunction,
    JoinedRow,
    ProcessJoinFunction,
)
from keyedstate.runtime.event_time import MISSING
from keyedstate.runtime.function_builder import FunctionBuilder
from keyedstate.runtime.function_checks import check_methods

T = TypeVar("T")

#: A time and a bound have a sum that is a time.
_LARGEST_BOUND_MS = 2**62


@dataclass(frozen=True)
class JoinOutput:
    """Which columns a join puts out.

    Attributes
    ----------
    schema : object
        The declared columns; None for those of `keyedstate.joins.joined_columns`.
    """

    schema: object


class IntervalJoin(FunctionBuilder, Generic[T]):
    """Two inputs that are joined by their event times; made by `interval_join`.

    Each method returns another one, the last ones what is made.

    Parameters
    ----------
    lower, upper : str, timedelta or int
    lower_exclusive, upper_exclusive : bool
    missing : {"fail", "drop", "side output"}
    finish : callable
        Makes what the user gets of a function and what it puts out.

    Raises
    ------
    InvalidJoinError, InvalidDurationError
    """

    _error = InvalidJoinError

    def __init__(
        self,
        lower: Duration,
        upper: Duration,
        *,
        lower_exclusive: bool,
        upper_exclusive: bool,
        missing: str,
        finish: Callable[[IntervalJoinFunction, JoinOutput], T],
    ) -> None:
        super().__init__(missing)
        # Whole milliseconds: what is open at a bound is closed one further in.
        self._lower_ms = milliseconds(lower) + bool(lower_exclusive)
        self._upper_ms = milliseconds(upper) - bool(upper_exclusive)
        interval = f"the interval from {lower!r} to {upper!r}"
        if milliseconds(lower) > milliseconds(upper):
            raise InvalidJoinError(interval, "it ends before it begins", "Give the lower bound first.")
        if self._lower_ms > self._upper_ms:
            raise InvalidJoinError(
                interval, "it is empty without its bounds", "Let it include one of them, or both."
            )
        if max(abs(self._lower_ms), abs(self._upper_ms)) > _LARGEST_BOUND_MS:
            raise InvalidJoinError(interval, "no two times are so far apart", "Give nearer bounds.")
        self._finish = finish
        if self._missing == MISSING:
            self._sides = {MISSING_LEFT: None, MISSING_RIGHT: None}

    def side_output_late_data(self) -> IntervalJoin[T]:
        """Put rows that come too late to be joined out to the side outputs ``late_left`` and ``late_right``.

        Rows are late whose time is before the watermark.  Without this they are dropped.
        """
        return self._changed(_sides={**self._sides, LATE_LEFT: None, LATE_RIGHT: None})

    def side_output(self, name: str, schema: object) -> IntervalJoin[T]:
        """Declare a side output, for `JoinContext.output`.

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
            Where its columns are not said.
        """
        if name in IntervalJoinFunction.side_inputs:
            raise SideOutputNameError(name, "another output has that name")
        if schema is None:
            raise InvalidJoinError(
                f"the side output {name!r}", "its columns are missing", "Give them, as in 'id long'."
            )
        return self._with_side_output(name, schema)

    def process(self, function: ProcessJoinFunction, schema: object = None) -> T:
        """Call a function with each pair of rows that is joined.

        Parameters
        ----------
        function : ProcessJoinFunction
        schema : str or StructType
            The columns of what it yields; the harness is told them itself.

        Raises
        ------
        InvalidJoinError
        """
        if not isinstance(function, ProcessJoinFunction):
            raise InvalidJoinError(
                "process()",
                f"its function is {function!r}{forgotten_call(function)}",
                "Give an instance of a ProcessJoinFunction, or call join() for the columns of both rows.",
            )
        check_methods(
            function,
            (ProcessJoinFunction,),
            {"process": ("left", "right", "ctx")},
            {"open": (), "close": ()},
        )
        return self._made(function, schema)

    def join(self) -> T:
        """Put the columns of both rows out: the key, the others of the left one, the others of the right one.

        A name that is on both sides, or is one of the key, gets a prefix: ``left_time``, ``right_time``.
        """
        return self._made(JoinedRow(), None)

    def _made(self, function: ProcessJoinFunction, schema: object) -> T:
        made = IntervalJoinFunction(
            self._lower_ms,
            self._upper_ms,
            function,
            side_outputs=self._sides,
            missing=self._missing,
        )
        return self._finish(made, JoinOutput(schema))


def interval_join(
    lower: Duration,
    upper: Duration,
    *,
    lower_exclusive: bool = False,
    upper_exclusive: bool = False,
    missing: str = "fail",
) -> IntervalJoin[IntervalJoinFunction]:
    """Declare an interval join without Spark; what is made at the end is a function, for the harness.

    Rows of the first input, the left ones, are joined with those of the second input, the right ones, that
    have the same key and a time in ``[left time + lower, left time + upper]``: an inner join.

    Parameters
    ----------
    lower, upper : str, timedelta or int
        Relative to the time of the left row, either may be negative: ``"-1 hour"``, ``"30 minutes"``.
    lower_exclusive, upper_exclusive : bool, optional
        Whether a right row at exactly that bound is not joined.
    missing : {"fail", "drop", "side output"}, optional
        What is done with a row that has no event time.  The side outputs are named ``missing_left`` and
        ``missing_right``.

    Raises
    ------
    InvalidJoinError
        For an interval with nothing in it.
    InvalidDurationError
    """
    return IntervalJoin(
        lower,
        upper,
        lower_exclusive=lower_exclusive,
        upper_exclusive=upper_exclusive,
        missing=missing,
        finish=lambda function, output: function,
    )
