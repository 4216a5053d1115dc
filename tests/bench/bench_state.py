"""State tables against a plain dict, in one run: access, growth, snapshot and restore.

    python tests/bench/bench_state.py [--entries N] [--rounds N] [--markdown FILE] ...

Every figure is a median over interleaved rounds, and a ratio to its floor in the same run:

- access: one table call per operation against the same call of a class that wraps one plain dict;
- growth: the longest single put while a table grows, against the dict's;
- snapshot: the synchronous part in milliseconds, and with it the reference of copying the dict;
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
from keyedstate.state import KeyedStateBackend, ValueState

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
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    entries, rounds = arguments.entries, arguments.rounds
    results: list[Result] = []
    for part in (
        lambda: access(entries, rounds),
        lambda: growth(arguments.grow, min(rounds, 3)),
        lambda: synchronous(entries, rounds, "at most 2 ms"),
        lambda: synchronous(arguments.large, rounds, "at most 10 ms"),
        lambda: files(entries, rounds),
    ):
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
