"""Rows per second and time per micro-batch of keyed aggregation: keyedstate, Spark and their peers.

    python tests/bench/bench_spark.py [--rows N] [--keys N] [--rounds N] [--lanes PART ...]
                                      [--backends NAME ...] [--peers PYTHON] [--json FILE]

Count and sum per string key.  All queries run on one Spark session, one at a time: in each round every one
of them gets the same few micro-batches, so that a machine that is slow for a while is slow for all.  Ratios
are taken within a round, and the median of the rounds is reported.  Engines that would not finish in time get
smaller micro-batches; their rows per second are compared.

Some lanes get micro-batches of a few rows, and some of none: what a micro-batch costs that has next to
nothing to do.  Of ours, some are filled with a large state first.  For these there is processor time, too,
since on a busy machine a micro-batch mostly waits.

With ``--peers PYTHON``, an interpreter that has Bytewax and Quix Streams, these run in the same rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streaming import lanes as spark_lanes
from streaming.events import FILL, write_batch
from streaming.lanes import HDFS, ROCKSDB, Lane, open_session
from streaming.peer import Peer, peers_of
from streaming.processor import mark, processor_seconds

FLOOR = "floor: repartition, count the rows in Python"
THROUGH = "floor: repartition, rows through Python and back"
SPARK_HDFS = "Spark groupBy, JVM, HDFS-backed store"
SPARK_ROCKSDB = "Spark groupBy, JVM, RocksDB store"
SPARK_ROWS = "Spark transformWithState, rows"
SPARK_PANDAS = "Spark transformWithStateInPandas"
SMALL_FLOOR = "small: floor, rows through Python, no state"
SMALL_HDFS = "small: Spark groupBy, HDFS-backed store"
SMALL_ROCKSDB = "small: Spark groupBy, RocksDB store"
SMALL_OURS = "small: keyedstate aggregate, {}, {:,} entries"
EMPTY_FLOOR = "empty: floor, no row through Python, no state"
EMPTY_OURS = "empty: keyedstate aggregate, {}, {:,} entries"
#: What each of ours is compared with.
REFERENCES = (SPARK_HDFS, SPARK_ROCKSDB, SPARK_ROWS)


@dataclass
class Entry:
    """An engine with its size of micro-batches, and what was measured: seconds for one, in each round."""

    name: str
    engine: Lane | Peer
    rows: int
    keys: int
    seconds: list[float] = field(default_factory=list)
    #: Keys that are given to the engine once, before anything is measured.
    filled: int = 0
    #: Seconds of all processors for one micro-batch, in each round; empty where it is not recorded.
    processor: list[float] = field(default_factory=list)

    @property
    def is_small(self) -> bool:
        return self.name.startswith(("small", "empty"))

    @property
    def speeds(self) -> list[float]:
        return [self.rows / seconds for seconds in self.seconds]

    def report(self, entries: dict[str, Entry]) -> dict[str, Any]:
        if self.is_small:
            floor = entries[SMALL_FLOOR if self.rows else EMPTY_FLOOR]
            found: dict[str, Any] = {"name": self.name, "rows": self.rows}
            for what, mine, theirs in (
                ("ms", self.seconds, floor.seconds),
                ("processor_ms", self.processor, floor.processor),
            ):
                more = [one - other for one, other in zip(mine, theirs, strict=True)]
                found[what] = statistics.median(mine) * 1000 if mine else None
                found[f"more_{what}"] = statistics.median(more) * 1000 if more else None
            return found
        ratios = {}
        for reference in REFERENCES:
            if reference in entries and reference != self.name:
                pairs = zip(self.speeds, entries[reference].speeds, strict=True)
                ratios[reference] = statistics.median(mine / theirs for mine, theirs in pairs)
        return {
            "name": self.name,
            "rows": self.rows,
            "keys": self.keys,
            "rows_per_s": statistics.median(self.speeds),
            "speeds": self.speeds,
            "ratios": ratios,
        }


class Batches:
    """Files of micro-batches, written once for all that want them, in the order of their numbers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def file(self, number: int, rows: int, keys: int) -> Path:
        path = self._folder / f"{rows}x{keys}" / f"{number:06}.parquet"
        if not path.exists():
            write_batch(path, number, rows, keys)
        return path


