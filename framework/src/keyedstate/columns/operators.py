"""The operators that are declared over keyed rows, the same on Spark and in a local run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from keyedstate.aggregates import Aggregate
from keyedstate.aggregates.declaration import all_aggregates
from keyedstate.errors import RowKindError
from keyedstate.joins import BroadcastJoinableRows
from keyedstate.ranking import RankableRows
from keyedstate.runtime import KeyedFunction
from keyedstate.state import Ttl
from keyedstate.windows import WindowAssigner, Windowed, WindowOutput
from keyedstate.windows.declaration.definition import WindowDefinition

T = TypeVar("T")


class DeclaredOperators(RankableRows[T], BroadcastJoinableRows[T]):
    """Keyed rows; `T` is the result of an operator over them."""

    def aggregate(
        self,
        aggregates: Mapping[str, Aggregate] = MappingProxyType({}),
        /,
        *,
        ttl: Ttl | None = None,
        row_kind: str | None = None,
        **named: Aggregate,
    ) -> T:
        """Compute aggregates over all rows of each key, by columns.

        Parameters
        ----------
        aggregates : mapping, optional
            Aggregates by output column, for names that are no Python identifiers or are parameters here.
        ttl : Ttl, optional
            How long the aggregates of a key live after its last row; forever by default.
        row_kind : str, optional
            A further output column, with row kinds: a micro-batch, or a checkpoint of a local run, then emits
            what has changed, the results before (``-U``, or ``-D`` where all rows were taken back) and those
            that replace them (``+U``, or ``+I`` for a new key).  Rows with row kinds of their own have such
            results in any case, by default under the same name.
        named : Aggregate
            Aggregates by output column: ``sales=count(), amount=sum_("amount")``.

        Returns
        -------
        DataFrame or ResultStream
            The key columns, the aggregates, and the row kinds where they are wanted.  Without them a
            micro-batch, or a checkpoint of a local run, emits one row for each key that had rows since the
            one before, with the results over all rows of the key so far (Spark's output mode ``update``).  A
            local run without a uid emits them at its end.

        Raises
        ------
        InvalidAggregateError
            For no aggregate, for a column or name that cannot be used, and for an aggregate that cannot take
            rows back where rows may do so; other errors as `process`.

        Notes
        -----
        Aggregates may be added, changed and removed at a restart: a new one starts empty.
        """
        return self._aggregated(all_aggregates(aggregates, named), ttl, row_kind)

    def running(
        self,
        aggregates: Mapping[str, Aggregate] = MappingProxyType({}),
        /,
        *,
        ttl: Ttl | None = None,
        **named: Aggregate,
    ) -> T:
        """Add to each row the aggregates over the rows of its key up to and including it, by columns.

        Parameters
        ----------
        aggregates, ttl, named
            As in `aggregate`.

        Returns
        -------
        DataFrame or ResultStream
            The columns of the rows, then the aggregates.  The rows of a key come in the order in which they
            are processed.

        Raises
        ------
        InvalidAggregateError
            For no aggregate, and for a column or name that cannot be used; other errors as `process`.
        RowKindError
            For rows that may take earlier ones back.

        Notes
        -----
        The state is that of `aggregate`, so a query may change from one to the other at a restart.
        """
        self._refuse_row_kinds("running()")
        return self._running(all_aggregates(aggregates, named), ttl)

    def window(self, assigner: WindowAssigner[Any], *, missing: str = "fail") -> Windowed[T]:
        """Put the rows of each key into windows: ``window(Tumbling.of("1 h")).aggregate(n=count())``.

        Parameters
        ----------
        assigner : WindowAssigner
        missing : {"fail", "drop", "side output"}, optional
            What happens to rows without an event time, if their windows need one.

        Returns
        -------
        Windowed
            A builder of triggers, evictors and side outputs; its last method returns what ``process`` does.

        Raises
        ------
        InvalidWindowError
            Also for windows in event time over rows without one.
        RowKindError
            For rows that may take earlier ones back.
        """
        self._refuse_row_kinds("window()")
        definition = WindowDefinition.of(assigner)
        definition.check_event_time(known=self._time_column is not None)
        return Windowed(definition, missing, self._windowed)

    def _refuse_row_kinds(self, operator: str) -> None:
        """Raise `RowKindError` where a row may take another one back."""
        if self._row_kind is not None:
            raise RowKindError(self._row_kind, f"{operator} takes no row back")

    @property
    @abstractmethod
    def _row_kind(self) -> str | None:
        """The column of row kinds; None where rows are only added."""

    @property
    @abstractmethod
    def _time_column(self) -> str | None:
        """The column of event times; None where the rows have no event time."""

    @abstractmethod
    def _aggregated(self, chosen: Mapping[str, Aggregate], ttl: Ttl | None, row_kind: str | None) -> T:
        """Return the result of aggregates by output column."""

    @abstractmethod
    def _running(self, chosen: Mapping[str, Aggregate], ttl: Ttl | None) -> T:
        """Return the rows with running aggregates by output column."""

    @abstractmethod
    def _windowed(self, function: KeyedFunction, output: WindowOutput) -> T:
        """Return the result of a function of windows that does not know the columns of the rows yet."""
