"""State tables against a plain dict: access, growth and the synchronous part of a snapshot."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from measuring import VOID, Keys, Result, filled, medians, new_table, per_operation

from keyedstate import types
from keyedstate.backend import AnyStateTable

UNDER_SNAPSHOT = "heap-cow under a live snapshot"
LISTS = types.list_of(types.INT64)


class WrappedDict:
    """The floor of access: a class with a table's methods over one plain dict."""

    def __init__(self) -> None:
        self._entries: dict[Any, Any] = {}

    def get(self, key_group: int, key: Any, namespace: Any) -> Any:
        return self._entries.get(key)

    def put(self, key_group: int, key: Any, namespace: Any, value: Any) -> None:
        self._entries[key] = value

    def __len__(self) -> int:
        return len(self._entries)


class CopyingDict(WrappedDict):
    """The floor of reading mutable values that a snapshot shows: a copy of the dict holds the old values, and
    each read keeps and returns a copy of its value.
    """

    def snapshot(self) -> CopyingDict:
        self._held = self._entries.copy()
        return self

    def release(self) -> None:
        self._held.clear()

    def get(self, key_group: int, key: Any, namespace: Any) -> Any:
        value = self._entries[key] = self._entries[key].copy()
        return value


def time_gets(table: Any, keys: Keys) -> float:
    get = table.get
    started = time.perf_counter()
    for group, key in keys.visits:
        get(group, key, VOID)
    return time.perf_counter() - started


def time_puts(table: Any, keys: Keys) -> float:
    put = table.put
    started = time.perf_counter()
    for group, key in keys.visits:
        put(group, key, VOID, 7)
    return time.perf_counter() - started


def access(entries: int, rounds: int) -> list[Result]:
    keys = Keys(entries)
    floor = filled(WrappedDict(), keys)
    tables: dict[str, Any] = {
        "heap-cow": filled(new_table("heap-cow"), keys),
        "heap-cow, not compiled": filled(new_table("heap-cow", **{"heap-cow.compiled": "never"}), keys),
        "nested-map": filled(new_table("nested-map"), keys),
    }
    results = []
    for verb, measure in (("get", time_gets), ("put", time_puts)):
        measures = {name: partial(measure, table, keys) for name, table in tables.items()}
        measures["floor"] = partial(measure, floor, keys)
        measures[UNDER_SNAPSHOT] = partial(under_snapshot, measure, tables["heap-cow"], keys)
        found = medians(measures, rounds)
        floor_ns = found.pop("floor") / entries * 1e9
        limits = {"heap-cow": "at most 1.5", UNDER_SNAPSHOT: "at most 2.5"}
        for name, seconds in found.items():
            limit = limits.get(name, "")
            results.append(
                per_operation(f"{verb}, {name}", seconds, entries, "wrapped dict", floor_ns, limit)
            )
    del tables
    lists = [
        filled(made, keys, lambda number: [number]) for made in (new_table("heap-cow", LISTS), CopyingDict())
    ]
    found = medians(
        {
            "heap-cow": partial(under_snapshot, time_gets, lists[0], keys),
            "floor": partial(under_snapshot, time_gets, lists[1], keys),
        },
        rounds,
    )
    what = f"get, {UNDER_SNAPSHOT}, each value a list that is copied"
    floor_ns = found["floor"] / entries * 1e9
    results.append(per_operation(what, found["heap-cow"], entries, "copying dict", floor_ns, "at most 2.5"))
    return results


def under_snapshot(measure: Callable[[Any, Keys], float], table: Any, keys: Keys) -> float:
    snapshot = table.snapshot()
    try:
        return measure(table, keys)
    finally:
        snapshot.release()


def longest_put(table: Any, keys: Keys) -> float:
    put, clock = table.put, time.perf_counter_ns
    longest = 0
    gc.disable()  # a collection that happens to fall into a put is not the table's
    try:
        for group, key in zip(keys.groups, keys.keys, strict=True):
            started = clock()
            put(group, key, VOID, 1)
            longest = max(longest, clock() - started)
    finally:
        gc.enable()
    return longest / 1e6


def growth(entries: int, rounds: int) -> list[Result]:
    keys = Keys(entries)
    found = medians(
        {
            "heap-cow": lambda: longest_put(new_table("heap-cow"), keys),
            "nested-map": lambda: longest_put(new_table("nested-map"), keys),
            "floor": lambda: longest_put(WrappedDict(), keys),
        },
        rounds,
    )
    floor = found.pop("floor")
    what = f"longest put while growing to {entries:,}"
    return [
        Result(
            f"{what}, {name}",
            f"{ms:.2f} ms",
            f"wrapped dict {floor:.2f} ms",
            ms / floor,
            "",
        )
        for name, ms in found.items()
    ]


def time_snapshot(table: AnyStateTable) -> float:
    started = time.perf_counter()
    snapshot = table.snapshot()
    seconds = time.perf_counter() - started
    snapshot.release()
    return seconds


def synchronous(entries: int, rounds: int, limit: str) -> list[Result]:
    keys = Keys(entries)
    table = filled(new_table("heap-cow"), keys)
    plain = dict.fromkeys(keys.keys, 1)

    def copy_dict() -> float:
        started = time.perf_counter()
        plain.copy()
        return time.perf_counter() - started

    found = medians({"snapshot": lambda: time_snapshot(table), "floor": copy_dict}, max(rounds, 5))
    ms, floor = found["snapshot"] * 1e3, found["floor"] * 1e3
    return [
        Result(
            f"synchronous part of a snapshot, {entries:,} entries",
            f"{ms:.2f} ms",
            f"dict.copy() {floor:.1f} ms",
            ms / floor,
            limit,
        )
    ]
