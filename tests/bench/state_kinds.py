"""Calls of the handles of each kind of state, set up like Flink's state benchmark, without and with TTL.

Flink's numbers: 500,000 keys preloaded, 500,000 added, 10 entries a map, lists of 100 values.  The floor is a
class over one plain dict that does the same for the same keys and knows no key groups, no namespaces, no
checks and no time.

Floor, state and state with TTL are each in a process of their own, so that the cycle collector of one does
not walk through the objects of the others; they take turns, and a time is that of the processor.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from operator import add
from typing import Any

import pyarrow as pa
from measuring import GROUPS, Result, open_backend

from keyedstate import types
from keyedstate.murmur3 import key_groups as key_groups_of
from keyedstate.state import ListState, MapState, ReducingState, Ttl, ValueState

Rows = list[tuple[int, int]]

#: What is asked for of the calls of value and map state.
TTL_LIMIT = "TTL at most 1.4"


@dataclass(frozen=True)
class Sizes:
    """How much there is: keys preloaded and added, values of a long list, entries of a map."""

    keys: int
    added: int
    list_values: int
    map_entries: int


class PlainValue:
    """The floor of value state."""

    def __init__(self) -> None:
        self.key: Any = None
        self.stored: dict[int, int] = {}

    def value(self) -> int | None:
        return self.stored.get(self.key)

    def update(self, value: int) -> None:
        self.stored[self.key] = value

    def clear(self) -> None:
        self.stored.pop(self.key, None)


class PlainList:
    """The floor of list state."""

    def __init__(self) -> None:
        self.key: Any = None
        self.stored: dict[int, list[int]] = {}

    def get(self) -> list[int]:
        values = self.stored.get(self.key)
        return [] if values is None else values.copy()

    def add(self, value: int) -> None:
        values = self.stored.get(self.key)
        if values is None:
            self.stored[self.key] = [value]
        else:
            values.append(value)

    def add_all(self, new: list[int]) -> None:
        values = self.stored.get(self.key)
        if values is None:
            self.stored[self.key] = new.copy()
        else:
            values.extend(new)

    def update(self, values: list[int]) -> None:
        self.stored[self.key] = values.copy()

    def clear(self) -> None:
        self.stored.pop(self.key, None)


class PlainMap:
    """The floor of map state."""

    def __init__(self) -> None:
        self.key: Any = None
        self.stored: dict[int, dict[int, int]] = {}

    def get(self, map_key: int) -> int | None:
        entries = self.stored.get(self.key)
        return None if entries is None else entries.get(map_key)

    def contains(self, map_key: int) -> bool:
        entries = self.stored.get(self.key)
        return entries is not None and map_key in entries

    def put(self, map_key: int, value: int) -> None:
        entries = self.stored.get(self.key)
        if entries is None:
            self.stored[self.key] = {map_key: value}
        else:
            entries[map_key] = value

    def put_all(self, new: dict[int, int]) -> None:
        entries = self.stored.get(self.key)
        if entries is None:
            self.stored[self.key] = new.copy()
        else:
            entries.update(new)

    def items(self) -> Iterable[tuple[int, int]]:
        return self.stored.get(self.key, {}).items()

    def keys(self) -> Iterable[int]:
        return self.stored.get(self.key, {}).keys()

    def clear(self) -> None:
        self.stored.pop(self.key, None)


class PlainReducing:
    """The floor of reducing state."""

    def __init__(self) -> None:
        self.key: Any = None
        self.stored: dict[int, int] = {}

    def get(self) -> int | None:
        return self.stored.get(self.key)

    def add(self, value: int) -> None:
        total = self.stored.get(self.key)
        self.stored[self.key] = value if total is None else add(total, value)

    def clear(self) -> None:
        self.stored.pop(self.key, None)


@dataclass(frozen=True)
class Case:
    """A call that is timed: over the keys that are there or over new ones, or what a walk goes through."""

    what: str
    method: str
    arguments: tuple[Any, ...] = ()
    new_keys: bool = False
    walk: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of state: how it is declared, its floor, what every key is preloaded with, and what is timed."""

    declare: Callable[[Ttl | None], Any]
    floor: Callable[[], Any]
    preload: Case
    cases: tuple[Case, ...]
    limit: str = ""


