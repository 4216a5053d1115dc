"""The joins of connected inputs: ``connect(a, b).join("left", ttl=...)`` and others."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from keyedstate.durations import Duration
from keyedstate.errors import InvalidJoinError, UnboundedStateWarning
from keyedstate.joins.bounds import Bound
from keyedstate.joins.by_key.declaration import join, multiway_join
from keyedstate.joins.by_key.multiway import MultiwayJoinFunction
from keyedstate.joins.interval_builder import IntervalJoin
from keyedstate.joins.join_function import JoinFunction
from keyedstate.joins.versioned import versioned_join
from keyedstate.joins.window_builder import WindowedInputs
from keyedstate.state import Ttl
from keyedstate.windows import WindowAssigner
from keyedstate.windows.declaration.definition import WindowDefinition

T = TypeVar("T")


class JoinableInputs(ABC, Generic[T]):
    """Connected inputs, two of which can be joined; `T` is the result."""

    def interval_join(
        self,
        lower: Bound,
        upper: Bound,
        *,
        lower_exclusive: bool = False,
        upper_exclusive: bool = False,
        lookback: Duration = 0,
        missing: str = "fail",
    ) -> IntervalJoin[T]:
        """Join rows by key and event time: ``interval_join("-1 hour", "2 hours").join()``.

        An inner join of the rows of the first input, the left ones, with those rows of the second one whose
        time is in ``[left time + lower, left time + upper]``.  As in SQL, null keys match nothing.

        Parameters
        ----------
        lower, upper : str, timedelta, int or LeftColumn
            Relative to the time of the left row; either may be negative.  Or a column of the left row, a time
            or a duration.
        lower_exclusive, upper_exclusive : bool, optional
            Whether a right row at exactly that bound is excluded.
        lookback : str, timedelta or int, optional
            How far before the time of its left row a lower bound in a column may be; earlier ones are moved
            there.  Right rows are kept for so long.
        missing : {"fail", "drop", "side output"}, optional
            What happens to rows without an event time.

        Returns
        -------
        IntervalJoin
            A builder of side outputs; its last method returns what ``process`` does.

        Raises
        ------
        InvalidJoinError, InvalidDurationError
        """
        return IntervalJoin(
            lower,
            upper,
            lower_exclusive=lower_exclusive,
            upper_exclusive=upper_exclusive,
            lookback=lookback,
            missing=missing,
            finish=self._joined,
        )

    def join(
        self,
        how: str = "inner",
        *,
        ttl: Ttl | None = None,
        late: str = "drop",
        missing: str = "fail",
        row_kind: str | None = None,
    ) -> T:
        """Join rows by key alone: ``join("left", ttl=Ttl.of("1 day", clock=TtlClock.EVENT_TIME))``.

        The rows of the first input are the left ones.  A row meets all rows of the other side that came
        before it and still live.  As in SQL, null keys match nothing.  More than two inputs have an inner
        join, in which a row meets all combinations of the rows of the others.

        Parameters
        ----------
        how : {"inner", "left", "right", "full", "semi", "anti"}, optional
            "left", "right" and "full" emit a row that has found no match at the end of its life, with nulls
            for the other side.  "semi" emits each left row once, when it meets its first match; "anti" those
            that meet none, at the end of their lives.  Both have the columns of the left input.
        ttl : Ttl, optional
            How long a row lives: after its event time by the watermark, or by the clock after it came.
            Without it rows live until the end of a batch.  In a stream they live for ever then, so only
            inner and semi joins, and those with row kinds, may leave it out.
        late : {"drop", "side output"}, optional
            What happens to rows whose life in event time is over when they come.  The side outputs are
            named ``late_left`` and ``late_right``.
        missing : {"fail", "drop", "side output"}, optional
            What happens to rows without an event time, if they live by the watermark.  The side outputs are
            named ``missing_left`` and ``missing_right``.
        row_kind : str, optional
            A further output column, with row kinds: the join then emits how its result changes.  A row
            without a match comes out with nulls at once (``+I``), and is taken back (``-D``) when it meets
            one.  The end of a life changes nothing.  Joins of inputs that have row kinds have such results in
            any case, by default under the name in the first of these.  Their rows ``-U`` and ``-D`` take
            joined rows back.

        Returns
        -------
        DataFrame or ResultStream
            The key columns, the others of the left input and the others of the right one, and the row kinds
            where they are wanted.  A name that both have gets a prefix: ``left_time``, ``right_time``; of
            more than two inputs ``first_time``, ``second_time`` and so on.

        Raises
        ------
        InvalidJoinError
        RowKindError
            For more than two inputs, if rows may take others back.

        Warns
        -----
        UnboundedStateWarning
            For a join of streams without `ttl`, unless rows of all may be taken back.
        """
        function: JoinFunction
        if self._count > 2:
            function = multiway_join(self._count, how, ttl, late, missing, row_kind)
            waits = False
        else:
            row_kind = next(filter(None, (row_kind, *self._row_kinds)), None)
            function = join(how, ttl=ttl, late=late, missing=missing, row_kind=row_kind)
            waits = row_kind is None and any(function.how.keeps)
        if ttl is None and self._keeps_state and None in self._row_kinds:
            if waits:
                raise InvalidJoinError(
                    f"the {how} join",
                    "a row without a match is emitted at the end of its life, and without a time to live "
                    "that never comes in a stream",
                    "Give ttl=, as in ttl=Ttl.of('1 day', clock=TtlClock.EVENT_TIME).",
                )
            warnings.warn(UnboundedStateWarning(f"the {how} join"), stacklevel=2)
        return self._joined(function, None)

    def window(self, assigner: WindowAssigner[Any], *, missing: str = "fail") -> WindowedInputs[T]:
        """Put the rows of both inputs into windows: ``window(Tumbling.of("1 hour")).join("left")``.

        Parameters
        ----------
        assigner : WindowAssigner
        missing : {"fail", "drop", "side output"}, optional
            What happens to rows without an event time, if their windows need one.

        Returns
        -------
        WindowedInputs
            A builder of triggers, evictors and side outputs; its last method, `join` or `cogroup`, returns
            what ``process`` does.

        Raises
        ------
        InvalidWindowError
        """
        return WindowedInputs(WindowDefinition.of(assigner), missing, self._joined)

    def versioned_join(
        self,
        how: str = "inner",
        *,
        deleted: str | None = None,
        late: str = "drop",
        missing: str = "fail",
    ) -> T:
        """Join each left row with the version of the right row of its key as of its event time.

        The right input is the log of a table that changes slowly: each row is valid from its event time until
        that of the next row of the key.  A left row is emitted when the watermark has reached its time.

        Parameters
        ----------
        how : {"inner", "left"}, optional
            "left" emits rows for which there is no version, with nulls.
        deleted : str, optional
            A boolean column of the right input, true in a row that ends the versions of its key.
        late : {"drop", "side output"}, optional
            What happens to left rows before the watermark, and to versions that are replaced when they come.
            The side outputs are named ``late_left`` and ``late_right``.
        missing : {"fail", "drop", "side output"}, optional
            What happens to rows without an event time.  The side outputs are named ``missing_left`` and
            ``missing_right``.

        Returns
        -------
        DataFrame or ResultStream
            The key columns, the others of the left input and the others of the right one.

        Raises
        ------
        InvalidJoinError
        """
        return self._joined(versioned_join(how, deleted=deleted, late=late, missing=missing), None)

    @property
    @abstractmethod
    def _keeps_state(self) -> bool:
        """Whether the state outlives the run: that of streams, and of operators with a uid."""

    @property
    @abstractmethod
    def _count(self) -> int:
        """The number of inputs."""

    @property
    @abstractmethod
    def _row_kinds(self) -> Sequence[str | None]:
        """The column of row kinds of each input; None where rows are only added."""

    @abstractmethod
    def _run_join(self, function: JoinFunction, declared: object) -> T:
        """Return the result of a join; `declared` are the columns of the rows of a user's function."""

    def _joined(self, function: JoinFunction, declared: object) -> T:
        if self._count > 2 and not isinstance(function, MultiwayJoinFunction):
            raise InvalidJoinError(
                "this join",
                f"it has a left and a right input, and {self._count} are connected",
                "Connect two, and the result with the next one; join('inner') takes all.",
            )
        return self._run_join(function, declared)
