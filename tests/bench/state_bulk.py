"""Bulk methods of the handles against the loop of single calls, and both against a plain dict.

A call has 10,000 rows, as Spark's Arrow batches have, over a state of many more keys; the keys of the rows
are equal to those that are stored, and other objects.  Key groups are given to both sides.  Two loops:

- the public one, `KeyedStateBackend.set_current_key` and the single call: it checks keys and key groups, as
  the bulk method does;
- the bare one, which sets the attributes of the current key as an operator does with rows that it trusts.

The plain dict does the unavoidable part: look-ups, copies and the user's function, in one loop without checks
and without namespaces.  A bulk method of dicts cannot be faster, so the ratio of the loop to it is the most
that is to be had.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable
from operator import add
from typing import Any

from measuring import Keys, Result, open_backend

from keyedstate import types
from keyedstate.state import (
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

BATCH = 10_000
ENTRIES = {entry: entry for entry in range(10)}
WANTED = list(ENTRIES)
VALUE = ValueState("value", types.INT64)
LIST = ListState("list", types.INT64)
MAP = MapState("map", types.INT64, types.INT64)
TOTAL = ReducingState("total", add, types.INT64)

Columns = tuple[list[Any], ...]


class Sum(AggregateFunction[int, int, int]):
    """A sum, as users write it."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator


SUM = AggregatingState("sum", Sum(), types.INT64)


class Measured:
    """One case: a state that every key has, a single call, the bulk method, and the same over a dict."""

    def __init__(
        self,
        declared: Any,
        fill: Callable[[KeyedStateBackend, Any, Keys], None],
        single: Callable[[Any], Callable[..., Any]],
        bulk: str | None,
        plain: Callable[..., Any],
        column: Callable[[int], Any] | None = None,
        second: Callable[[int], Any] | None = None,
    ) -> None:
        self.declared, self.fill, self.single, self.bulk, self.plain = declared, fill, single, bulk, plain
        self.makers = [maker for maker in (column, second) if maker is not None]


def fill_values(backend: KeyedStateBackend, handle: Any, keys: Keys) -> None:
    handle.update_many(keys.keys, range(len(keys.keys)), keys.groups)


def fill_lists(backend: KeyedStateBackend, handle: Any, keys: Keys) -> None:
    handle.update_many(keys.keys, [[number] for number in range(len(keys.keys))], keys.groups)


def fill_maps(backend: KeyedStateBackend, handle: Any, keys: Keys) -> None:
    for backend.current.key_group, backend.current.key in zip(keys.groups, keys.keys, strict=True):
        handle.put_all(ENTRIES)


def fill_totals(backend: KeyedStateBackend, handle: Any, keys: Keys) -> None:
    handle.add_many(keys.keys, range(len(keys.keys)), keys.groups)


def put_entries(handle: Any) -> Callable[[], None]:
    put = handle.put

    def run() -> None:
        for map_key, value in ENTRIES.items():
            put(map_key, value)

    return run


def get_entries(handle: Any) -> Callable[[], Any]:
    get = handle.get
    return lambda: {map_key: get(map_key) for map_key in WANTED}


def remove_entries(handle: Any) -> Callable[[], None]:
    remove = handle.remove

    def run() -> None:
        for map_key in WANTED:
            remove(map_key)

    return run


# -- over a dict: `stored` by key, then the columns -------------------------------------------------


def plain_get(stored: dict[str, Any], keys: list[str]) -> Any:
    return [stored.get(key) for key in keys]


def plain_update(stored: dict[str, Any], keys: list[str], values: list[Any]) -> None:
    for key, value in zip(keys, values, strict=True):
        stored[key] = value


def plain_copies(stored: dict[str, Any], keys: list[str]) -> Any:
    return [stored[key].copy() for key in keys]


def plain_append(stored: dict[str, Any], keys: list[str], values: list[Any]) -> None:
    for key, value in zip(keys, values, strict=True):
        stored[key].append(value)


def plain_lists(stored: dict[str, Any], keys: list[str], lists: list[Any]) -> None:
    for key, values in zip(keys, lists, strict=True):
        stored[key] = values.copy()


def plain_put(stored: dict[str, Any], keys: list[str], map_keys: list[Any], values: list[Any]) -> None:
    for key, map_key, value in zip(keys, map_keys, values, strict=True):
        stored[key][map_key] = value


def plain_add(stored: dict[str, Any], keys: list[str], values: list[Any]) -> None:
    for key, value in zip(keys, values, strict=True):
        stored[key] = add(stored[key], value)


