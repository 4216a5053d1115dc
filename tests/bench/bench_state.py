"""State tables against a plain dict, in one run: access, growth, snapshot and restore.

    python tests/bench/bench_state.py [--entries N] [--rounds N] [--markdown FILE] ...

Every figure is a median over interleaved rounds, and a ratio to its floor in the same run:

- access: one table call per operation against the same call of a class that wraps one plain dict;
- growth: the longest single put while a table grows, against the dict's;
- snapshot: the synchronous part in milliseconds, and with it the reference of copying the dict;
- kinds: calls of the handles of list, map and reducing state, set up like Flink's state benchmark, against
  the same work of a class over one plain dict;
- bulk: each bulk method against the loop of single calls, both with the key groups at hand;
- files: entries per second of writing and restoring a snapshot, against writing the same columns with
  pyarrow, and against reading them with pyarrow and building a dict.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

import pyarrow as pa

from keyedstate import types
from keyedstate.backend import AnyStateTable
from keyedstate.checkpoint import CheckpointStorage, SegmentHandle, SegmentWriter
from keyedstate.config import Configuration
from keyedstate.keygroups import KeyGroupRange
from keyedstate.murmur3 import key_groups as key_groups_of
from keyedstate.plugins import PluginRegistry
from keyedstate.state import KeyedStateBackend, ListState, MapState, ReducingState, ValueState

GROUPS = 128
UNDER_SNAPSHOT = "heap-cow under a live snapshot"
LISTS = types.list_of(types.INT64)
VOID = types.VOID_NAMESPACE


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


@dataclass
class Result:
    """One line of the report.

    Attributes
    ----------
    what : str
    figure : str
        The median, with its unit.
    floor : str
        What it is compared with, and its median.
    ratio : float or None
        Figure to floor; None where the limit is absolute.
    limit : str
        What was asked for.
    """

    what: str
    figure: str
    floor: str
    ratio: float | None
    limit: str


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


class Keys:
    """String keys with their key groups, and an order to visit them in."""

    def __init__(self, count: int) -> None:
        self.keys = [f"customer-{number:08}" for number in range(count)]
        self.groups = key_groups_of([pa.array(self.keys)], GROUPS).tolist()
        order = list(range(count))
        random.Random(42).shuffle(order)
        # Looked up by equal strings that are other objects, as those of a new Arrow batch are.
        self.visits = [(self.groups[number], f"customer-{number:08}") for number in order]


def open_backend(name: str, **options: object) -> KeyedStateBackend:
    config = Configuration({"backend": name, **options})
    registry = PluginRegistry(config)
    plugin = registry.choose()
    return KeyedStateBackend.open(
        plugin,
        key_serializer=types.STRING,
        key_groups=KeyGroupRange(0, GROUPS - 1),
        max_parallelism=GROUPS,
        options=config.plugin_options(registry.options, plugin.name),
    )


def new_table(name: str, value: types.TypeSerializer[Any] = types.INT64, **options: object) -> AnyStateTable:
    backend = open_backend(name, **options)
    backend.get_state(ValueState("state", value))
    return backend._tables["state"]


def filled(table: Any, keys: Keys, value: Callable[[int], Any] = int) -> Any:
    for number, (group, key) in enumerate(zip(keys.groups, keys.keys, strict=True)):
        table.put(group, key, VOID, value(number))
    return table


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


def medians(measures: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Run all measures in turn, `rounds` times, and return the median of each."""
    times: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            gc.collect()
            times[name].append(measure())
    return {name: statistics.median(values) for name, values in times.items()}


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


def per_operation(
    what: str, seconds: float, operations: int, floor: str, floor_ns: float, limit: str
) -> Result:
    ns = seconds / operations * 1e9
    return Result(what, f"{ns:,.0f} ns", f"{floor} {floor_ns:,.0f} ns", ns / floor_ns, limit)


class PlainStates:
    """The floor of the kinds: a current key, and one dict per state, without checks, groups or namespaces."""

    def __init__(self) -> None:
        self.key: Any = None
        self.lists: dict[Any, list[int]] = {}
        self.maps: dict[Any, dict[int, int]] = {}
        self.totals: dict[Any, int] = {}

    def list_add(self, value: int) -> None:
        values = self.lists.get(self.key)
        if values is None:
            self.lists[self.key] = [value]
        else:
            values.append(value)

    def list_get(self) -> list[int]:
        values = self.lists.get(self.key)
        return [] if values is None else values.copy()

    def map_put(self, map_key: int, value: int) -> None:
        entries = self.maps.get(self.key)
        if entries is None:
            self.maps[self.key] = {map_key: value}
        else:
            entries[map_key] = value

    def map_get(self, map_key: int) -> int | None:
        entries = self.maps.get(self.key)
        return None if entries is None else entries.get(map_key)

    def map_contains(self, map_key: int) -> bool:
        return map_key in self.maps.get(self.key, ())

    def map_items(self) -> Any:
        return self.maps.get(self.key, {}).items()

    def reduce(self, value: int) -> None:
        total = self.totals.get(self.key)
        self.totals[self.key] = value if total is None else add(total, value)