def kinds(sizes: Sizes) -> dict[str, Kind]:
    """Return the kinds by name."""
    long_list = list(range(sizes.list_values))
    entries = {entry: entry for entry in range(sizes.map_entries)}
    return {
        "value": Kind(
            lambda ttl: ValueState("value", types.INT64, ttl=ttl),
            PlainValue,
            Case("", "update", (1,)),
            (
                Case("value get", "value"),
                Case("value update", "update", (7,)),
                Case("value add", "update", (7,), new_keys=True),
            ),
            TTL_LIMIT,
        ),
        "list": Kind(
            lambda ttl: ListState("list", types.INT64, ttl=ttl),
            PlainList,
            Case("", "add", (1,)),
            (
                Case("list get of 1", "get"),
                Case("list add", "add", (7,), new_keys=True),
                Case("list append", "add", (7,)),
            ),
        ),
        "long list": Kind(
            lambda ttl: ListState("list", types.INT64, ttl=ttl),
            PlainList,
            Case("", "update", (long_list,)),
            (
                Case(f"list get of {sizes.list_values}", "get"),
                Case(f"list get and iterate over {sizes.list_values}", "get", walk=True),
                Case(f"list update with {sizes.list_values}", "update", (long_list,)),
                Case(f"list add_all of {sizes.list_values}", "add_all", (long_list,), new_keys=True),
            ),
        ),
        "map": Kind(
            lambda ttl: MapState("map", types.INT64, types.INT64, ttl=ttl),
            PlainMap,
            Case("", "put_all", (entries,)),
            (
                Case("map get", "get", (3,)),
                Case("map contains", "contains", (3,)),
                Case("map put", "put", (3, 7)),
                Case("map add", "put", (3, 7), new_keys=True),
                Case(f"map iterate over {sizes.map_entries}", "items", walk=True),
                Case(f"map keys of {sizes.map_entries}", "keys", walk=True),
            ),
            TTL_LIMIT,
        ),
        "reducing": Kind(
            lambda ttl: ReducingState("reducing", add, types.INT64, ttl=ttl),
            PlainReducing,
            Case("", "add", (1,)),
            (
                Case("reducing get", "get"),
                Case("reducing add to a value", "add", (7,)),
                Case("reducing add", "add", (7,), new_keys=True),
            ),
        ),
    }


def sizes_of(kind: str, sizes: Sizes) -> Sizes:
    """Return the sizes that fit into memory: a tenth of the keys where every key has a long list."""
    if kind != "long list":
        return sizes
    return Sizes(sizes.keys // 10, sizes.added // 10, sizes.list_values, sizes.map_entries)


class Subject:
    """One kind in one process: the floor, a state, or a state with TTL."""

    def __init__(self, kind: str, sizes: Sizes, backend: str | None, ttl: Ttl | None) -> None:
        self.kind = kinds(sizes)[kind]
        own = sizes_of(kind, sizes)
        self.old, self.new = rows_of(range(own.keys)), rows_of(range(own.keys, own.keys + own.added))
        if backend is None:
            self.state = self.kind.floor()
            self.visit = self._visit_floor
        else:
            self.backend = open_backend(backend, types.INT64)
            self.state = self.backend.get_state(self.kind.declare(ttl))
            self.visit = self._visit_state
        preload = self.kind.preload
        # Not the objects that are looked up later: those come with new rows.
        self.visit(sorted(rows_of(range(own.keys)), key=lambda row: row[1]), preload)
        random.Random(42).shuffle(self.old)

    def measure(self, name: str, timed: bool) -> float:
        """Return the seconds of one run over all rows of a case, per row.

        `timed` looks at the clock before each row, as the operator does where a state has a time to live:
        once, however many calls follow.
        """
        case = next(case for case in self.kind.cases if case.what == name)
        rows = self.new if case.new_keys else self.old
        if case.new_keys:
            self.visit(rows, Case("", "clear"))
        gc.collect()
        started = time.process_time()
        if timed:
            self._visit_timed(rows, case)
        else:
            self.visit(rows, case)
        return (time.process_time() - started) / len(rows)

    def _visit_floor(self, rows: Rows, case: Case) -> None:
        floor, call = self.state, self._call(case)
        for _, floor.key in rows:
            call(*case.arguments)

    def _visit_state(self, rows: Rows, case: Case) -> None:
        current, call = self.backend.current, self._call(case)
        for current.key_group, current.key in rows:
            call(*case.arguments)

    def _visit_timed(self, rows: Rows, case: Case) -> None:
        current, call = self.backend.current, self._call(case)
        on_record = self.backend.on_record
        assert on_record is not None
        for current.key_group, current.key in rows:
            on_record()
            call(*case.arguments)

    def _call(self, case: Case) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self.state, case.method)
        if not case.walk:
            return method

        def walk() -> None:
            for _ in method():
                pass

        return walk