def plain_sum(stored: dict[str, Any], keys: list[str], values: list[Any]) -> None:
    function = Sum().add
    for key, value in zip(keys, values, strict=True):
        stored[key] = function(value, stored[key])


def plain_clear(stored: dict[str, Any], keys: list[str]) -> None:
    for key in keys:
        del stored[key]


def plain_put_all(stored: dict[str, Any], keys: list[str]) -> None:
    for key in keys:
        stored[key].update(ENTRIES)


def plain_get_all(stored: dict[str, Any], keys: list[str]) -> Any:
    found = []
    for key in keys:
        entries = stored[key]
        found.append({map_key: entries[map_key] for map_key in WANTED})
    return found


def plain_remove_all(stored: dict[str, Any], keys: list[str]) -> None:
    for key in keys:
        entries = stored[key]
        for map_key in WANTED:
            entries.pop(map_key, None)
        del stored[key]


CASES = {
    "value get_many": Measured(VALUE, fill_values, lambda h: h.value, "get_many", plain_get),
    "value update_many": Measured(VALUE, fill_values, lambda h: h.update, "update_many", plain_update, int),
    "value clear_many": Measured(VALUE, fill_values, lambda h: h.clear, "clear_many", plain_clear),
    "list get_many": Measured(LIST, fill_lists, lambda h: h.get, "get_many", plain_copies),
    "list add_many": Measured(LIST, fill_lists, lambda h: h.add, "add_many", plain_append, int),
    "list update_many": Measured(
        LIST, fill_lists, lambda h: h.update, "update_many", plain_lists, lambda row: [row]
    ),
    "list update_many, 10 values": Measured(
        LIST,
        fill_lists,
        lambda h: h.update,
        "update_many",
        plain_lists,
        lambda row: list(range(row, row + 10)),
    ),
    "map get_many": Measured(MAP, fill_maps, lambda h: lambda: dict(h.items()), "get_many", plain_copies),
    "map put_many": Measured(
        MAP, fill_maps, lambda h: h.put, "put_many", plain_put, lambda row: row % 10, int
    ),
    "map put_all of 10": Measured(MAP, fill_maps, put_entries, None, plain_put_all),
    "map get_all of 10": Measured(MAP, fill_maps, get_entries, None, plain_get_all),
    "map remove_all of 10": Measured(MAP, fill_maps, remove_entries, None, plain_remove_all),
    "reducing get_many": Measured(TOTAL, fill_totals, lambda h: h.get, "get_many", plain_get),
    "reducing add_many": Measured(TOTAL, fill_totals, lambda h: h.add, "add_many", plain_add, int),
    "aggregating get_many": Measured(SUM, fill_totals, lambda h: h.get, "get_many", plain_get),
    "aggregating add_many": Measured(SUM, fill_totals, lambda h: h.add, "add_many", plain_sum, int),
}

#: The methods that take several map keys of one key, with what they are given.
WITHIN: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "map put_all of 10": lambda handle: lambda: handle.put_all(ENTRIES),
    "map get_all of 10": lambda handle: lambda: handle.get_all(WANTED),
    "map remove_all of 10": lambda handle: lambda: handle.remove_all(WANTED),
}