def entries_of(options: argparse.Namespace) -> list[Entry]:
    rows, keys = options.rows, options.keys
    few = max(rows // 25, 1), max(keys // 25, 1)
    fewest = max(rows // 250, 1), max(keys // 250, 1)
    made = [
        Entry(FLOOR, Lane(FLOOR, spark_lanes.floor), rows, keys),
        Entry(THROUGH, Lane(THROUGH, spark_lanes.through_python), rows, keys),
        Entry(SPARK_HDFS, Lane(SPARK_HDFS, spark_lanes.spark_group_by, HDFS), rows, keys),
        Entry(SPARK_ROCKSDB, Lane(SPARK_ROCKSDB, spark_lanes.spark_group_by, ROCKSDB), rows, keys),
    ]
    for backend in options.backends:
        for kind, build in (
            ("aggregate", spark_lanes.aggregated),
            ("vectorized", spark_lanes.vectorized),
            ("per record", spark_lanes.per_record),
            ("per record, a row per key", spark_lanes.per_record_and_key),
        ):
            name = f"keyedstate {kind}, {backend}"
            made.append(Entry(name, Lane(name, build(backend)), rows, keys))
    made += [
        Entry(SPARK_ROWS, Lane(SPARK_ROWS, spark_lanes.transform_with_state, ROCKSDB), *few),
        Entry(SPARK_PANDAS, Lane(SPARK_PANDAS, spark_lanes.transform_with_state_in_pandas, ROCKSDB), *fewest),
    ]
    if options.peers:
        made += [Entry(peer.name, peer, rows, keys) for peer in peers_of(options.peers)]
    made += small_entries(options)
    if options.lanes:
        # Small micro-batches are compared by how much more they take than the floor.
        floors = [floor for floor in (SMALL_FLOOR, EMPTY_FLOOR) if _begins_alike(floor, options.lanes)]
        made = [entry for entry in made if entry.name.startswith((*options.lanes, *floors))]
    return made


def _begins_alike(name: str, others: Sequence[str]) -> bool:
    return any(other.startswith(name.partition(":")[0]) for other in others)


def small_entries(options: argparse.Namespace) -> list[Entry]:
    rows, keys = 100, 100
    made = [
        Entry(SMALL_FLOOR, Lane(SMALL_FLOOR, spark_lanes.through_python), rows, keys),
        Entry(SMALL_HDFS, Lane(SMALL_HDFS, spark_lanes.spark_group_by, HDFS), rows, keys),
        Entry(SMALL_ROCKSDB, Lane(SMALL_ROCKSDB, spark_lanes.spark_group_by, ROCKSDB), rows, keys),
    ]
    for backend in options.backends:
        for filled in (keys, options.large) if backend == "heap-cow" else (keys,):
            name = SMALL_OURS.format(backend, filled)
            made.append(Entry(name, Lane(name, spark_lanes.aggregated(backend)), rows, keys, filled=filled))
    made.append(Entry(EMPTY_FLOOR, Lane(EMPTY_FLOOR, spark_lanes.through_python), 0, keys))
    for filled in (keys, options.large):
        name = EMPTY_OURS.format("heap-cow", filled)
        made.append(Entry(name, Lane(name, spark_lanes.aggregated("heap-cow")), 0, keys, filled=filled))
    return made


def measure(entries: Sequence[Entry], options: argparse.Namespace, folder: Path) -> None:
    """Run all engines, round after round; the first micro-batches of each warm it up."""
    batches = Batches(folder / "batches")
    session = open_session(folder)
    with ExitStack() as opened:
        opened.callback(session.stop)
        for number, entry in enumerate(entries):
            if isinstance(entry.engine, Peer):
                opened.callback(entry.engine.stop)
                entry.engine.start()
            else:
                entry.engine.start(session, folder / f"lane-{number}")

        def run(entry: Entry, numbers: range) -> list[float]:
            if isinstance(entry.engine, Peer):
                return entry.engine.run(numbers, entry.rows, entry.keys)
            return entry.engine.run([batches.file(number, entry.rows, entry.keys) for number in numbers])

        for entry in entries:
            if entry.filled > entry.rows and isinstance(entry.engine, Lane):
                entry.engine.run([batches.file(FILL, entry.filled, entry.filled)])
            times = run(entry, range(options.warm_up))
            print(f"{entry.name}: warm after {' '.join(f'{time:.2f}' for time in times)} s", flush=True)
        order = list(entries)
        first = options.warm_up
        for number in range(options.rounds):
            random.Random(number).shuffle(order)
            for entry in order:
                before = processor_seconds() if entry.is_small else None
                times = run(entry, range(first, first + options.batches))
                # Of one that is measured in milliseconds, more micro-batches cost nothing.
                if entry.is_small:
                    times += run(entry, range(first + options.batches, first + 3 * options.batches))
                after = processor_seconds() if entry.is_small else None
                if before is not None and after is not None:
                    entry.processor.append((after - before) / len(times))
                entry.seconds.append(statistics.median(times))
                print(f"round {number + 1}  {entry.seconds[-1] * 1000:>9,.0f} ms  {entry.name}", flush=True)
            first += 3 * options.batches


def markdown(report: dict[str, Any]) -> str:
    """Return the table of a report."""
    heads = ["HDFS-backed", "RocksDB", "transformWithState"]
    lines = [
        f"| Engine | rows per micro-batch | rows/s | {' | '.join(f'to Spark {head}' for head in heads)} |",
        "|---|---|---|" + "---|" * len(heads),
    ]
    for line in report["lines"]:
        if "ratios" not in line:
            continue
        ratios = [f"{line['ratios'][name]:.2f}" if name in line["ratios"] else "" for name in REFERENCES]
        lines.append(
            f"| {line['name']} | {line['rows']:,} | {line['rows_per_s']:,.0f} | {' | '.join(ratios)} |"
        )
    for rows in (100, 0):
        small = [line for line in report["lines"] if "ms" in line and line["rows"] == rows]
        if small:
            head = "ms | more than the floor | ms of processors | more than the floor"
            lines += ["", f"| Micro-batch of {rows or 'no'} rows | {head} |", "|---|---|---|---|---|"]
        for line in small:
            columns = (line[name] for name in ("ms", "more_ms", "processor_ms", "more_processor_ms"))
            figures = " | ".join("" if figure is None else f"{figure:.0f}" for figure in columns)
            lines.append(f"| {line['name'].partition(': ')[2]} | {figures} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=500_000, help="of a micro-batch")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=3, help="of an engine in a round")
    parser.add_argument("--warm-up", type=int, default=6, help="micro-batches before the first round")
    parser.add_argument("--backends", nargs="*", default=["heap-cow", "nested-map", "rocksdb"])
    parser.add_argument("--large", type=int, default=1_000_000, help="keys of the large state")
    parser.add_argument("--lanes", nargs="*", help="only engines whose names begin with one of these")
    parser.add_argument("--peers", help="interpreter with Bytewax and Quix Streams")
    parser.add_argument("--json", type=Path, help="where the report goes")
    options = parser.parse_args()
    mark()
    # The functions of the queries are in a module that Spark's workers find there.
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    entries = entries_of(options)
    with tempfile.TemporaryDirectory() as folder:
        measure(entries, options, Path(folder))
    by_name = {entry.name: entry for entry in entries}
    report = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "keys": options.keys,
        "lines": [entry.report(by_name) for entry in entries],
    }
    print(f"\n{markdown(report)}")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