def rows_of(keys: Iterable[int]) -> Rows:
    found = list(keys)
    return list(zip(key_groups_of([pa.array(found, pa.int64())], GROUPS).tolist(), found, strict=True))


def serve(connection: Connection, *arguments: Any) -> None:
    """Set a subject up and measure what is asked for, until asked for nothing."""
    subject = Subject(*arguments)
    connection.send([case.what for case in subject.kind.cases])
    while question := connection.recv():
        connection.send(subject.measure(*question))


def compare(kind: str, sizes: Sizes, backend: str, rounds: int) -> dict[str, dict[str, float]]:
    """Return the median seconds per row as {case: {subject: seconds}}."""
    ttl = Ttl.of("1 hour")
    spawn = multiprocessing.get_context("spawn")
    ends: dict[str, Connection] = {}
    processes = []
    for name, arguments in {"floor": (None, None), "state": (backend, None), "TTL": (backend, ttl)}.items():
        ends[name], other = spawn.Pipe()
        processes.append(spawn.Process(target=serve, args=(other, kind, sizes, *arguments)))
        processes[-1].start()
        other.close()
    subjects = {name: (end, False) for name, end in ends.items()} | {"record": (ends["TTL"], True)}
    found: dict[str, dict[str, float]] = {}
    try:
        *_, cases = [end.recv() for end in ends.values()]
        for case in cases:
            times: dict[str, list[float]] = {name: [] for name in subjects}
            for _ in range(rounds):
                for name, (end, timed) in subjects.items():
                    end.send((case, timed))
                    times[name].append(end.recv())
            found[case] = {name: statistics.median(values) for name, values in times.items()}
        for end in ends.values():
            end.send(None)
    finally:
        for end in ends.values():
            end.close()
        for process in processes:
            process.join()
    return found


def kinds_against_plain(backend: str, sizes: Sizes, rounds: int, chosen: list[str]) -> list[Result]:
    """Compare the kinds of one backend, without and with TTL, with their floors."""
    results = []
    for name, kind in kinds(sizes).items():
        if chosen and name not in chosen:
            continue
        for what, seconds in compare(name, sizes, backend, rounds).items():
            floor, state, ttl, record = (
                seconds[subject] * 1e9 for subject in ("floor", "state", "TTL", "record")
            )
            others = {"TTL / floor": ttl / floor, "TTL / state": ttl / state, "per row": record / state}
            results.append(
                Result(
                    f"{what}, {backend}",
                    f"{state:,.0f} ns, TTL {ttl:,.0f} ns",
                    f"plain dict {floor:,.0f} ns",
                    state / floor,
                    kind.limit,
                    others,
                )
            )
    return results
