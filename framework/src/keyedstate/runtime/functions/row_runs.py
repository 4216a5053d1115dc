"""Functions of several inputs that handle the consecutive rows of a key in one call."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any

from keyedstate.runtime.functions.connected_inputs import KeyedCoProcessFunction
from keyedstate.runtime.functions.keyed import Context
from keyedstate.state.context import KeyContext
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

#: Output rows after which a run is left, so that those of a key with many matches need not be in memory.
OUTPUT_ROWS = 1_024


class RowRun:
    """Consecutive rows of one key.

    Iterating over it yields the run itself as long as it has rows: a function takes as many of them in a call
    as it makes output of.

    Attributes
    ----------
    rows : iterator of (int, row)
        Those that no call has taken yet, each with the number of its input; `Context.timestamp` is the event
        time of the one that came last.
    number : int
        The number of the input of the row that came last.
    """

    __slots__ = ("_left", "number", "rows")

    def __init__(
        self,
        rows: Iterator[tuple[int, Any]],
        times: Iterator[int | None] | None,
        count: int,
        backend: KeyedStateBackend,
    ) -> None:
        self._left = count
        self.number = 0
        self.rows = self._taken(islice(rows, count), times, backend)

    def _taken(
        self, rows: Iterator[tuple[int, Any]], times: Iterator[int | None] | None, backend: KeyedStateBackend
    ) -> Iterator[tuple[int, Any]]:
        current = backend.current
        for row in rows:
            self._left -= 1
            self.number = row[0]
            if times is not None:
                current.timestamp = next(times)
            if backend.on_record is not None:
                backend.on_record()
            yield row

    def __iter__(self) -> Iterator[RowRun]:
        while self._left:
            yield self


class RunFunction(KeyedCoProcessFunction):
    """A function of several inputs that reads and writes the state of a key once for several of its rows."""

    @abstractmethod
    def _process_run(self, run: RowRun, ctx: Context) -> list[Any] | None:
        """Handle rows of a run, one at least, and return their output rows."""

    def process1(self, row: Any, ctx: Context) -> list[Any] | None:
        return self._process_row(0, row, ctx)

    def process2(self, row: Any, ctx: Context) -> list[Any] | None:
        return self._process_row(1, row, ctx)

    def _process_row(self, number: int, row: Any, ctx: Context) -> list[Any] | None:
        """Handle one row of the input with that number."""
        return self._process_run(RowRun(iter([(number, row)]), None, 1, ctx._backend), ctx)


class RunEntries:
    """The entries of a map state under the current key: read at most once in a run, and written at its end.

    Attributes
    ----------
    state : MapStateAccessor
    """

    def __init__(self, state: Any) -> None:
        self.state = state
        self.begin()

    def begin(self) -> None:
        """Begin a run of rows of the current key."""
        #: To be written.
        self._changed: dict[Any, Any] = {}
        #: What was made of all entries; None as long as none was asked.
        self._read: Any = None

    def end(self, current: KeyContext) -> None:
        """Write what has changed; rows need no check, because the columns of the input say their types."""
        if self._changed:
            self.state._put_entries(current.key_group, current.key, self._changed)
        # Rows of this key need not stay in memory until the next run.
        self.begin()
