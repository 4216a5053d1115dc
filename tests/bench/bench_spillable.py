"""The spillable backend against heap-cow, with all state in memory, and against rocksdb, with less memory.

    python tests/bench/bench_spillable.py [--keys N] [--rows N] [--rounds N] [--times F] [--only PART ...]
    python tests/bench/bench_spillable.py --curve docs/images/spillable-curve.csv

Each measurement is a process of its own.  It runs a small job, which loads the code, then fills the state of
one operator, runs warm-up epochs and measures epochs of rows: one call of the function per record, or
``.aggregate`` by columns.  Processes of the backends take turns.  Rows per second are of processor time and,
in brackets, of wall time; a ratio is the median of the ratios of the rounds.

Beyond memory, both backends have the same budget: what heap-cow occupies, divided by `--times`.  It is the
memory budget of rocksdb, and what spillable may add to the memory of the process.  A line tells what each
process has added in the end.

With `--curve`, one budget and states of 0.5 to 10 times as much: the rates of all three backends go to a
file, from which ``scripts/draw_curve.py`` draws a picture.  heap-cow ignores the budget.

The part `checkpoint` has four fifths of a value state on disk.  It writes a full snapshot, ten deltas of 1 %
of the entries each, and a full snapshot again, and tells their bytes and processor time.  With them are the
bytes of the database's files at the second one, and of those that did not exist at the first one: what a
snapshot of files instead of entries would upload for the part on disk.

The longest pause is one call of `KeyedStateBackend.balance_memory`, which all rows of a chunk wait for; in
processor time and, in brackets, wall time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from measuring import ALL, GROUPS, Keys, open_backend

from keyedstate import types
from keyedstate.aggregates import Aggregation, count, sum_
from keyedstate.checkpoint.format.delta import write_delta
from keyedstate.checkpoint.format.segment import SegmentWriter
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.murmur3 import key_groups
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.runners import OperatorSpec, keyed_operator
from keyedstate.state import ListState, MapState, ValueState
from keyedstate_spillable.container import return_freed_memory

BATCH = 10_000
GROUP_COLUMN = "__group"
OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64())])
AGGREGATED = pa.schema([("k", pa.string()), ("n", pa.int64()), ("total", pa.int64())])
#: Keys and rows of a job before the one that is measured.
FIRST_JOB = 20_000
WARM_UP = 2
EPOCHS = 5
CURVE_TIMES = (0.5, 1.0, 2.0, 5.0, 10.0)
CURVE_BUDGET = 100 << 20
#: Keys whose state heap-cow measures first, for the bytes of one.
CURVE_SAMPLE = 1_000_000


class Values(KeyedProcessFunction):
    """Count per key."""

    n = ValueState("n", types.INT64, default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        n = self.n.value() + 1
        self.n.update(n)
        yield row.k, n


class Lists(KeyedProcessFunction):
    """The last twenty values per key."""

    last = ListState("last", types.INT64)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.last.add(row.c)
        last = list(self.last.get())
        if len(last) > 20:
            self.last.update(last[10:])
        yield row.k, len(last)


class Maps(KeyedProcessFunction):
    """A count for each of sixteen kinds per key."""

    kinds = MapState("kinds", types.INT64, types.INT64)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        kind = row.c % 16
        n = (self.kinds.get(kind) or 0) + 1
        self.kinds.put(kind, n)
        yield row.k, n


def aggregation() -> Aggregation:
    return Aggregation(("k",), {"k": pa.string(), "c": pa.int64()}, {"n": count(), "total": sum_("c")})


FUNCTIONS: dict[str, tuple[Callable[[], Any], pa.Schema]] = {
    "value": (Values, OUTPUT),
    "list": (Lists, OUTPUT),
    "map": (Maps, OUTPUT),
    "aggregate": (aggregation, AGGREGATED),
}


def chosen_keys(distribution: str, keys: int, rows: int, part: float, seed: int) -> Any:
    """Return the key numbers of the rows of an epoch; `part` says how far the run has got."""
    random = np.random.default_rng(seed)
    if distribution == "uniform":
        return random.integers(0, keys, rows)
    if distribution == "zipf":
        # Zipf with the exponent 0.99, by the inverse of the sums; the ranks are spread over the keys.
        weights = np.cumsum(np.arange(1, keys + 1, dtype=np.float64) ** -0.99)
        ranks = np.searchsorted(weights, random.random(rows) * weights[-1])
        return np.random.default_rng(1).permutation(keys)[ranks]
    if distribution == "window":
        width = keys // 10
        return (int(part * keys) + random.integers(0, width, rows)) % keys
    # Nine of ten rows have a key of one key group.
    groups = key_groups([pa.array([f"customer-{number:08}" for number in range(keys)])], GROUPS)
    hot = np.flatnonzero(groups == 5)
    return np.where(random.random(rows) < 0.9, random.choice(hot, rows), random.integers(0, keys, rows))


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(
    backend: str, kind: str, distribution: str, keys: int, rows: int, state_bytes: int
) -> dict[str, Any]:
    """Fill the state and run epochs; `state_bytes` is the memory for state, 0 for no limit."""
    function, schema = FUNCTIONS[kind]
    names = pa.array([f"customer-{number:08}" for number in range(keys)])
    groups = key_groups([names], GROUPS)
    options: dict[str, object] = {}
    # Before memory is measured: the arrays that choose keys are as large as some states.
    inputs = [
        chosen_keys(distribution, keys, rows, number / 50 if number >= WARM_UP else 0.0, number)
        for number in range(WARM_UP + EPOCHS)
    ]
    return_freed_memory()
    before = resident_bytes()
    if state_bytes and backend == "rocksdb":
        options["rocksdb.memory-budget"] = max(state_bytes, 16 << 20)
    if backend == "spillable":
        budget = before + state_bytes if state_bytes else 64 << 30
        options["spillable.memory-budget"] = budget
        options["spillable.disk-memory"] = max(state_bytes // 8, 8 << 20)

    with tempfile.TemporaryDirectory() as folder:
        keyed = open_backend(
            backend, key_serializer_for([pa.string()]), track_changes=True, local_base=Path(folder), **options
        )
        pauses: list[tuple[float, float]] = []
        balance = keyed.balance_memory

        def timed_balance() -> None:
            wall, processor = time.perf_counter(), time.thread_time()
            balance()
            pauses.append((time.perf_counter() - wall, time.thread_time() - processor))

        keyed.balance_memory = timed_balance  # type: ignore[method-assign]
        epoch = 0

        def run(chosen: Any) -> tuple[float, float]:
            nonlocal epoch
            epoch += 1
            # One batch at a time, as a query reads them: all of an epoch would be as large as some budgets.
            batches = (
                pa.record_batch(
                    {
                        "k": names.take(pa.array(some)),
                        "c": pa.array(some % 100 + epoch),
                        GROUP_COLUMN: pa.array(groups[some]),
                    }
                )
                for some in np.split(chosen, range(BATCH, len(chosen), BATCH))
            )
            wall, processor = time.perf_counter(), time.process_time()
            keyed.begin_epoch(epoch)
            keyed.forget_changes(epoch - 1)
            operator = keyed_operator(
                function(),
                keyed,
                OperatorSpec(
                    key_columns=["k"],
                    key_group_column=GROUP_COLUMN,
                    output=OutputSchema(schema),
                    epoch=epoch,
                ),
            )
            operator.open()
            for _ in operator.process(batches):
                pass
            operator.close()
            keyed.end_epoch()
            return time.process_time() - processor, time.perf_counter() - wall

        for start in range(0, keys, 50_000):
            run(np.arange(start, min(start + 50_000, keys)))
        filled = resident_bytes() - before
        for chosen in inputs[:WARM_UP]:
            run(chosen)
        pauses.clear()
        measured = [run(chosen) for chosen in inputs[WARM_UP:]]
        result = {
            "processor": rows / statistics.median(each for each, _ in measured),
            "wall": rows / statistics.median(each for _, each in measured),
            "pause_ms": max((wall for wall, _ in pauses), default=0.0) * 1000,
            "pause_processor_ms": max((processor for _, processor in pauses), default=0.0) * 1000,
            "state_bytes": filled,
            "resident": resident_bytes() - before,
            "metrics": dict(keyed.metrics()),
            "entries": keyed.num_entries(),
        }
        keyed.close()
    return result


def measure_checkpoint(keys: int) -> dict[str, dict[str, float]]:
    """Return the bytes and processor seconds of checkpoints of a state that is on disk mostly."""
    names = Keys(keys)
    random = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as folder:
        local, storage = Path(folder, "local"), CheckpointStorage.open(Path(folder, "checkpoints"))
        options = {"spillable.memory-budget": 64 << 30, "spillable.disk-memory": 16 << 20}
        keyed = open_backend("spillable", track_changes=True, local_base=local, **options)
        state = keyed.get_state(Values.n)
        table: Any = state._table
        written: dict[str, dict[str, float]] = {}
        files: dict[str, int] = {}

        def change(epoch: int, chosen: Any) -> None:
            keyed.begin_epoch(epoch)
            keyed.forget_changes(epoch - 1)
            keys = [names.keys[number] for number in chosen.tolist()]
            state.update_many(keys, [epoch] * len(keys), [names.groups[number] for number in chosen.tolist()])
            while sum(map(len, table.maps)) > len(names.keys) // 5:
                table.spill_coldest(512)

        def write(what: str, save: Callable[[], int]) -> None:
            began = time.thread_time()
            size = save()
            found = written.setdefault(what, {"bytes": 0, "seconds": 0.0})
            found["bytes"] += size
            found["seconds"] += time.thread_time() - began

        def save_all() -> int:
            writer = SegmentWriter(storage, f"data/{len(files)}-{time.monotonic_ns()}.seg", ALL)
            keyed.snapshot(0).run(writer)
            return writer.finish().bytes

        def save_changes(epoch: int) -> int:
            changes = keyed.changes_since(epoch - 1)
            metas = {meta.name: meta for meta in keyed.metas()}
            size = write_delta(storage, f"data/delta-{epoch}.seg", ALL, metas, changes).bytes
            for changed in changes.values():
                changed.release()
            return size

        for start in range(0, keys, 50_000):
            change(start // 50_000 + 1, np.arange(start, min(start + 50_000, keys)))
        epoch = -(-keys // 50_000)
        write("first full snapshot", save_all)
        files = {path.name: path.stat().st_size for path in local.rglob("*.sst")}
        for _ in range(10):
            epoch += 1
            change(epoch, np.unique(random.integers(0, keys, keys // 100)))
            write("ten deltas of 1 %", partial(save_changes, epoch))
        write("full snapshot", save_all)
        now = {path.name: path.stat().st_size for path in local.rglob("*.sst")}
        new = sum(size for name, size in now.items() if name not in files)
        written["all files of the database"] = {"bytes": sum(now.values()), "seconds": 0.0}
        written["new files of the database"] = {"bytes": new, "seconds": 0.0}
        keyed.close()
    return written


def in_process(*arguments: object) -> dict[str, Any]:
    """Run one measurement in a process of its own."""
    ran = subprocess.run(
        [sys.executable, __file__, "--measure", *map(str, arguments)],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def compare(first: str, second: str, rounds: int, run: Callable[[str], dict[str, Any]]) -> str:
    """Return a line about two backends that took turns."""
    found = []
    for _ in range(rounds):
        other = run(second)
        found.append((run(first), other))
    ratio, wall = (
        statistics.median(one[unit] / other[unit] for one, other in found) for unit in ("processor", "wall")
    )
    rates = [
        f"{name} {statistics.median(pair[i]['processor'] for pair in found):9,.0f}"
        f" ({statistics.median(pair[i]['wall'] for pair in found):9,.0f})"
        f" {statistics.median(pair[i]['resident'] for pair in found) / 2**20:5.0f} MiB"
        for i, name in enumerate((first, second))
    ]
    pauses = [max(one[unit] for one, _ in found) for unit in ("pause_processor_ms", "pause_ms")]
    return (
        f"{rates[0]}  {rates[1]}  ratio {ratio:5.2f} ({wall:5.2f})"
        f"  pause {pauses[0]:4.0f} ({pauses[1]:4.0f}) ms"
    )


def write_curve(path: Path, rows: int) -> None:
    """Measure states of several sizes, one process after the other."""
    sample = in_process("heap-cow", "value", "zipf", CURVE_SAMPLE, rows, 0)
    per_key = sample["resident"] / CURVE_SAMPLE
    lines = ["backend,times,keys,rows_per_processor_second,rows_per_second,memory_mib"]
    for times in CURVE_TIMES:
        keys = int(times * CURVE_BUDGET / per_key)
        for backend in ("heap-cow", "spillable", "rocksdb"):
            found = in_process(backend, "value", "zipf", keys, rows, CURVE_BUDGET)
            rates = f"{found['processor']:.0f},{found['wall']:.0f},{found['resident'] / 2**20:.0f}"
            lines.append(f"{backend},{times},{keys},{rates}")
    path.write_text("\n".join(lines) + "\n", encoding="ascii")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=float, default=5.0)
    parser.add_argument(
        "--only", nargs="*", default=["memory", "checkpoint", "value", "list", "map", "aggregate"]
    )
    parser.add_argument("--distributions", nargs="*", default=["zipf", "window", "uniform", "group"])
    parser.add_argument("--curve", type=Path)
    parser.add_argument("--measure", nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        backend, kind, distribution, *numbers = args.measure
        # What a process loads for its first job, some 30 MiB, does not belong to the state.
        measure(backend, kind, "uniform", FIRST_JOB, FIRST_JOB, 64 << 20)
        gc.collect()
        sys.stdout.write(json.dumps(measure(backend, kind, distribution, *map(int, numbers))) + "\n")
        return

    if args.curve:
        write_curve(args.curve, args.rows)
        return

    def show(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    if "checkpoint" in args.only:
        for what, cost in measure_checkpoint(args.keys).items():
            show(f"checkpoint, {what:26} {cost['bytes']:12,.0f} bytes  {cost['seconds']:6.2f} s")
    if "memory" in args.only:
        for kind in FUNCTIONS:
            show(
                f"in memory, {kind:9} uniform  "
                + compare(
                    "spillable",
                    "heap-cow",
                    args.rounds,
                    lambda backend, kind=kind: in_process(  # type: ignore[misc]
                        backend, kind, "uniform", args.keys // 4, args.rows, 0
                    ),
                )
            )
    for kind in FUNCTIONS:
        if kind not in args.only:
            continue
        # An accumulator in columns is small: a fifth of a million is no budget for a process.
        keys = int(args.keys * {"value": 1, "aggregate": 4}.get(kind, 0.25))
        whole = in_process("heap-cow", kind, "uniform", keys, args.rows, 0)["resident"]
        for distribution in args.distributions:
            show(
                f"{args.times:.1f} times, {kind:9} {distribution:8} "
                + compare(
                    "spillable",
                    "rocksdb",
                    args.rounds,
                    lambda backend, kind=kind, keys=keys, distribution=distribution, whole=whole: (  # type: ignore[misc]
                        in_process(backend, kind, distribution, keys, args.rows, int(whole / args.times))
                    ),
                )
            )


if __name__ == "__main__":
    main()
