"""Operators without windows: duplicates, running values, chained changes, the end of an epoch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

import keyedstate as ks
from faults.operators.entry import HOUR_MS, NONE_LATE, Epochs, Flight, Key, Operator, Row, keys, nothing
from keyedstate.aggregates import count, max_, sum_

_WITHIN_MS = 30 * HOUR_MS


def _last_flights(rows: DataFrame) -> DataFrame:
    last = ks.keyed(rows, "tailnum", uid="deduplicate-last").deduplicate(keep="last", by="id")
    return last.selectExpr("tailnum key", "id", "0L flights", "0L delay")


def _last_flights_answer(epochs: Epochs) -> Counter[Row]:
    found: Counter[Row] = Counter()
    shown: dict[Key, int] = {}
    for epoch in epochs:
        latest: dict[Key, int] = {}
        for flight in epoch:
            latest[flight["tailnum"]] = max(flight["id"], latest.get(flight["tailnum"], flight["id"]))
        newer = {key: id_ for key, id_ in latest.items() if key not in shown or id_ > shown[key]}
        shown |= newer
        found.update((key, id_, 0, 0) for key, id_ in newer.items())
    return found


def _rare_flights(rows: DataFrame) -> DataFrame:
    time = ks.EventTime("ts", f"{NONE_LATE} ms")
    keyed = ks.keyed(rows, "tailnum", uid="deduplicate-within", event_time=time)
    rare = keyed.deduplicate(within=f"{_WITHIN_MS} ms")
    return rare.selectExpr("tailnum key", "id", "0L flights", "0L delay")


def _rare_flights_answer(epochs: Epochs) -> Counter[Row]:
    found: Counter[Row] = Counter()
    shown: dict[Key, int] = {}
    for flight in epochs.flights():
        key = flight["tailnum"]
        if key not in shown or flight["ts"] >= shown[key] + _WITHIN_MS:
            shown[key] = flight["ts"]
            found[key, flight["id"], 0, 0] += 1
    return found


def _running(rows: DataFrame) -> DataFrame:
    running = ks.keyed(rows, "origin", uid="running").running(flights=count(), delay=sum_("arr_delay"))
    return running.selectExpr("origin key", "id", "flights", "coalesce(delay, 0L) delay")


def _running_answer(epochs: Epochs) -> Counter[Row]:
    found: Counter[Row] = Counter()
    totals: defaultdict[Key, tuple[int, int]] = defaultdict(lambda: (0, 0))
    # The rows of a file are in one partition, so they reach the operator in their order.
    for flight in epochs.flights():
        flights, delay = totals[flight["origin"]]
        totals[flight["origin"]] = flights + 1, delay + (flight["arr_delay"] or 0)
        found[(flight["origin"], flight["id"], *totals[flight["origin"]])] += 1
    return found


def _homes(rows: DataFrame) -> DataFrame:
    """Count aircraft and flights by the last of an aircraft's airports, which changes."""
    aircraft = ks.keyed(rows, "tailnum", uid="row-kinds-homes").aggregate(
        home=max_("origin"), flights=count(), row_kind="kind"
    )
    homes = ks.keyed(aircraft, "home", uid="row-kinds", row_kind="kind").aggregate(
        aircraft=count(), flown=sum_("flights"), row_kind="kind"
    )
    return homes.selectExpr(
        "home key", "if(kind in ('+I', '+U'), 1L, -1L) id", "aircraft flights", "flown delay"
    )


def _home_of_each(epochs: Epochs) -> dict[Key, list[Flight]]:
    of_aircraft: defaultdict[Key, list[Flight]] = defaultdict(list)
    for flight in epochs.flights():
        of_aircraft[flight["tailnum"]].append(flight)
    return of_aircraft


def _homes_answer(epochs: Epochs) -> Counter[Row]:
    homes: defaultdict[Key, list[int]] = defaultdict(list)
    for flights in _home_of_each(epochs).values():
        homes[max(flight["origin"] for flight in flights)].append(len(flights))
    return Counter((home, 1, len(numbers), sum(numbers)) for home, numbers in homes.items())


def _home_keys(epochs: Epochs) -> set[Key]:
    return {key for key, *_ in _homes_answer(epochs)}


class Totals(ks.KeyedProcessFunction):
    """Puts out the flights and the delay of an aircraft at the end of each epoch in which it flew."""

    flights = ks.ValueState("flights", ks.types.INT64, default=0)
    delay = ks.ValueState("delay", ks.types.INT64, default=0)

    def process(self, row: Any, ctx: ks.Context) -> None:
        self.flights.update(self.flights.value() + 1)
        self.delay.update(self.delay.value() + (row.arr_delay or 0))

    def end_epoch(self, ctx: ks.Context) -> Iterator[tuple[Any, ...]]:
        yield ctx.key, 0, self.flights.value(), self.delay.value()


def _totals(rows: DataFrame) -> DataFrame:
    schema = "key string, id long, flights long, delay long"
    return ks.keyed(rows, "tailnum", uid="end-of-epoch").process(Totals(), schema)


def _totals_answer(epochs: Epochs) -> Counter[Row]:
    found: Counter[Row] = Counter()
    totals: dict[Key, tuple[int, int]] = {}
    for epoch in epochs:
        for flight in epoch:
            flights, delay = totals.get(flight["tailnum"], (0, 0))
            totals[flight["tailnum"]] = flights + 1, delay + (flight["arr_delay"] or 0)
        for key in {flight["tailnum"] for flight in epoch}:
            found[(key, 0, *totals[key])] += 1
    return found


PER_KEY = {
    "deduplicate-last": Operator(_last_flights, _last_flights_answer, {"deduplicate-last": keys("tailnum")}),
    "deduplicate-within": Operator(_rare_flights, _rare_flights_answer, {"deduplicate-within": nothing}),
    "running": Operator(_running, _running_answer, {"running": keys("origin")}),
    "row-kinds": Operator(
        _homes,
        _homes_answer,
        {"row-kinds-homes": keys("tailnum"), "row-kinds": _home_keys},
        of_changes=True,
    ),
    "end-of-epoch": Operator(_totals, _totals_answer, {"end-of-epoch": keys("tailnum")}),
}
