"""Joins of the flights with even and odd numbers of an aircraft; the multiway join divides them by three."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from typing import Any

from pyspark.sql import DataFrame

import keyedstate as ks
from faults.operators.entry import (
    DAY_MS,
    HOUR_MS,
    NONE_LATE,
    SOME_LATE,
    Epochs,
    Flight,
    Key,
    Operator,
    Row,
    delay_of,
    nothing,
    on_side,
)
from keyedstate.windows import Tumbling

#: How long a row lives: so short that some rows are late, and some are over when others come.
_LIFE_MS = 4 * HOUR_MS
_LIFE = ks.Ttl.of(f"{_LIFE_MS} ms", clock=ks.TtlClock.EVENT_TIME)
_LOWER_MS, _UPPER_MS = -30 * HOUR_MS, 12 * HOUR_MS
_DAY = Tumbling.of(f"{DAY_MS} ms")
#: In place of the number of a flight that has found no other, and of a version that does not exist.
_NONE = -9


def _sides(rows: DataFrame, uid: str, delay: int, sides: int = 2) -> ks.ConnectedFrame:
    keyed = [
        ks.keyed(
            rows.where(f"id < 0 or id % {sides} = {side}").selectExpr(
                "tailnum", f"id id{side}", f"arr_delay delay{side}", f"ts ts{side}"
            ),
            "tailnum",
            event_time=ks.EventTime(f"ts{side}", f"{delay} ms"),
        )
        for side in range(sides)
    ]
    return ks.connect(*keyed, uid=uid)


def _pairs(joined: DataFrame) -> DataFrame:
    return joined.selectExpr(
        "tailnum key", f"coalesce(id0, {_NONE}L) id", f"coalesce(id1, {_NONE}L) flights", "0L delay"
    )


def _alone_or_paired(
    left: Sequence[Flight], right: Sequence[Flight], pairs: Set[tuple[int, int]]
) -> Counter[Row]:
    """Return the rows of a full join."""
    key_of = {flight["id"]: flight["tailnum"] for flight in (*left, *right)}
    found = Counter((key_of[one], one, other, 0) for one, other in pairs)
    paired = {number for pair in pairs for number in pair}
    found.update((each["tailnum"], each["id"], _NONE, 0) for each in left if each["id"] not in paired)
    found.update((each["tailnum"], _NONE, each["id"], 0) for each in right if each["id"] not in paired)
    return found


def _by_key(flights: Sequence[Flight]) -> dict[Key, list[Flight]]:
    """Return the rows of each key that matches another."""
    of_key: defaultdict[Key, list[Flight]] = defaultdict(list)
    for flight in flights:
        if flight["tailnum"] is not None:
            of_key[flight["tailnum"]].append(flight)
    return of_key


def _that_live(epochs: Epochs, sides: int) -> Iterator[tuple[int, Flight]]:
    """Yield the rows that are not over when they come, each with the watermark that it meets others at."""
    for watermark, flights in epochs.with_watermark(SOME_LATE, sides):
        yield from ((watermark, flight) for flight in flights if flight["ts"] + _LIFE_MS > watermark)


def _combinations(epochs: Epochs, sides: int) -> Iterator[tuple[Flight, ...]]:
    """Yield one row of each side that live when the last one comes."""
    met_at: dict[int, int] = {}
    flights = []
    for watermark, flight in _that_live(epochs, sides):
        met_at[flight["id"]] = watermark
        flights.append(flight)
    for of_key in _by_key(flights).values():
        for some in itertools.product(
            *([flight for flight in of_key if on_side(flight, side, sides)] for side in range(sides))
        ):
            last = max(met_at[flight["id"]] for flight in some)
            if all(flight["ts"] + _LIFE_MS > last for flight in some):
                yield some


def _join(rows: DataFrame) -> DataFrame:
    return _pairs(_sides(rows, "join", SOME_LATE).join("full", ttl=_LIFE))


def _join_answer(epochs: Epochs) -> Counter[Row]:
    live = [flight for _, flight in _that_live(epochs, 2)]
    sides = ([flight for flight in live if on_side(flight, side, 2)] for side in range(2))
    return _alone_or_paired(*sides, {(left["id"], right["id"]) for left, right in _combinations(epochs, 2)})


def _multiway(rows: DataFrame) -> DataFrame:
    joined = _sides(rows, "multiway-join", SOME_LATE, 3).join(ttl=_LIFE)
    return joined.selectExpr("tailnum key", "id0 id", "id1 flights", "id2 delay")


def _multiway_answer(epochs: Epochs) -> Counter[Row]:
    return Counter(
        (some[0]["tailnum"], *(flight["id"] for flight in some)) for some in _combinations(epochs, 3)
    )


def _interval(rows: DataFrame) -> DataFrame:
    sides = _sides(rows, "interval-join", SOME_LATE)
    return _pairs(sides.interval_join(f"{_LOWER_MS} ms", f"{_UPPER_MS} ms").join())


def _interval_answer(epochs: Epochs) -> Counter[Row]:
    in_time = [
        flight
        for watermark, flights in epochs.with_watermark(SOME_LATE, 2)
        for flight in flights
        if flight["ts"] >= watermark
    ]
    return Counter(
        (key, left["id"], right["id"], 0)
        for key, flights in _by_key(in_time).items()
        for left, right in itertools.product(flights, flights)
        if on_side(left, 0, 2) and on_side(right, 1, 2)
        if _LOWER_MS <= right["ts"] - left["ts"] <= _UPPER_MS
    )


def _versioned(rows: DataFrame) -> DataFrame:
    joined = _sides(rows, "versioned-join", NONE_LATE).versioned_join("left")
    # Of versions of one time any may be the last one that came: the time tells enough.
    return joined.selectExpr(
        "tailnum key", "id0 id", f"coalesce(unix_millis(ts1), {_NONE}L) flights", "coalesce(delay0, 0L) delay"
    )


def _versioned_answer(epochs: Epochs) -> Counter[Row]:
    flights = list(epochs.flights())
    of_key = _by_key([flight for flight in flights if on_side(flight, 1, 2)])
    found: Counter[Row] = Counter()
    for flight in flights:
        if on_side(flight, 0, 2):
            times = [each["ts"] for each in of_key.get(flight["tailnum"], ()) if each["ts"] <= flight["ts"]]
            found[flight["tailnum"], flight["id"], max(times, default=_NONE), flight["arr_delay"] or 0] += 1
    return found


def _with_versions(epochs: Epochs) -> set[Key]:
    return set(_by_key([flight for flight in epochs.flights() if on_side(flight, 1, 2)]))


def _windows(epochs: Epochs) -> Iterator[tuple[Key, int, list[Flight], list[Flight]]]:
    """Yield the key, the start and the rows of both sides of each window of both."""
    of_window: defaultdict[tuple[Key, int], tuple[list[Flight], list[Flight]]]
    of_window = defaultdict(lambda: ([], []))
    for watermark, flights in epochs.with_watermark(SOME_LATE, 2):
        for flight in flights:
            start = flight["ts"] - flight["ts"] % DAY_MS
            if start + DAY_MS - 1 > watermark:
                of_window[flight["tailnum"], start][on_side(flight, 1, 2)].append(flight)
    for (key, start), (left, right) in of_window.items():
        yield key, start, left, right


def _window_join(rows: DataFrame) -> DataFrame:
    return _pairs(_sides(rows, "window-join", SOME_LATE).window(_DAY).join("full"))


def _window_join_answer(epochs: Epochs) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for key, _, left, right in _windows(epochs):
        both = itertools.product(left, right) if key is not None else ()
        found += _alone_or_paired(left, right, {(one["id"], other["id"]) for one, other in both})
    return found


class Both(ks.joins.CoGroupFunction):
    """Counts the flights of both sides of a window, and adds up their delays."""

    def process(self, left: Sequence[Any], right: Sequence[Any], ctx: Any) -> Iterator[tuple[Any, ...]]:
        delays = [row.delay0 for row in left] + [row.delay1 for row in right]
        numbers = 1000 * len(left) + len(right)
        yield ctx.key, ctx.window.start, numbers, sum(delay or 0 for delay in delays)


def _co_group(rows: DataFrame) -> DataFrame:
    windows = _sides(rows, "co-group", SOME_LATE).window(_DAY)
    return windows.cogroup(Both(), "key string, id long, flights long, delay long")


def _co_group_answer(epochs: Epochs) -> Counter[Row]:
    return Counter(
        (key, start, 1000 * len(left) + len(right), delay_of([*left, *right]))
        for key, start, left, right in _windows(epochs)
    )


#: The table of the broadcast join has the remainders below this one.
_REMAINDERS, _REMAINDERS_IN_TABLE = 7, 4


def _broadcast(rows: DataFrame) -> DataFrame:
    table = rows.sparkSession.range(_REMAINDERS_IN_TABLE).selectExpr("id r", "100 * id factor")
    flights = rows.where("id >= 0").selectExpr("tailnum", "id", f"id % {_REMAINDERS} rest", "arr_delay")
    joined = ks.keyed(flights, "tailnum", uid="broadcast-join").broadcast_join(
        table, on={"rest": "r"}, how="left"
    )
    return joined.selectExpr(
        "tailnum key", "id", f"coalesce(factor, {_NONE}L) flights", "coalesce(arr_delay, 0L) delay"
    )


def _broadcast_answer(epochs: Epochs) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for flight in epochs.flights():
        rest = flight["id"] % _REMAINDERS
        factor = 100 * rest if rest < _REMAINDERS_IN_TABLE else _NONE
        found[flight["tailnum"], flight["id"], factor, flight["arr_delay"] or 0] += 1
    return found


JOINS = {
    "join": Operator(_join, _join_answer, {"join": nothing}),
    "multiway-join": Operator(_multiway, _multiway_answer, {"multiway-join": nothing}),
    "interval-join": Operator(_interval, _interval_answer, {"interval-join": nothing}),
    "versioned-join": Operator(_versioned, _versioned_answer, {"versioned-join": _with_versions}),
    "window-join": Operator(_window_join, _window_join_answer, {"window-join": nothing}),
    "broadcast-join": Operator(_broadcast, _broadcast_answer, {"broadcast-join": nothing}),
    "co-group": Operator(_co_group, _co_group_answer, {"co-group": nothing}),
}
