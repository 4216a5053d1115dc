"""What an epoch of aggregates, of vectorised and of per-record functions costs, without Spark.

    python tests/bench/bench_aggregate.py [--rows N] [--keys N] [--rounds N] [--backends NAME ...] [--profile]

A steady state: every round is an epoch of the same number of rows over the same keys, in four partitions, in
batches of 10,000 rows as Spark makes them; then the state is written.  All measurements are medians of
processor time over interleaved rounds, in milliseconds for the whole epoch.  The floor is what a program
without any state backend would do: pyarrow's ``group_by`` and one dict, nothing written.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import itertools
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from measuring import BACKENDS, GROUPS, open_backend

from keyedstate import types
from keyedstate.aggregates import Aggregation, count, sum_
from keyedstate.checkpoint.format.delta import write_delta
from keyedstate.checkpoint.format.segment import SegmentWriter
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import key_group_range_for
from keyedstate.murmur3 import key_groups
from keyedstate.runtime import KeyedBatch, KeyedProcessFunction, VectorizedProcessFunction
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.runners import OperatorSpec, keyed_operator
from keyedstate.state import ValueState
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

PARTITIONS = 4
BATCH = 10_000
GROUP_COLUMN = "__group"
OUTPUT = pa.schema([("k", pa.string()), ("n", pa.int64()), ("total", pa.int64())])


class PerRecord(KeyedProcessFunction):
    """Count and sum, as users write them; gives a row for every row."""

    n = ValueState("n", types.INT64, default=0)
    total = ValueState("total", types.INT64, default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        n = self.n.value() + 1
        total = self.total.value() + row.c
        self.n.update(n)
        self.total.update(total)
        yield row.k, n, total


class Vectorized(VectorizedProcessFunction):
    """Count and sum by the bulk methods of two states; gives a row for each key of a batch."""

    n = ValueState("n", types.INT64, default=0)
    total = ValueState("total", types.INT64, default=0)

    def process_batch(self, batch: KeyedBatch, ctx: Any) -> Iterator[pa.RecordBatch]:
        rows = batch.groups
        counts = np.bincount(rows.codes, minlength=len(rows))
        sums = np.bincount(rows.codes, weights=batch.column("c").to_numpy(), minlength=len(rows))
        n = counts + self.n.get_many(rows.keys, rows.key_groups)
        total = sums.astype(np.int64) + self.total.get_many(rows.keys, rows.key_groups)
        self.n.update_many(rows.keys, n.tolist(), rows.key_groups)
        self.total.update_many(rows.keys, total.tolist(), rows.key_groups)
        yield pa.record_batch([*rows.key_columns, pa.array(n), pa.array(total)], schema=OUTPUT)


def aggregation() -> Aggregation:
    return Aggregation(("k",), {"k": pa.string(), "c": pa.int64()}, {"n": count(), "total": sum_("c")})


class Rows:
    """The rows of some epochs by partition."""

    def __init__(self, rows: int, keys: int, epochs: int) -> None:
        names = pa.array([f"customer-{number:08}" for number in range(keys)])
        groups = key_groups([names], GROUPS)
        random = np.random.default_rng(7)
        self.epochs = []
        for _ in range(epochs):
            chosen = random.integers(0, keys, rows)
            self.epochs.append([self._part(names, groups, chosen, part) for part in range(PARTITIONS)])

    def _part(self, names: pa.Array, groups: Any, chosen: Any, part: int) -> list[pa.RecordBatch]:
        own = key_group_range_for(part, PARTITIONS, GROUPS)
        mine = chosen[(groups[chosen] >= own.start) & (groups[chosen] <= own.end)]
        table = pa.table(
            {"k": names.take(pa.array(mine)), "c": pa.array(mine % 100), GROUP_COLUMN: pa.array(groups[mine])}
        )
        # Each batch has buffers of its own, as what comes from Spark.
        return [batch.take(pa.array(np.arange(len(batch)))) for batch in table.to_batches(BATCH)]


class Job:
    """One function over all partitions of one backend."""

    def __init__(self, backend: str, function: Callable[[], Any], folder: Path) -> None:
        self.function = function
        self.epoch = 0
        self.numbers = itertools.count()
        self.folder = OperatorFolder(CheckpointStorage.open(folder), "bench")
        self.parts: list[KeyedStateBackend] = [
            open_backend(
                backend,
                key_serializer_for([pa.string()]),
                key_groups=key_group_range_for(part, PARTITIONS, GROUPS),
                track_changes=True,
            )
            for part in range(PARTITIONS)
        ]

    def run(self, parts: list[list[pa.RecordBatch]]) -> float:
        self.epoch += 1
        began = time.process_time()
        for keyed, batches in zip(self.parts, parts, strict=True):
            keyed.begin_epoch(self.epoch)
            keyed.forget_changes(self.epoch - 1)
            operator = keyed_operator(
                self.function(),
                keyed,
                OperatorSpec(
                    key_columns=["k"],
                    key_group_column=GROUP_COLUMN,
                    output=OutputSchema(OUTPUT),
                    epoch=self.epoch,
                ),
            )
            operator.open()
            for _ in operator.process(iter(batches)):
                pass
            operator.close()
        return time.process_time() - began

    def write_full_snapshot(self) -> float:
        began = time.process_time()
        for keyed in self.parts:
            snapshot = keyed.snapshot(self.epoch)
            writer = SegmentWriter(self.folder.storage, f"data/{next(self.numbers)}.seg", keyed.key_groups)
            snapshot.run(writer)
            writer.finish()
        return time.process_time() - began

    def write_changes(self) -> float:
        began = time.process_time()
        for keyed in self.parts:
            changes = keyed.changes_since(self.epoch - 1)
            metas = {meta.name: meta for meta in keyed.metas()}
            path = f"data/{next(self.numbers)}.seg"
            write_delta(self.folder.storage, path, keyed.key_groups, metas, changes)
            for changed in changes.values():
                changed.release()
        return time.process_time() - began


class Floor:
    """pyarrow's ``group_by`` and a dict for each partition."""

    def __init__(self) -> None:
        self.states: list[dict[str, tuple[int, int]]] = [{} for _ in range(PARTITIONS)]

    def run(self, parts: list[list[pa.RecordBatch]]) -> float:
        began = time.process_time()
        for state, batches in zip(self.states, parts, strict=True):
            table = pa.Table.from_batches(batches)
            made = table.group_by("k", use_threads=False).aggregate([("c", "count"), ("c", "sum")])
            keys, counts, sums = (column.to_pylist() for column in made.columns)
            out = []
            for key, n, total in zip(keys, counts, sums, strict=True):
                before = state.get(key)
                state[key] = now = (n, total) if before is None else (before[0] + n, before[1] + total)
                out.append(now)
            ns, totals = zip(*out, strict=True)
            pa.record_batch(
                [made.column("k").combine_chunks(), pa.array(ns), pa.array(totals)], schema=OUTPUT
            )
        return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS))
    parser.add_argument("--functions", nargs="+", default=["aggregate", "vectorized", "per-record"])
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    functions = {"aggregate": aggregation, "vectorized": Vectorized, "per-record": PerRecord}
    rows = Rows(args.rows, args.keys, 2)
    with tempfile.TemporaryDirectory() as folder:
        floor = Floor()
        jobs = {
            f"{name} {backend}": Job(backend, functions[name], Path(folder) / f"{name}-{backend}")
            for backend in args.backends
            for name in args.functions
        }
        times: dict[str, list[float]] = {}
        for number in range(-1, args.rounds):
            epoch = rows.epochs[number % 2]
            measured = {"floor": floor.run(epoch)}
            for name, job in jobs.items():
                gc.collect()
                measured[f"{name}: rows"] = job.run(epoch)
                measured[f"{name}: changes"] = job.write_changes()
                measured[f"{name}: whole"] = job.write_full_snapshot()
            if number >= 0:  # the first one fills the state
                for name, seconds in measured.items():
                    times.setdefault(name, []).append(seconds * 1000)
        least = statistics.median(times["floor"])
        for name, values in times.items():
            middle = statistics.median(values)
            sys.stdout.write(
                f"{name:32} {middle:8.0f} ms  {middle / least:6.2f}  (least {min(values):.0f})\n"
            )
        if args.profile:
            profile = cProfile.Profile()
            for job in jobs.values():
                profile.enable()
                job.run(rows.epochs[0])
                job.write_full_snapshot()
                job.write_changes()
                profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