class Runner:
    """One case over one backend, in a process of its own."""

    def __init__(self, name: str, backend: str, entries: int) -> None:
        self.name, self.case = name, CASES[name]
        self.keys = Keys(entries)
        self.backend: KeyedStateBackend = open_backend(backend)
        self.handle: Any = self.backend.get_state(self.case.declared)
        self.plain: dict[str, Any] = {}
        self.refill()
        parts = [self.keys.visits[start : start + BATCH] for start in range(0, entries, BATCH)]
        #: Per call its key groups, its keys and its further columns.
        self.calls: list[tuple[list[int], list[str], Columns]] = [
            (
                [group for group, _ in part],
                [key for _, key in part],
                tuple([maker(row) for row in range(len(part))] for maker in self.case.makers),
            )
            for part in parts
        ]

    def refill(self) -> None:
        """Give each key what it began with."""
        self.case.fill(self.backend, self.handle, self.keys)
        if self.case.declared is LIST:
            self.plain.update((key, [number]) for number, key in enumerate(self.keys.keys))
        elif self.case.declared is MAP:
            self.plain.update(
                (key, dict.fromkeys(WANTED, number)) for number, key in enumerate(self.keys.keys)
            )
        else:
            self.plain.update((key, number) for number, key in enumerate(self.keys.keys))

    def public_loop(self, groups: list[int], keys: list[str], columns: Columns) -> Any:
        if self.case.bulk is None:  # to make a key the current one is no part of either
            return self.bare_loop(groups, keys, columns)
        return self._loop(self.case.single(self.handle), groups, keys, columns)

    def _loop(self, call: Callable[..., Any], groups: list[int], keys: list[str], columns: Columns) -> Any:
        set_current_key = self.backend.set_current_key
        found = []  # a bulk method returns all results, so the loop keeps them too
        if not columns:
            for group, key in zip(groups, keys, strict=True):
                set_current_key(key, group)
                found.append(call())
        elif len(columns) == 1:
            for group, key, value in zip(groups, keys, *columns, strict=True):
                set_current_key(key, group)
                call(value)
        else:
            for group, key, first, second in zip(groups, keys, *columns, strict=True):
                set_current_key(key, group)
                call(first, second)
        return found

    def bare_loop(self, groups: list[int], keys: list[str], columns: Columns) -> Any:
        return self._bare_loop(self.case.single(self.handle), groups, keys, columns)

    def _bare_loop(
        self, call: Callable[..., Any], groups: list[int], keys: list[str], columns: Columns
    ) -> Any:
        current = self.backend.current
        found = []
        if not columns:
            for current.key_group, current.key in zip(groups, keys, strict=True):
                found.append(call())
        elif len(columns) == 1:
            for current.key_group, current.key, value in zip(groups, keys, *columns, strict=True):
                call(value)
        else:
            for current.key_group, current.key, first, second in zip(groups, keys, *columns, strict=True):
                call(first, second)
        return found

    def bulk(self, groups: list[int], keys: list[str], columns: Columns) -> Any:
        if self.case.bulk is None:
            return self._bare_loop(WITHIN[self.name](self.handle), groups, keys, columns)
        return getattr(self.handle, self.case.bulk)(keys, *columns, groups)

    def unlocated_loop(self, groups: list[int], keys: list[str], columns: Columns) -> Any:
        """Run the public loop without knowing the key groups."""
        return self._loop(self.case.single(self.handle), [None] * len(keys), keys, columns)  # type: ignore[list-item]

    def unlocated_bulk(self, groups: list[int], keys: list[str], columns: Columns) -> Any:
        """Run the bulk method without knowing the key groups."""
        if self.case.bulk is None:
            call = WITHIN[self.name](self.handle)
            return self._loop(call, [None] * len(keys), keys, columns)  # type: ignore[list-item]
        return getattr(self.handle, self.case.bulk)(keys, *columns)

    def plain_dict(self, groups: list[int], keys: list[str], columns: Columns) -> Any:
        return self.case.plain(self.plain, keys, *columns)

    def measure(self, rounds: int) -> dict[str, float]:
        """Return the median nanoseconds per row of each way."""
        ways = (
            self.public_loop,
            self.bare_loop,
            self.bulk,
            self.unlocated_loop,
            self.unlocated_bulk,
            self.plain_dict,
        )
        times: dict[str, list[float]] = {way.__name__: [] for way in ways}
        removes = "clear" in self.name or "remove" in self.name
        for _ in range(rounds):
            for way in ways:
                self.refill() if removes else None
                gc.collect()
                calls = random.Random(42).sample(self.calls, len(self.calls))
                started = time.process_time()
                for call in calls:
                    way(*call)
                times[way.__name__].append(time.process_time() - started)
        return {name: statistics.median(found) / len(self.keys.keys) * 1e9 for name, found in times.items()}


def run(name: str, backend: str, entries: int, rounds: int) -> dict[str, float]:
    """Measure one case, in a fresh process."""
    return Runner(name, backend, entries).measure(rounds)


def bulk_against_loops(backend: str, entries: int, rounds: int, chosen: list[str]) -> list[Result]:
    """Compare each bulk method of one backend with its loops."""
    results = []
    for name in CASES:
        if chosen and not any(part in name for part in chosen):
            continue
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.apply(run, (name, backend, entries, rounds))
        loop, bulk, plain = found["public_loop"], found["bulk"], found["plain_dict"]
        results.append(
            Result(
                f"{name}, {backend}",
                f"{bulk:,.0f} ns",
                f"loop {loop:,.0f} ns",
                loop / bulk,
                "at least 2",
                {
                    "bare loop": found["bare_loop"] / bulk,
                    "groups computed": found["unlocated_loop"] / found["unlocated_bulk"],
                    "loop / dict": loop / plain,
                    "bulk / dict": bulk / plain,
                },
            )
        )
    return results
