"""How users declare them: ``keyed(df, "k").deduplicate(...)``, the same on Spark and in a local run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from keyedstate.aggregates.ranking import By
from keyedstate.durations import Duration
from keyedstate.ranking.deduplication import Deduplication, RowsFunction
from keyedstate.state import Ttl

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
            Rows are duplicates only of a kept one that is at most so much older; for the first row without
            `by`.  With an event time that of the rows counts, the state of a key goes when the watermark has
            passed, and rows behind the watermark are dropped as late.  Otherwise processing time counts.
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
