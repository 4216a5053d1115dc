"""Compares the output of the killed and continued run with an answer that was computed without state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

#: The operator, and its key.
Key = tuple[str, str | None]


class Totals(NamedTuple):
    """What the demo knows of a key at the end."""

    flights: int
    delay: int | None
    destinations: list[str]


def compare(expected: Mapping[Key, Totals], output: Path) -> dict[str, Any]:
    """Return the verdict: keys compared, keys that differ (a few of them in full), the busiest aircraft."""
    found = _of_run(ds.dataset(output).to_table())
    keys = expected.keys() | found.keys()
    different = sorted((key for key in keys if expected.get(key) != found.get(key)), key=str)
    aircraft = {key: found[operator, key] for operator, key in found if operator == "aircraft" and key}
    return {
        "keys": len(keys),
        "different": len(different),
        "examples": [f"{key}: {expected.get(key)} and {found.get(key)}" for key in different[:5]],
        "busiest": sorted(aircraft.items(), key=lambda item: (-item[1].flights, item[0]))[:10],
    }


def answer_of_loop(flights: Path) -> dict[Key, Totals]:
    """Return the totals of each aircraft, by a loop over the flights."""
    totals: dict[str | None, list[Any]] = defaultdict(lambda: [0, 0, set()])
    for tailnum, delay, dest in _rows(ds.dataset(flights).to_table(), "tailnum", "arr_delay", "dest"):
        total = totals[tailnum]
        total[0] += 1
        total[1] += delay or 0
        total[2].add(dest)
    return {
        ("aircraft", key): Totals(flown, delay, sorted(seen)) for key, (flown, delay, seen) in totals.items()
    }


def answer_in(folder: Path) -> dict[Key, Totals]:
    """Return the totals of each operator and key as a job has written them."""
    rows = _rows(ds.dataset(folder).to_table(), "operator", "key", *Totals._fields)
    return {(operator, key): Totals(*totals) for operator, key, *totals in rows}


def _of_run(output: pa.Table) -> dict[Key, Totals]:
    """Return the totals from the running ones.

    A flight that was lost or counted twice makes the last running count or the number of rows wrong: then the
    number of flights is -1.
    """
    running: dict[Key, dict[int, int | None]] = defaultdict(dict)
    rows: dict[Key, int] = defaultdict(int)
    seen: dict[Key, list[str]] = defaultdict(list)
    columns = ("operator", "key", "flights", "delay", "new_destination")
    for operator, key, flights, delay, destination in _rows(output, *columns):
        rows[operator, key] += 1
        running[operator, key][flights] = delay
        if destination is not None:
            seen[operator, key].append(destination)
    found = {}
    for key, delays in running.items():
        flights = max(delays)
        right = flights == rows[key] == len(delays)
        found[key] = Totals(flights if right else -1, delays[flights], sorted(seen[key]))
    return found


def _rows(table: pa.Table, *columns: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(table[name].to_pylist() for name in columns), strict=True)
