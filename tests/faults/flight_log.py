"""The process function of the campaign: running figures of an aircraft or an airport, one row per flight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from faults.injection import reached
from keyedstate import types
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import MapState, ValueState

FLIGHTS = ValueState("flights", types.INT64, default=0)
DELAY = ValueState("delay", types.INT64, default=0)
DESTINATIONS = MapState("destinations", types.STRING, types.INT64)

INPUT_SCHEMA = "id long, tailnum string, origin string, dest string, arr_delay long"
OUTPUT_SCHEMA = "operator string, id long, key string, flights long, delay long"
#: The keyed operators: uid and key column.
OPERATORS = {"aircraft": "tailnum", "origins": "origin"}
_ROWS_PER_STEP = 100


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