LIST = ListState("list", types.INT64)
MAP = MapState("map", types.INT64, types.INT64)
TOTAL = ReducingState("total", add, types.INT64)


def kinds(name: str, keys: Keys, added: int, list_values: int, map_entries: int, rounds: int) -> list[Result]:
    """Time the handles of one backend; the last `added` keys are not preloaded."""
    preloaded = len(keys.keys) - added
    old, new = (
        list(zip(keys.groups[part], keys.keys[part], strict=True))
        for part in (slice(preloaded), slice(preloaded, None))
    )
    order = random.Random(42)
    visits = old.copy()
    order.shuffle(visits)

    def filled_backend() -> KeyedStateBackend:
        backend = open_backend(name)
        states = [backend.get_state(state) for state in (LIST, MAP, TOTAL)]
        for backend.current.key_group, backend.current.key in old:
            states[0].update(range(list_values))
            states[1].put_all({entry: entry for entry in range(map_entries)})
            states[2].add(1)
        return backend

    def filled_floor() -> PlainStates:
        floor = PlainStates()
        for _, key in old:
            floor.lists[key] = list(range(list_values))
            floor.maps[key] = {entry: entry for entry in range(map_entries)}
            floor.totals[key] = 1
        return floor

    backend, floor = filled_backend(), filled_floor()
    current = backend.current
    lists, maps, total = (backend.get_state(state) for state in (LIST, MAP, TOTAL))

    def over_handle(rows: list[tuple[int, str]], call: Callable[..., Any], *arguments: Any) -> float:
        started = time.perf_counter()
        for current.key_group, current.key in rows:
            call(*arguments)
        return time.perf_counter() - started

    def over_floor(rows: list[tuple[int, str]], call: Callable[..., Any], *arguments: Any) -> float:
        started = time.perf_counter()
        for _, floor.key in rows:
            call(*arguments)
        return time.perf_counter() - started

    def walk(items: Callable[[], Any]) -> None:
        for _ in items():
            pass

    def forget_new() -> None:
        names = [key for _, key in new]
        groups = [group for group, _ in new]
        for handle in (lists, maps, total):
            handle.clear_many(names, groups)
        for entries in (floor.lists, floor.maps, floor.totals):
            for key in names:
                entries.pop(key, None)

    cases: list[
        tuple[str, list[tuple[int, str]], Callable[..., Any], Callable[..., Any], tuple[Any, ...]]
    ] = [
        ("list add to new keys", new, lists.add, floor.list_add, (7,)),
        ("list append", visits, lists.add, floor.list_add, (7,)),
        (f"list get of {list_values}", visits, lists.get, floor.list_get, ()),
        ("map put to new keys", new, maps.put, floor.map_put, (3, 7)),
        ("map put", visits, maps.put, floor.map_put, (3, 7)),
        ("map get", visits, maps.get, floor.map_get, (3,)),
        ("map contains", visits, maps.contains, floor.map_contains, (3,)),
        (f"map iterate over {map_entries}", visits, walk, walk, ()),
        ("reducing add to new keys", new, total.add, floor.reduce, (7,)),
        ("reducing add", visits, total.add, floor.reduce, (7,)),
    ]
    results = []
    for what, rows, call, plain, arguments in cases:
        if not rows:
            continue
        ours, theirs = ((maps.items,), (floor.map_items,)) if call is walk else (arguments, arguments)
        times: dict[str, list[float]] = {"ours": [], "floor": []}
        for _ in range(rounds):
            forget_new()
            gc.collect()
            times["ours"].append(over_handle(rows, call, *ours))
            times["floor"].append(over_floor(rows, plain, *theirs))
        floor_ns = statistics.median(times["floor"]) / len(rows) * 1e9
        seconds = statistics.median(times["ours"])
        results.append(per_operation(f"{what}, {name}", seconds, len(rows), "plain dict", floor_ns, ""))
    backend.close()
    return results


