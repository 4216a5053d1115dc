"""The copy-on-write map against a plain dict: single accesses, bulk, growth, snapshots, walks and restore.

    python tests/bench/bench_cowmap.py [--entries N] [--grow N] [--large N] [--rounds N] [--json FILE]

Every figure is a median over rounds in which all subjects take their turn, and where a dict can do the same,
a ratio to the dict in the same run.  Times are processor time, which other programs on the machine disturb
less than the clock on the wall; only snapshots and releases are by the clock.  What the benchmark itself
keeps in memory is hidden from the cycle collector (``gc.freeze``), which otherwise runs as always.

"dict" is a class whose get and put call a plain dict's.  Under a live snapshot every access is the first one
after the snapshot was taken, which is the worst.  "floor" of a mutable value is nothing but copying the same
values in the same order.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import platform
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from keyedstate_heap_cow import cowmap

NAMESPACE = ("void",)
KEY_GROUPS = 128
BATCH = 16_384

#: What the map is asked to stay below, by the names of the results.
LIMITS = {
    "get": 1.5,
    "put": 1.5,
    "get, live snapshot, immutable values": 2.5,
    "put, live snapshot": 2.5,
    "get, live snapshot, list values": 2.5,
    "restore": 2.0,
    "longest put while growing": 1.0,
}


class WrappedDict:
    """What single accesses are compared with."""

    def __init__(self) -> None:
        self._entries: dict[str, Any] = {}

    def get(self, key: str, namespace: object) -> Any:
        return self._entries.get(key)

    def put(self, key: str, namespace: object, value: Any) -> None:
        self._entries[key] = value


class Results:
    """Samples by name, and what they are compared with."""

    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = defaultdict(list)
        self.units: dict[str, str] = {}
        self.peers: dict[str, str] = {}

    def add(self, name: str, value: float, unit: str, peer: str | None = None) -> None:
        self.samples[name].append(value)
        self.units[name] = unit
        if peer is not None:
            self.peers[name] = peer

    def rows(self) -> list[dict[str, Any]]:
        rows = []
        for name, samples in self.samples.items():
            median = statistics.median(samples)
            row = {"name": name, "median": median, "unit": self.units[name], "samples": samples}
            if name in self.peers:
                row["peer"] = self.peers[name]
                row["ratio"] = median / statistics.median(self.samples[self.peers[name]])
                row["limit"] = LIMITS.get(name)
            rows.append(row)
        return rows

    def table(self) -> str:
        lines = [f"{'':52} {'median':>14} {'ratio':>7} {'limit':>7}  to"]
        for row in self.rows():
            line = f"{row['name']:52} {row['median']:>9,.1f} {row['unit']:<4}"
            if "peer" in row:
                limit = "" if row["limit"] is None else f"{row['limit']:.2f}"
                line += f" {row['ratio']:>7.2f} {limit:>7}  {row['peer']}"
            lines.append(line)
        return "\n".join(lines)


def per_operation(operations: int, run: Callable[[], object]) -> float:
    """Return the processor time of an operation in ns."""
    before = time.process_time_ns()
    run()
    return (time.process_time_ns() - before) / operations


def milliseconds(run: Callable[[], object]) -> float:
    before = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - before) / 1e6


def get_all(state: Any, keys: list[str]) -> None:
    get = state.get
    for key in keys:
        get(key, NAMESPACE)


def put_all(state: Any, keys: list[str], value: object) -> None:
    put = state.put
    for key in keys:
        put(key, NAMESPACE, value)


def walk(entries: Any) -> None:
    for _ in entries:
        pass


def uncompiled() -> ModuleType:
    """Load the map's source as plain Python."""
    assert cowmap.__file__ is not None
    loader = SourceFileLoader("cowmap_uncompiled", str(Path(cowmap.__file__).with_name("cowmap.py")))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class Access:
    """Single and bulk accesses, walks and restore at one size.

    Parameters
    ----------
    results : Results
    module : module
        The compiled or the uncompiled `cowmap`.
    entries : int
    suffix : str
        Added to the names of the results.
    """

    def __init__(self, results: Results, module: ModuleType, entries: int, suffix: str = "") -> None:
        rng = random.Random(42)
        self.results = results
        self.module = module
        self.entries = entries
        self.suffix = suffix
        # Made in one order and visited in others, each of which finds memory in an order that is no order.
        self.keys = [f"customer-{number:08}" for number in range(entries)]
        self.orders = [rng.sample(self.keys, entries) for _ in range(5)]
        self.values = list(range(entries))
        self.lists = [[number] for number in self.values]
        self.shuffled_lists = rng.sample(self.lists, entries)

    def restored(self, copy: Callable[[Any], Any] | None, column: list[Any]) -> Any:
        state_map = self.module.CopyOnWriteStateMap(copy)
        state_map.restore_namespace(NAMESPACE, self.keys, column)
        return state_map

    def measure(self, name: str, run: Callable[[], object], peer: str | None = None) -> None:
        ns = per_operation(self.entries, run)
        self.results.add(name + self.suffix, ns, "ns", None if peer is None else peer + self.suffix)

    def compare(self, name: str, run: Callable[[], object], peer: str, floor: Callable[[], object]) -> None:
        self.measure(peer, floor)
        self.measure(name, run, peer)

    def round(self) -> None:
        self.single_accesses()
        self.mutable_values()
        self.bulk()

    def subjects(self) -> tuple[Any, WrappedDict]:
        """Make both anew: copying on write leaves entries behind in the order of the last accesses."""
        wrapped = WrappedDict()
        wrapped._entries.update(zip(self.keys, self.values, strict=True))
        return self.restored(None, self.values), wrapped

    def single_accesses(self) -> None:
        (state_map, wrapped), compare, orders = self.subjects(), self.compare, self.orders
        equal = ["c" + key[1:] for key in orders[2]]
        compare("get", lambda: get_all(state_map, orders[0]), "dict get", lambda: get_all(wrapped, orders[0]))
        compare(
            "get, equal keys that are other objects",
            lambda: get_all(state_map, equal),
            "dict get, other objects",
            lambda: get_all(wrapped, equal),
        )
        with state_map.snapshot():
            name = "get, live snapshot, immutable values"
            self.measure(name, lambda: get_all(state_map, orders[3]), "dict get")
        compare(
            "put",
            lambda: put_all(state_map, orders[1], 1),
            "dict put",
            lambda: put_all(wrapped, orders[1], 1),
        )
        state_map, _ = self.subjects()
        with state_map.snapshot():
            for name, order in (("put, live snapshot", 4), ("put, live snapshot, second time", 0)):
                self.measure(name, lambda: put_all(state_map, orders[order], 2), "dict put")  # noqa: B023
        new_map, new_dict = self.module.CopyOnWriteStateMap(), WrappedDict()
        compare(
            "put of new keys, growing",
            lambda: put_all(new_map, orders[0], 1),
            "dict put of new keys",
            lambda: put_all(new_dict, orders[0], 1),
        )

    def mutable_values(self) -> None:
        state_map = self.restored(list, self.lists)
        with state_map.snapshot():
            name = "get, live snapshot, list values"
            self.measure(name, lambda: get_all(state_map, self.orders[0]), "dict get")
        gc.disable()
        with state_map.snapshot():
            name = "get, live snapshot, list values, collector off"
            self.measure(name, lambda: get_all(state_map, self.orders[1]), "dict get")
        gc.enable()
        name = "floor: [list(value) for value in values]"
        self.measure(name, lambda: [list(value) for value in self.shuffled_lists], "dict get")

    def bulk(self) -> None:
        (state_map, wrapped), compare, orders = self.subjects(), self.compare, self.orders
        known = wrapped._entries
        compare(
            "get_many",
            lambda: state_map.get_many(orders[0], NAMESPACE),
            "[dict.get(key) for key in keys]",
            lambda: [known.get(key) for key in orders[0]],
        )
        compare(
            "put_many",
            lambda: state_map.put_many(orders[1], NAMESPACE, self.values),
            "dict.update(zip(keys, values))",
            lambda: known.update(zip(orders[1], self.values, strict=True)),
        )
        items = "iteration over dict.items()"
        compare("iteration", lambda: walk(state_map), items, lambda: walk(known.items()))
        with state_map.snapshot() as snapshot:
            self.measure("batches of a snapshot", lambda: walk(snapshot.batches(BATCH)), items)
        kept: list[Any] = []  # what is made is not freed within the measured time
        compare(
            "restore",
            lambda: kept.append(self.restored(None, self.values)),
            "dict(zip(keys, values))",
            lambda: kept.append(dict(zip(self.keys, self.values, strict=True))),
        )


