"""How users declare them: ``keyed(df, "k").deduplicate(...)``, the same on Spark and in a local run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from keyedstate.aggregates.ranking import By, top_by
from keyedstate.durations import Duration
from keyedstate.errors import InvalidAggregateError, InvalidRankingError
from keyedstate.ranking.deduplication import Deduplication, RowsFunction
from keyedstate.ranking.top_n import TopN
from keyedstate.ranking.window_top_n import WindowTopN
from keyedstate.state import Ttl
from keyedstate.windows import WindowAssigner

T = TypeVar("T")


class RankableRows(ABC, Generic[T]):
    """Rows with keys, of which some can be chosen; `T` is the result."""

    def deduplicate(
        self,
        *,
        keep: str = "first",
        by: By | None = None,
        within: Duration | None = None,
        ttl: Ttl | None = None,
    ) -> T:
        """Keep one row of each key: ``keyed(events, "id", uid="once").deduplicate(within="1 hour")``.

        Parameters
        ----------
        keep : {"first", "last"}, optional
            Which row.  Without `by` the first one is emitted when it comes, and never another one.  The last
            one, and either one with `by`, is emitted by the micro-batch that has it, and replaces what was
            emitted for its key before.
        by : str or sequence of str, optional
            The columns that order rows; the order in which they come by default.  Of equal rows the first
            counts, or the last one with ``keep="last"``.  Rows with a null in one of them are left out.
        within : str, timedelta or int, optional
            Rows are duplicates only of a kept one that is less than so much older, or that is younger; for
            the first row without `by`.  With an event time that of the rows counts, the state of a key goes
            when the watermark has passed, and rows behind the watermark are dropped as late.  Otherwise
            processing time counts.
            Without it or `ttl` the state grows with the number of keys.
        ttl : Ttl, optional
            How long a key is remembered after the last change of its row, in place of `within`.

        Returns
        -------
        DataFrame or ResultStream
            The columns of the rows.

        Raises
        ------
        InvalidRankingError
            For a column or option that cannot be used; other errors as `process`.
        """
        return self._ranked(deduplicate(keep=keep, by=by, within=within, ttl=ttl))

    def top_n(
        self,
        n: int,
        *,
        by: By,
        descending: bool | Sequence[bool] = True,
        within: WindowAssigner[Any] | None = None,
        emit: str = "changed",
        rank: str = "rank",
        ttl: Ttl | None = None,
        row_kind: str | None = None,
    ) -> T:
        """Keep the first rows of each key in an order: ``keyed(bids, "auction").top_n(10, by="price")``.

        Parameters
        ----------
        n : int
            How many rows; the state of a key has all of them.
        by : str or sequence of str
            The columns that order rows; the first that differs decides.  Of equal rows the one that came
            first is first.  Rows with a null in one of them are left out.
        descending : bool or sequence of bool, default True
            Whether the largest comes first, for each column of `by` where there are several.
        within : WindowAssigner, optional
            Windows in event time, tumbling, sliding or sessions of a fixed gap: the first rows of a key and
            window are emitted when it ends, with its start and end.  Rows that are too late are dropped.
        emit : {"changed", "all"}, optional
            What a micro-batch emits of the keys whose first rows have changed: the rows of the ranks that
            have another row now, or all of them.
        rank : str, optional
            The column of the rank, from 1.
        ttl : Ttl, optional
            How long the rows of a key are kept after the last row that belonged to them.
        row_kind : str, optional
            A further output column, with row kinds: the row that a rank had before comes as ``-U`` in front
            of the one that replaces it, ``+U``; the first one of a rank is ``+I``.

        Returns
        -------
        DataFrame or ResultStream
            The columns of the rows, and their rank.  Key and rank together say which row one replaces.

        Raises
        ------
        InvalidRankingError
            For a column or option that cannot be used; other errors as `process`.
        """
        function = top_n(
            n,
            by=by,
            descending=descending,
            within=within,
            emit=emit,
            rank=rank,
            ttl=ttl,
            row_kind=row_kind,
        )
        return self._ranked(function)

    @abstractmethod
    def _ranked(self, function: RowsFunction) -> T:
        """Return the result of a function of rows that does not know their columns yet."""


def deduplicate(
    *, keep: str = "first", by: By | None = None, within: Duration | None = None, ttl: Ttl | None = None
) -> Deduplication:
    """Declare a deduplication without Spark; the result is a function of rows, for a test harness.

    See `RankableRows.deduplicate`.
    """
    return Deduplication(keep=keep, by=by, within=within, ttl=ttl)


def top_n(
    n: int,
    *,
    by: By,
    descending: bool | Sequence[bool] = True,
    within: WindowAssigner[Any] | None = None,
    emit: str = "changed",
    rank: str = "rank",
    ttl: Ttl | None = None,
    row_kind: str | None = None,
) -> TopN | WindowTopN:
    """Declare a top-n without Spark; the result is a function of rows, for a test harness.

    See `RankableRows.top_n`.
    """
    part = "top_n()"
    if emit not in ("changed", "all"):
        raise InvalidRankingError(part, f"emit={emit!r} is no choice", "Give 'changed' or 'all'.")
    if ttl is not None and not isinstance(ttl, Ttl):
        raise InvalidRankingError(part, f"its ttl is {ttl!r}", "Give Ttl.of('7 days') or the like.")
    if row_kind is not None and (emit != "changed" or not row_kind or type(row_kind) is not str):
        way_out = "Name another column, and leave out emit=: row kinds are those of changes."
        raise InvalidRankingError(part, f"row_kind={row_kind!r} cannot be had", way_out)
    if row_kind == rank:
        raise InvalidRankingError(part, f"rank and row kind are both named {rank!r}", "Rename one of them.")
    if not rank or type(rank) is not str:
        raise InvalidRankingError(part, f"rank={rank!r} is no name", "Name the column of the rank.")
    if type(n) is not int or n < 1:
        raise InvalidRankingError(part, f"n={n!r} is no number of rows", "Give a number from 1.")
    try:
        aggregate = top_by(n, by=by, descending=descending)
    except InvalidAggregateError as error:
        reason = error.reason.replace("top_by()", "it")
        raise InvalidRankingError(part, reason, "Name columns of the rows, and their directions.") from error
    if within is None:
        return TopN(aggregate, rank, changed_only=emit == "changed", ttl=ttl, row_kind=row_kind)
    if ttl is not None or emit != "changed" or row_kind is not None:
        way_out = "Leave them out: a window is removed when it ends, and its rows do not change."
        raise InvalidRankingError(part, "emit=, ttl= and row_kind= have no use with within=", way_out)
    return WindowTopN(aggregate, rank, within)
