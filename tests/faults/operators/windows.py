"""Operators over windows: first rows, windows of all rows, a chain, and the end of the input."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from pyspark.sql import DataFrame

import keyedstate as ks
from faults.operators.entry import (
    BEFORE_END,
    DAY_MS,
    HOUR_MS,
    SOME_LATE,
    Epochs,
    Operator,
    Row,
    delay_of,
    nothing,
    windows_of,
)
from keyedstate.aggregates import count, max_, sum_
from keyedstate.windows import Tumbling

_FIRST = 2
_HOUR, _DAY = Tumbling.of(f"{HOUR_MS} ms"), Tumbling.of(f"{DAY_MS} ms")
_TIME = ks.EventTime("ts", f"{SOME_LATE} ms")


def _top(rows: DataFrame) -> DataFrame:
    keyed = ks.keyed(rows, "origin", uid="window-top-n", event_time=_TIME)
    # Rows with a null in the order are left out; no two have one id.
    top = keyed.top_n(_FIRST, by=["arr_delay", "id"], within=_HOUR)
    return top.selectExpr("origin key", "id", "cast(rank as long) flights", "arr_delay delay")


def _top_answer(epochs: Epochs) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for key, _, flights in windows_of(epochs, "origin", HOUR_MS):
        known = [(flight["arr_delay"], flight["id"]) for flight in flights if flight["arr_delay"] is not None]
        for rank, (delay, id_) in enumerate(sorted(known, reverse=True)[:_FIRST], 1):
            found[key, id_, rank, delay] += 1
    return found


def _hours(rows: DataFrame, uid: str, **given: Any) -> DataFrame:
    keyed = ks.keyed(rows, "origin", uid=uid, event_time=_TIME, **given)
    return keyed.window(_HOUR).aggregate(flights=count(), delay=sum_("arr_delay"))


def _fired(rows: DataFrame) -> DataFrame:
    return _hours(rows, "end-fire", end="fire").selectExpr(
        "origin key", "unix_millis(window_start) id", "flights", "coalesce(delay, 0L) delay"
    )


def _fired_answer(epochs: Epochs) -> Counter[Row]:
    return Counter(
        (key, start, len(flights), delay_of(flights))
        for key, start, flights in windows_of(epochs, "origin", HOUR_MS)
    )


def _all(rows: DataFrame) -> DataFrame:
    windows = ks.window_all(rows, _HOUR, uid="window-all", event_time=_TIME)
    hours = windows.aggregate(flights=count(), delay=sum_("arr_delay"))
    return hours.where(f"window_start < '{BEFORE_END}'").selectExpr(
        "'all' key", "unix_millis(window_start) id", "flights", "coalesce(delay, 0L) delay"
    )


def _all_answer(epochs: Epochs) -> Counter[Row]:
    of_hour: defaultdict[int, list[Any]] = defaultdict(list)
    for _, start, flights in windows_of(epochs, "origin", HOUR_MS):
        of_hour[start] += flights
    return Counter(("all", start, len(flights), delay_of(flights)) for start, flights in of_hour.items())


def _chain(rows: DataFrame) -> DataFrame:
    """Find the busiest hour of a day at any airport, and how many hours with flights the airports had."""
    hours = _hours(rows, "chain-hours").selectExpr(
        "'all' all", "window_end - interval 1 millisecond at", "flights"
    )
    keyed = ks.keyed(hours, "all", uid="chain", event_time=ks.EventTime("at", follows="chain-hours"))
    days = keyed.window(_DAY).aggregate(most=max_("flights"), hours=count())
    return days.where(f"window_start < '{BEFORE_END}'").selectExpr(
        "all key", "unix_millis(window_start) id", "most flights", "hours delay"
    )


def _chain_answer(epochs: Epochs) -> Counter[Row]:
    of_day: defaultdict[int, list[int]] = defaultdict(list)
    for _, start, flights in windows_of(epochs, "origin", HOUR_MS):
        of_day[start - start % DAY_MS].append(len(flights))
    return Counter(("all", day, max(hours), len(hours)) for day, hours in of_day.items())


WINDOWS = {
    "window-top-n": Operator(_top, _top_answer, {"window-top-n": nothing}),
    # The windows of all rows and of the chain's end have one key, which has those of the end, too.
    "window-all": Operator(_all, _all_answer),
    "chain": Operator(_chain, _chain_answer, {"chain-hours": nothing}),
    "end-fire": Operator(_fired, _fired_answer, {"end-fire": nothing}, fires_at_end=True),
}