def bulk(name: str, keys: Keys, rounds: int) -> list[Result]:
    """Time each bulk method against its loop; the ratio is how many times the loop's speed it has."""
    backend = open_backend(name)
    value, lists, maps, total = (
        backend.get_state(state) for state in (ValueState("value", types.INT64), LIST, MAP, TOTAL)
    )
    rows = keys.visits
    groups, names = [group for group, _ in rows], [key for _, key in rows]
    numbers, map_keys = list(range(len(rows))), [number % 10 for number in range(len(rows))]
    singles = [[number] for number in numbers]
    value.update_many(names, numbers, groups)
    lists.update_many(names, singles, groups)
    maps.put_many(names, map_keys, numbers, groups)
    total.add_many(names, numbers, groups)
    entries = dict(zip(map_keys[:10], numbers[:10], strict=True))
    wanted = list(entries)

    def loop(call: Callable[..., Any], *columns: list[Any]) -> Callable[[], float]:
        def run() -> float:
            found = []  # a bulk method returns all results, so the loop keeps them too
            started = time.perf_counter()
            if columns:
                for (group, key), *arguments in zip(rows, *columns, strict=True):
                    backend.set_current_key(key, group)
                    call(*arguments)
            else:
                for group, key in rows:
                    backend.set_current_key(key, group)
                    found.append(call())
            return time.perf_counter() - started

        return run

    def once(call: Callable[..., Any], *columns: list[Any]) -> Callable[[], float]:
        def run() -> float:
            started = time.perf_counter()
            call(names, *columns, groups)
            return time.perf_counter() - started

        return run

    def within(one_by_one: Callable[[], Any], at_once: Callable[[], Any]) -> tuple[Any, Any]:
        """Compare methods that take several map keys of one key."""
        return loop(one_by_one), loop(at_once)

    cases = {
        "value get_many": (loop(value.value), once(value.get_many)),
        "value update_many": (loop(value.update, numbers), once(value.update_many, numbers)),
        "list get_many": (loop(lists.get), once(lists.get_many)),
        "list add_many": (loop(lists.add, numbers), once(lists.add_many, numbers)),
        "list update_many": (loop(lists.update, singles), once(lists.update_many, singles)),
        "map get_many": (loop(lambda: dict(maps.items())), once(maps.get_many)),
        "map put_many": (loop(maps.put, map_keys, numbers), once(maps.put_many, map_keys, numbers)),
        "map put_all of 10": within(
            lambda: [maps.put(key, number) for key, number in entries.items()],
            lambda: maps.put_all(entries),
        ),
        "map get_all of 10": within(lambda: [maps.get(key) for key in wanted], lambda: maps.get_all(wanted)),
        "map remove_all of 10": within(
            lambda: [maps.remove(key) for key in wanted], lambda: maps.remove_all(wanted)
        ),
        "reducing get_many": (loop(total.get), once(total.get_many)),
        "reducing add_many": (loop(total.add, numbers), once(total.add_many, numbers)),
        "value clear_many": (loop(value.clear), once(value.clear_many)),
    }
    results = []
    for what, (one_by_one, at_once) in cases.items():
        found = medians({"loop": one_by_one, "bulk": at_once}, rounds)
        loop_ns, bulk_ns = (found[part] / len(rows) * 1e9 for part in ("loop", "bulk"))
        results.append(
            Result(
                f"{what}, {name}",
                f"{bulk_ns:,.0f} ns",
                f"loop {loop_ns:,.0f} ns",
                loop_ns / bulk_ns,
                "at least 2",
            )
        )
    backend.close()
    return results


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


