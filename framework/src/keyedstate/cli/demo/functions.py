"""The process functions of the demo."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keyedstate as ks

#: What both functions yield: one row per flight, with the running totals of its key.
OUTPUT_SCHEMA = "operator string, key string, flights long, delay long, new_destination string"


class AircraftLog(ks.KeyedProcessFunction):
    """Counts the flights of an aircraft, adds up its delay, and collects where it has been."""

    flights = ks.ValueState("flights", ks.types.INT64, default=0)
    delay = ks.ValueState("delay", ks.types.INT64, default=0)
    destinations = ks.MapState("destinations", ks.types.STRING, ks.types.INT64)

    def process(self, row: Any, ctx: ks.Context) -> Iterator[tuple[Any, ...]]:
        """Handle one flight; the key is its tail number."""
        flights = self.flights.value() + 1
        self.flights.update(flights)
        delay = self.delay.value() + (row.arr_delay or 0)
        self.delay.update(delay)
        before = self.destinations.get(row.dest)
        self.destinations.put(row.dest, (before or 0) + 1)
        yield "aircraft", ctx.key, flights, delay, row.dest if before is None else None


class OriginCount(ks.KeyedProcessFunction):
    """Counts the flights that left an airport."""

    flights = ks.ValueState("flights", ks.types.INT64, default=0)

    def process(self, row: Any, ctx: ks.Context) -> Iterator[tuple[Any, ...]]:
        """Handle one flight; the key is the airport it left from."""
        flights = self.flights.value() + 1
        self.flights.update(flights)
        yield "origins", ctx.key, flights, None, None
