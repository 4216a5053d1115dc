"""Compares the output of the killed and continued run with a loop over the same flights."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds


def compare(work: Path) -> dict[str, Any]:
    """Return the verdict: keys compared, keys that differ (a few of them in full), the busiest aircraft."""
    expected = _of_loop(ds.dataset(work / "flights").to_table(columns=["tailnum", "arr_delay", "dest"]))
    found = _of_run(ds.dataset(work / "output").to_table())
    keys = expected.keys() | found.keys()
    different = sorted(key or "" for key in keys if expected.get(key) != found.get(key))
    busiest = sorted((aircraft for aircraft in found if aircraft is not None), key=lambda key: -found[key][0])
    return {
        "keys": len(keys),
        "different": len(different),
        "examples": [f"{key}: {expected.get(key)} and {found.get(key)}" for key in different[:5]],
        "busiest": [
            {
                "key": key,
                "flights": found[key][0],
                "delay": found[key][1],
                "destinations": len(found[key][2]),
            }
            for key in busiest[:10]
        ],
    }


def _of_loop(flights: pa.Table) -> dict[str | None, tuple[int, int, list[str]]]:
    """Return flights, delay and destinations by aircraft."""
    totals: dict[str | None, list[Any]] = defaultdict(lambda: [0, 0, set()])
    columns = (flights[name].to_pylist() for name in ("tailnum", "arr_delay", "dest"))
    for tailnum, delay, dest in zip(*columns, strict=True):
        total = totals[tailnum]
        total[0] += 1
        total[1] += delay or 0
        total[2].add(dest)
    return {key: (flights, delay, sorted(seen)) for key, (flights, delay, seen) in totals.items()}


def _of_run(output: pa.Table) -> dict[str | None, tuple[int, int, list[str]]]:
    """Return the same from the running totals.

    A flight that was lost or counted twice makes the last running count or the number of rows wrong: then the
    number of flights is -1.
    """
    last: dict[str | None, tuple[int, int]] = {}
    counts: dict[str | None, set[int]] = defaultdict(set)
    rows: dict[str | None, int] = defaultdict(int)
    seen: dict[str | None, list[str]] = defaultdict(list)
    columns = (output[name].to_pylist() for name in ("key", "flights", "delay", "new_destination"))
    for key, flights, delay, destination in zip(*columns, strict=True):
        rows[key] += 1
        counts[key].add(flights)
        last[key] = max(last.get(key, (0, 0)), (flights, delay))
        if destination is not None:
            seen[key].append(destination)
    return {
        key: (
            flights if flights == rows[key] == len(counts[key]) else -1,
            delay,
            sorted(seen[key]),
        )
        for key, (flights, delay) in last.items()
    }