def access(results: Results, module: ModuleType, entries: int, rounds: int, suffix: str = "") -> None:
    subject = Access(results, module, entries, suffix)
    gc.collect()
    gc.freeze()
    for _ in range(rounds):
        subject.round()
    gc.unfreeze()


def longest_put(state: Any, entries: int) -> tuple[float, float]:
    """Return the longest put and the one that one in 100,000 exceeds, in ms."""
    put, clock = state.put, time.thread_time_ns
    longest: list[int] = []
    before = clock()
    for number in range(entries):
        put(number, NAMESPACE, None)
        after = clock()
        if after - before > 20_000:
            longest.append(after - before)
        before = after
    longest.sort()
    rare = entries // 100_000
    return longest[-1] / 1e6 if longest else 0.02, longest[-rare] / 1e6 if len(longest) > rare > 0 else 0.02


def growth(results: Results, entries: int, rounds: int) -> None:
    """Measure pauses of single puts while a map grows."""
    subjects: dict[str, Callable[[], Any]] = {"": cowmap.CopyOnWriteStateMap, "dict ": WrappedDict}
    for _ in range(rounds):
        for prefix, make in subjects.items():
            gc.collect()
            longest, rare = longest_put(make(), entries)
            for name, value in (("longest put", longest), ("put exceeded once in 100,000", rare)):
                name = f"{name} while growing"
                results.add(prefix + name, value, "ms", None if prefix else "dict " + name)


