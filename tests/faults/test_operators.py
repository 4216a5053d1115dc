"""The rows that the campaign expects of an operator are those that it puts out in the harness."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pytest

import keyedstate as ks
from faults import harness, plans
from faults.operators import joins, per_key, windows
from faults.operators.entry import END, NONE_LATE, SOME_LATE, Epochs, on_side
from faults.operators.table import TABLE
from keyedstate.joins.by_key.declaration import multiway_join
from keyedstate.ranking import deduplicate, top_n

COLUMNS = {"id": "long", "arr_delay": "long", "ts": "timestamp"}
SIDE = "id{0} long, delay{0} long, ts{0} timestamp"
PAIR = f"tailnum string, {SIDE.format(0)}, {SIDE.format(1)}"
IN_WINDOW = PAIR.replace("string,", "string, window_start timestamp, window_end timestamp,", 1)
TOTALS = "key string, id long, flights long, delay long"
FLIGHT = "id long, tailnum string, origin string, arr_delay long, ts timestamp"
RANKED = f"{FLIGHT}, window_start timestamp, window_end timestamp, rank int"


def pair(row: Any) -> tuple[Any, ...]:
    ids = (joins._NONE if id_ is None else id_ for id_ in (row.id0, row.id1))
    return (row.tailnum, *ids, 0)


def version(row: Any) -> tuple[Any, ...]:
    since = joins._NONE if row.ts1 is None else int(row.ts1.timestamp() * 1000)
    return row.tailnum, row.id0, since, row.delay0 or 0


def last(row: Any) -> tuple[Any, ...]:
    return row.tailnum, row.id, 0, 0


JOINED = {
    "join": (ks.joins.join("full", ttl=joins._LIFE), SOME_LATE, PAIR, pair),
    "interval-join": (
        ks.joins.interval_join(joins._LOWER_MS, joins._UPPER_MS).join(),
        SOME_LATE,
        PAIR,
        pair,
    ),
    "versioned-join": (ks.joins.versioned_join("left"), NONE_LATE, PAIR, version),
    "window-join": (ks.joins.windowed(joins._DAY).join("full"), SOME_LATE, IN_WINDOW, pair),
    "co-group": (ks.joins.windowed(joins._DAY).cogroup(joins.Both()), SOME_LATE, TOTALS, tuple),
    "multiway-join": (
        multiway_join(3, "inner", joins._LIFE, "drop", "fail", None),
        SOME_LATE,
        f"{PAIR}, {SIDE.format(2)}",
        lambda row: (row.tailnum, row.id0, row.id1, row.id2),
    ),
}
ALONE = {
    "deduplicate-last": ("tailnum", deduplicate(keep="last", by="id"), None, FLIGHT, last),
    "deduplicate-within": ("tailnum", deduplicate(within=per_key._WITHIN_MS), NONE_LATE, FLIGHT, last),
    "end-of-epoch": ("tailnum", per_key.Totals(), None, TOTALS, tuple),
    "window-top-n": (
        "origin",
        top_n(windows._FIRST, by=["arr_delay", "id"], within=windows._HOUR),
        SOME_LATE,
        RANKED,
        lambda row: (row.origin, row.id, row.rank, row.arr_delay),
    ),
}


@pytest.fixture(scope="module")
def epochs(tmp_path_factory: pytest.TempPathFactory) -> Epochs:
    plan = plans.plan_of(1, 0, operators=["join"])
    plan.flights, plan.ahead = 1500, 1 / 6
    run = harness.Harness(plan, tmp_path_factory.mktemp("flights") / "run-0001", harness.load_flights())
    return Epochs(run.files)


def row(flight: dict[str, Any], *columns: str) -> tuple[Any, ...]:
    time = dt.datetime.fromtimestamp(flight["ts"] / 1000, dt.timezone.utc)
    return tuple({**flight, "ts": time}[name] for name in columns)


def assert_expected(name: str, epochs: Epochs, found: list[tuple[Any, ...]]) -> None:
    expected = {row: count for row, count in TABLE[name].answer(epochs).items() if row[0] != END}
    assert Counter(row for row in found if row[0] != END) == expected and len(expected) > 10


@pytest.mark.parametrize("name", JOINED)
def test_the_rows_expected_of_a_join_are_those_of_the_harness(name: str, epochs: Epochs) -> None:
    function, delay, output, shown = JOINED[name]
    sides = 3 if name == "multiway-join" else 2
    first, second, *further = (
        ks.testing.Input(
            f"tailnum string, {SIDE.format(side)}", "tailnum", ks.EventTime(f"ts{side}", f"{delay} ms")
        )
        for side in range(sides)
    )
    with ks.testing.Harness(
        function,
        key="tailnum",
        schema=first.schema,
        event_time=first.event_time,
        second=second,
        further=further,
        output=output,
    ) as job:
        for flights in epochs:
            for side in range(sides):
                rows = (flight for flight in flights if on_side(flight, side, sides))
                job.process_input(side + 1, [row(each, "tailnum", "id", "arr_delay", "ts") for each in rows])
            job.end_epoch()
        job.end_input()
        found = list(map(shown, job.outputs))
    assert_expected(name, epochs, found)


@pytest.mark.parametrize("name", ALONE)
def test_the_rows_expected_of_an_operator_are_those_of_the_harness(name: str, epochs: Epochs) -> None:
    key, function, delay, output, shown = ALONE[name]
    time = None if delay is None else ks.EventTime("ts", f"{delay} ms")
    with ks.testing.Harness(function, key=key, schema=FLIGHT, event_time=time, output=output) as job:
        for flights in epochs:
            job.process_all([row(each, "id", "tailnum", "origin", "arr_delay", "ts") for each in flights])
            job.end_epoch()
        job.end_input()
        found = list(map(shown, job.outputs))
    assert_expected(name, epochs, found)
