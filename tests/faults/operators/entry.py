"""What the table of operators says of each, and what their answers have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
#: How far the rows of a run are out of order.
DISORDER_MS = 12 * HOUR_MS
#: The key of rows that only end the windows of all others, and a time before them.
END, BEFORE_END = "the end", "2100-01-01"
#: A delay of the watermark that makes some rows late, and one that makes none.
SOME_LATE, NONE_LATE = 6 * HOUR_MS, 26 * HOUR_MS

#: A row of the input by its columns; `ts` is in milliseconds.
Flight: TypeAlias = dict[str, Any]
#: A row of the output: key, id, flights and delay, whatever the operator has in them.
Row: TypeAlias = tuple[Any, int, int, int]
Key: TypeAlias = Any


class Epochs(list[list[Flight]]):
    """The rows of a run by epoch.

    Parameters
    ----------
    files : sequence of pa.Table
        Each epoch had one of them.
    ends : iterable of int
        After how many epochs the windows have fired, because there was no more input.
    """

    def __init__(self, files: Sequence[pa.Table], ends: Iterable[int] = ()) -> None:
        super().__init__(map(_flights_of, files))
        self.ends = frozenset(ends)

    def flights(self) -> Iterator[Flight]:
        """Yield all rows but those of the end."""
        for epoch in self:
            yield from (flight for flight in epoch if flight["tailnum"] != END)

    def with_watermark(self, delay: int, sides: int = 1) -> Iterator[tuple[int, list[Flight]]]:
        """Yield the watermark and the rows of each epoch, but those of the end."""
        latest = [-(1 << 62)] * sides
        for epoch in self:
            yield min(latest) - delay - 1, [flight for flight in epoch if flight["tailnum"] != END]
            for side in range(sides):
                times = (flight["ts"] for flight in epoch if on_side(flight, side, sides))
                latest[side] = max([latest[side], *times])


@dataclass(frozen=True)
class Operator:
    """A row of the table.

    Attributes
    ----------
    query : callable
        Takes the flights; its result has the columns of a `Row`.
    answer : callable
        Gives the rows of the output, or those that are left when all changes have been made.
    state : mapping
        By the uids of the query, the keys that have state in the end.
    of_changes : bool
        Whether the sign of the id is that of a change.
    fires_at_end : bool
        Whether the query fires its windows itself, and needs no rows that end them.
    """

    query: Callable[[DataFrame], DataFrame]
    answer: Callable[[Epochs], Counter[Row]]
    state: Mapping[str, Callable[[Epochs], Set[Key]]] = field(default_factory=dict)
    of_changes: bool = False
    fires_at_end: bool = False


def nothing(epochs: Epochs) -> Set[Key]:
    """Return the keys of an operator whose state is over."""
    return set()


def keys(column: str) -> Callable[[Epochs], Set[Key]]:
    """Return a function that gives all values of a column."""
    return lambda epochs: {flight[column] for flight in epochs.flights()}


def on_side(flight: Flight, side: int, sides: int) -> bool:
    """Return whether an input of several has a flight; all have the rows of the end."""
    return flight["id"] < 0 or flight["id"] % sides == side


def windows_of(epochs: Epochs, key: str, size: int) -> Iterator[tuple[Key, int, list[Flight]]]:
    """Yield the key, the start and the rows of each tumbling window, without the rows that were late.

    A window that has fired at an end of the input opens again with the rows that come later.
    """
    opened: dict[tuple[Key, int], list[Flight]] = {}
    for number, (watermark, flights) in enumerate(epochs.with_watermark(SOME_LATE), 1):
        for flight in flights:
            start = flight["ts"] - flight["ts"] % size
            if start + size - 1 > watermark:
                opened.setdefault((flight[key], start), []).append(flight)
        if number in epochs.ends:
            yield from ((*window, rows) for window, rows in opened.items())
            opened.clear()
    yield from ((*window, rows) for window, rows in opened.items())


def delay_of(flights: Iterable[Flight]) -> int:
    """Return the sum of the delays that are known."""
    return sum(flight["arr_delay"] or 0 for flight in flights)


def _flights_of(file: pa.Table) -> list[Flight]:
    place = file.column_names.index("ts")
    times = file["ts"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    flights: list[Flight] = file.set_column(place, "ts", times).to_pylist()
    return flights
