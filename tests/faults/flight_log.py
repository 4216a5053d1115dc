"""What the campaign's jobs do: running counts and sums, row by row or declared with row kinds, or windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from faults.injection import reached
from faults.operators.entry import HOUR_MS
from keyedstate import types
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import MapState, ValueState
from keyedstate.windows.declaration.contexts import WindowContext
from keyedstate.windows.declaration.function import ProcessWindowFunction

FLIGHTS = ValueState("flights", types.INT64, default=0)
DELAY = ValueState("delay", types.INT64, default=0)
DESTINATIONS = MapState("destinations", types.STRING, types.INT64)

INPUT_SCHEMA = "id long, tailnum string, origin string, dest string, arr_delay long, ts timestamp"
#: Of windows, the id is their start in milliseconds.  Of changes, its sign is that of the change; the first
#: flights have their rank as `flights`.
OUTPUT_SCHEMA = "operator string, id long, key string, flights long, delay long"
#: The keyed operators: uid and key column.
OPERATORS = {
    "aircraft": "tailnum",
    "origins": "origin",
    "hours": "origin",
    "turns": "tailnum",
    "changes": "origin",
    "firsts": "tailnum",
}
#: Those whose rows are windows: an airport's hours, by columns, and an aircraft's sessions, row by row.
WINDOWED = ["hours", "turns"]
#: Those that are declared, and emit changes: an airport's aggregates, and the first flights of an aircraft.
#: They run together with one that works row by row, in which faults strike while rows are processed.
CHANGING = ["changes", "firsts"]
DECLARED = ["aircraft", *CHANGING]
FIRST_FLIGHTS = 3
#: How far the watermark stays behind: of the hours some rows are late, of the turns none.
DELAY_MS = {"hours": 6 * HOUR_MS, "turns": 26 * HOUR_MS}
GAP_MS = 20 * HOUR_MS
_ROWS_PER_STEP = 100
_WINDOWS_PER_STEP = 20


class FlightLog(KeyedProcessFunction):
    """Counts flights, adds up delays, and counts destinations."""

    flights = FLIGHTS
    delay = DELAY
    destinations = DESTINATIONS

    def __init__(self, operator: str, place: str) -> None:
        self.operator = operator
        self.place = place
        self.rows = 0

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.rows += 1
        if self.rows % _ROWS_PER_STEP == 0:
            reached("rows", self.place)
        flights = self.flights.value() + 1
        self.flights.update(flights)
        delay = self.delay.value() + (row.arr_delay or 0)
        self.delay.update(delay)
        self.destinations.put(row.dest, (self.destinations.get(row.dest) or 0) + 1)
        yield self.operator, row.id, ctx.key, flights, delay


class Turns(ProcessWindowFunction):
    """Counts the flights of an aircraft's session, and adds up their delays."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.windows = 0

    def process(self, elements: Sequence[Any], ctx: WindowContext) -> Iterator[tuple[Any, ...]]:
        self.windows += 1
        if self.windows % _WINDOWS_PER_STEP == 0:
            reached("rows", self.place)
        yield "turns", ctx.window.start, ctx.key, len(elements), sum(row.arr_delay or 0 for row in elements)
