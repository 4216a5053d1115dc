"""State in columns: the first change after a snapshot, and the memory of an entry."""

from __future__ import annotations

import gc
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from measuring import GROUPS, VOID, Result, medians, open_backend

from keyedstate import types
from keyedstate.backend import Column, LocatedEntries
from keyedstate.murmur3 import key_groups as key_groups_of
from keyedstate.state import ValueState

#: The accumulators of `count` and of the `sum` of whole numbers.
ACCUMULATORS = types.accumulators_of(dict.fromkeys(["count", "sum"], types.nullable(types.INT64)))
#: Keys that come in one call while a table is filled.
_FILLED_TOGETHER = 100_000
_CHANGED = (1_000, 100_000)


class Batch:
    """Keys of rows with their key groups: those of a range of numbers, or of chosen ones."""

    def __init__(self, numbers: Any) -> None:
        self.keys = pa.array([f"customer-{number:08}" for number in numbers])
        self.groups = key_groups_of([self.keys], GROUPS)

    @property
    def key_bytes(self) -> int:
        return sum(map(len, self.keys.to_pylist()))

    def located(self, table: Any) -> LocatedEntries:
        found: LocatedEntries = table.locate([self.keys], self.groups, [VOID])
        return found


def add(found: LocatedEntries) -> None:
    """Add one row to the count and the sum of each entry."""
    old = found.read()
    columns = [Column(np.where(column.there, column.values, 0) + 1) for column in old]
    found.write(columns)


def filled_columns(entries: int, keys_at_once: int = _FILLED_TOGETHER) -> Any:
    """Return a table whose entries came in batches."""
    backend = open_backend("heap-cow")
    backend.get_state(ValueState("state", ACCUMULATORS))
    table: Any = backend._tables["state"]
    for start in range(0, entries, keys_at_once):
        add(Batch(range(start, min(start + keys_at_once, entries))).located(table))
    return table


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def first_change(entries: int, rounds: int) -> list[Result]:
    """Time changes of spread entries with and without a snapshot, against copying all columns."""
    filled_columns(_FILLED_TOGETHER)  # what is loaded once, or used by each batch, is no memory of entries
    gc.collect()
    before = resident_bytes()
    table = filled_columns(entries)
    gc.collect()
    used = resident_bytes() - before
    key_bytes = Batch([entries]).key_bytes * entries
    beside = (used - key_bytes) / entries
    results = [
        Result(
            f"memory of an entry beside its key, {entries:,} entries",
            f"{beside:.0f} bytes",
            f"key {key_bytes // entries} bytes",
            None,
            "at most 60 bytes",
        )
    ]
    columns = [np.ones(entries, np.int64), np.ones(entries, np.int64)]
    flags = [np.ones(entries, np.uint8) for _ in range(3)]
    chosen = np.random.default_rng(11)

    def change(rows: int, snapshots: int) -> float:
        # Located before the time counts: a snapshot changes nothing in that.
        found = Batch(chosen.choice(entries, rows, replace=False).tolist()).located(table)
        held = [table.snapshot() for _ in range(snapshots)]
        started = time.perf_counter()
        add(found)
        seconds = time.perf_counter() - started
        for snapshot in held:
            snapshot.release()
        return seconds

    def copy() -> float:
        started = time.perf_counter()
        for array in (*columns, *flags):
            array.copy()
        return time.perf_counter() - started

    for rows in _CHANGED:
        found = medians(
            {"after": partial(change, rows, 1), "without": partial(change, rows, 0), "copy": copy},
            max(rounds, 5),
        )
        after, without, floor = (found[name] * 1e3 for name in ("after", "without", "copy"))
        results.append(
            Result(
                f"pause of the first change after a snapshot, {rows:,} of {entries:,} entries",
                f"{after - without:.2f} ms ({after:.2f} ms in all)",
                f"copy of all columns {floor:.1f} ms",
                (after - without) / floor,
                "at most 5 ms",
            )
        )
    return results