def snapshots(results: Results, entries: int, rounds: int) -> None:
    """Measure the synchronous part of a snapshot, and its release after every entry was put again."""
    numbers = list(range(entries))
    maps = [cowmap.CopyOnWriteStateMap()]
    maps[0].restore_namespace(NAMESPACE, numbers, numbers)
    synchronous(results, f"snapshot of {entries:,} in one map", maps, rounds)
    taken = maps[0].snapshot()
    maps[0].put_many(numbers, NAMESPACE, numbers)
    results.add(f"release by the owner after {entries:,} puts", milliseconds(taken.release), "ms")
    maps = [cowmap.CopyOnWriteStateMap() for _ in range(KEY_GROUPS)]
    for group, state_map in enumerate(maps):
        state_map.restore_namespace(NAMESPACE, numbers[group::KEY_GROUPS], numbers[group::KEY_GROUPS])
    synchronous(results, f"snapshot of {entries:,} in {KEY_GROUPS} maps", maps, rounds)


def synchronous(results: Results, name: str, maps: list[Any], rounds: int) -> None:
    for _ in range(rounds):
        b"x" * (1 << 27)  # pushes the maps out of the processor's caches, as other work does in real life
        before = time.perf_counter_ns()
        taken = [state_map.snapshot() for state_map in maps]
        results.add(name, (time.perf_counter_ns() - before) / 1e6, "ms")
        for snapshot in taken:
            snapshot.release()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=1_000_000, help="of accesses, bulk, walks and restore")
    parser.add_argument("--grow", type=int, default=5_000_000, help="puts of new keys; 0 leaves this out")
    parser.add_argument("--large", type=int, default=10_000_000, help="of large snapshots; 0 leaves them out")
    parser.add_argument(
        "--uncompiled", type=int, default=100_000, help="entries of the uncompiled map; 0 leaves it out"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all samples to this file")
    arguments = parser.parse_args()

    machine = f"Python {platform.python_version()} on {platform.machine()}, cowmap " + (
        "compiled" if cowmap.COMPILED else "NOT COMPILED"
    )
    results = Results()
    access(results, cowmap, arguments.entries, arguments.rounds)
    snapshots(results, arguments.entries, arguments.rounds)
    if arguments.large:
        snapshots(results, arguments.large, arguments.rounds)
    if arguments.grow:
        growth(results, arguments.grow, arguments.rounds)
    if arguments.uncompiled and cowmap.COMPILED:
        access(results, uncompiled(), arguments.uncompiled, arguments.rounds, " (uncompiled)")
    sys.stdout.write(f"{machine}, {arguments.entries:,} entries\n{results.table()}\n")
    if arguments.json:
        report = {"machine": machine, "arguments": vars(arguments), "results": results.rows()}
        arguments.json.write_text(json.dumps(report, indent=1, default=str))


if __name__ == "__main__":
    main()