def files(entries: int, rounds: int) -> list[Result]:
    keys = Keys(entries)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        storage = CheckpointStorage.open(folder)
        by_group: list[list[str]] = [[] for _ in range(GROUPS)]
        for group, key in zip(keys.groups, keys.keys, strict=True):
            by_group[group].append(key)
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        counter = iter(range(1_000_000))
        written: dict[str, Any] = {}

        def write_columns() -> float:
            path = Path(folder) / f"floor-{next(counter)}.arrow"
            started = time.perf_counter()
            schema = pa.schema([("key", pa.string()), ("value", pa.int64())])
            with (
                pa.OSFile(str(path), "wb") as file,
                pa.ipc.new_stream(file, schema, options=options) as stream,
            ):
                for group in by_group:
                    columns = [pa.array(group), pa.array(list(range(len(group))), pa.int64())]
                    stream.write_batch(pa.record_batch(columns, schema=schema))
            written["floor"] = path
            return time.perf_counter() - started

        def read_columns() -> float:
            started = time.perf_counter()
            found: dict[str, int] = {}
            with pa.OSFile(str(written["floor"]), "rb") as file, pa.ipc.open_stream(file) as stream:
                for batch in stream:
                    found.update(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
            assert len(found) == entries
            return time.perf_counter() - started

        def write(name: str) -> Callable[[], float]:
            backend = open_backend(name)
            backend.get_state(ValueState("state", types.INT64))
            table = filled(backend._tables["state"], keys)

            def run() -> float:
                writer = SegmentWriter(storage, f"{name}-{next(counter)}.seg", backend.key_groups)
                started = time.perf_counter()
                backend.snapshot(1).run(writer)
                segment = writer.finish()
                seconds = time.perf_counter() - started
                assert segment.entries["state"] == len(table)
                written[name] = segment
                return seconds

            return run

        def restore(name: str) -> Callable[[], float]:
            config = Configuration({"backend": name})
            registry = PluginRegistry(config)
            plugin = registry.choose()

            def run() -> float:
                started = time.perf_counter()
                restored = KeyedStateBackend.open(
                    plugin,
                    key_serializer=types.STRING,
                    key_groups=KeyGroupRange(0, GROUPS - 1),
                    max_parallelism=GROUPS,
                    options=config.plugin_options(registry.options, name),
                    handles=[SegmentHandle.open(storage, written[name])],
                )
                seconds = time.perf_counter() - started
                assert restored.num_entries() == entries
                restored.close()
                return seconds

            return run

        names = ("heap-cow", "nested-map")
        for verb, floor, make, limit in (
            ("snapshot written", write_columns, write, ""),
            ("restored", read_columns, restore, "at most 2.5"),
        ):
            found = medians({"floor": floor, **{name: make(name) for name in names}}, rounds)
            for name in names:
                results.append(
                    Result(
                        f"{entries:,} entries {verb}, {name}",
                        f"{entries / found[name]:,.0f} entries/s",
                        f"pyarrow {entries / found['floor']:,.0f} entries/s",
                        found[name] / found["floor"],
                        limit,
                    )
                )
    return results


def markdown(results: list[Result], machine: str) -> str:
    lines = [
        "# State benchmark",
        "",
        "Written by `make bench-state`: medians of interleaved rounds. Ratios carry over to other machines,",
        f"figures do not. {machine}",
        "",
        "| what | figure | floor in the same run | ratio | asked for |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
        lines.append(f"| {result.what} | {result.figure} | {result.floor} | {ratio} | {result.limit} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--grow", type=int, default=5_000_000)
    parser.add_argument("--large", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keys", type=int, default=100_000, help="preloaded for kinds; Flink has 500,000")
    parser.add_argument("--added", type=int, default=100_000, help="added for kinds; Flink has 500,000")
    parser.add_argument("--list-values", type=int, default=100)
    parser.add_argument("--map-entries", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=[], help="parts to run: access, kinds, bulk, ...")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    entries, rounds = arguments.entries, arguments.rounds
    results: list[Result] = []
    names = ("heap-cow", "nested-map")

    def measure_kinds() -> list[Result]:
        keys = Keys(arguments.keys + arguments.added)
        return [
            result
            for name in names
            for result in kinds(
                name, keys, arguments.added, arguments.list_values, arguments.map_entries, min(rounds, 3)
            )
        ]

    def measure_bulk() -> list[Result]:
        keys = Keys(arguments.keys)
        return [result for name in names for result in bulk(name, keys, min(rounds, 3))]

    parts: dict[str, Callable[[], list[Result]]] = {
        "access": lambda: access(entries, rounds),
        "kinds": measure_kinds,
        "bulk": measure_bulk,
        "growth": lambda: growth(arguments.grow, min(rounds, 3)),
        "synchronous": lambda: synchronous(entries, rounds, "at most 2 ms"),
        "synchronous-large": lambda: synchronous(arguments.large, rounds, "at most 10 ms"),
        "files": lambda: files(entries, rounds),
    }
    for unknown in set(arguments.only) - parts.keys():
        parser.error(f"there is no part {unknown!r}; choose from {', '.join(parts)}")
    for name, part in parts.items():
        if arguments.only and name not in arguments.only:
            continue
        for result in part():
            ratio = "" if result.ratio is None else f"{result.ratio:6.2f}"
            sys.stdout.write(
                f"{result.what:70} {result.figure:>20} {result.floor:>28} {ratio:>6} {result.limit}\n"
            )
            sys.stdout.flush()
            results.append(result)
        gc.collect()
    machine = f"Here: {platform.system()} {platform.machine()}, Python {platform.python_version()}."
    if arguments.markdown:
        arguments.markdown.write_text(markdown(results, machine))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=2))


if __name__ == "__main__":
    main()
