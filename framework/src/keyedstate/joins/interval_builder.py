"""How users declare interval joins: ``interval_join("-1 hour", "2 hours").process(function)``.

``connect(a, b).interval_join(...)`` has the same methods and returns a DataFrame where this returns a
function of two inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from keyedstate.durations import Duration
from keyedstate.errors import InvalidJoinError, forgotten_call
from keyedstate.joins.bounds import Bound, Interval
from keyedstate.joins.interval import IntervalJoinFunction, JoinedRow, ProcessJoinFunction
from keyedstate.joins.join_function import (
    LATE_LEFT,
    LATE_RIGHT,
    MISSING_LEFT,
    MISSING_RIGHT,
    check_side_output,
)
from keyedstate.runtime.event_time import MISSING
from keyedstate.runtime.functions.builder import FunctionBuilder
from keyedstate.runtime.functions.checks import check_methods

T = TypeVar("T")


class IntervalJoin(FunctionBuilder, Generic[T]):
    """A join of two inputs by their event times; made by `interval_join`.

    The side output methods return another builder, `process` and `join` the result of `finish`.

    Parameters
    ----------
    lower, upper, lower_exclusive, upper_exclusive, lookback, missing
        As in `interval_join`.
    finish : callable
        Takes the function and the declared schema of its rows, None for those of `joined_columns`, and
        returns the user's result.

    Raises
    ------
    InvalidJoinError, InvalidDurationError
    """

    _error = InvalidJoinError

    def __init__(
        self,
        lower: Bound,
        upper: Bound,
        *,
        lower_exclusive: bool,
        upper_exclusive: bool,
        lookback: Duration,
        missing: str,
        finish: Callable[[IntervalJoinFunction, object], T],
    ) -> None:
        super().__init__(missing)
        self._interval = Interval.of(
            lower, upper, lower_exclusive=lower_exclusive, upper_exclusive=upper_exclusive, lookback=lookback
        )
        self._finish = finish
        if self._missing == MISSING:
            self._sides = {MISSING_LEFT: None, MISSING_RIGHT: None}

    def side_output_late_data(self) -> IntervalJoin[T]:
        """Emit rows with a time before the watermark to the side outputs ``late_left`` and ``late_right``.

        Without this they are dropped.
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
            Without a schema.
        """
        check_side_output(name, schema)
        return self._with_side_output(name, schema)

    def process(self, function: ProcessJoinFunction, schema: object = None) -> T:
        """Call a function with each pair of rows that is joined.

        Parameters
        ----------
        function : ProcessJoinFunction
        schema : str or StructType
            The columns of its rows; a test harness has its own parameter for them.
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
        """Emit the columns of both rows: the key, the others of the left one, the others of the right one.

        A name that is on both sides, or is one of the key, gets a prefix: ``left_time``, ``right_time``.
        """
        return self._made(JoinedRow(), None)

    def _made(self, function: ProcessJoinFunction, schema: object) -> T:
        join = IntervalJoinFunction(self._interval, function, self._sides, self._missing)
        return self._finish(join, schema)


def interval_join(
    lower: Bound,
    upper: Bound,
    *,
    lower_exclusive: bool = False,
    upper_exclusive: bool = False,
    lookback: Duration = 0,
    missing: str = "fail",
) -> IntervalJoin[IntervalJoinFunction]:
    """Declare an interval join without Spark; the result is a function of two inputs, for a test harness.

    Rows of the first input, the left ones, are joined with those of the second input, the right ones, that
    have the same key and a time in ``[left time + lower, left time + upper]``: an inner join.

    Parameters
    ----------
    lower, upper : str, timedelta, int or LeftColumn
        Relative to the time of the left row, either may be negative: ``"-1 hour"``, ``"30 minutes"``.  Or a
        column of the left row, a time or a duration.
    lower_exclusive, upper_exclusive : bool, optional
        Whether a right row at exactly that bound is not joined.
    lookback : str, timedelta or int, optional
        How far before the time of its left row a lower bound in a column may be; earlier ones are moved
        there.  Right rows are kept for so long.
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
        lookback=lookback,
        missing=missing,
        finish=lambda function, schema: function,
    )
