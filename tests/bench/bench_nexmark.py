"""The queries of Nexmark with keyedstate and with Spark's own operators: that they are right, and how fast.

    python tests/bench/bench_nexmark.py [--queries NAME ...] [--backends NAME ...] [--check EVENTS]
        [--rows N] [--rounds N] [--stateful-rows N] [--markdown FILE] [--docs]

First each query runs over `--check` events, on each backend and with Spark's own operators, and all of its
output is compared with that of DuckDB for the same events; a difference ends the benchmark.  ``--check 0``
leaves that out.

Then the queries with state are timed.  For each of them keyedstate on every backend, Spark with both of its
stores where its operators can say the query, and transformWithState for q18 and q19 run on one session.  A
round gives each of them a micro-batch of the same `--rows` events in turn; the first eight rounds do not
count: the JVM compiles its code meanwhile, and Spark's operators gain more by that than keyedstate does.
The time of a micro-batch is Spark's, from its trigger to its commit.  Processor time is that of the session
with all of its processes.  Ratios are those of rows per second within a round, and their medians are
reported.  ``--rounds 0`` leaves the timing out.  ``--docs`` writes the measurement of all queries on both
backends into the documentation, with its picture.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nexmark.checking import Input, differences
from nexmark.events import KINDS, Events
from nexmark.queries import QUERIES, STATELESS, Query, lines_of_code, lines_of_sql
from nexmark.running import tables_of, write_batch
from nexmark.spark_queries import SPARK_QUERIES
from nexmark.stateful_queries import STATEFUL_QUERIES
from streaming.lanes import HDFS, ROCKSDB, open_session
from streaming.processor import mark, processor_seconds

from keyedstate.errors import UnboundedStateWarning

ROOT = Path(__file__).resolve().parents[2]
WARM = 8
BACKEND, CHECKPOINT_DIR = "spark.keyedstate.backend", "spark.keyedstate.checkpoint.dir"
#: Spark's store that a backend is compared with: both are in memory, or both in RocksDB.
STORES = {"heap-cow": "Spark, HDFS-backed store", "rocksdb": "Spark, RocksDB"}
SETTINGS = {"Spark, HDFS-backed store": HDFS, "Spark, RocksDB": ROCKSDB}
STATEFUL = "Spark transformWithState"
COLUMNS = ("query", "lane", "rows_per_second", "to_spark", "processor_to_spark", "code_lines", "sql_lines")


@dataclass
class Lane:
    """A running query with an input folder of its own, and what its counted micro-batches took.

    Attributes
    ----------
    rows : list of int
        Rows read in each micro-batch.
    seconds, processor : list of float
    """

    name: str
    query: Query
    mode: str
    settings: Mapping[str, str]
    events: int
    rows: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def start(self, session: Any, folder: Path) -> None:
        self._input = folder / "input"
        for kind in KINDS:
            (self._input / kind).mkdir(parents=True)
        for name, value in {
            **self.settings,
            "spark.keyedstate.checkpoint.dir": str(folder / "state"),
        }.items():
            session.conf.set(name, value)
        self._fed = 0
        self._running = (
            self.query(tables_of(session, self._input))
            .writeStream.format("noop")
            .outputMode(self.mode)
            .option("checkpointLocation", str(folder / "query"))
            .start()
        )

    def run(self, batch: Path, *, counts: bool) -> None:
        """Process the files of a micro-batch."""
        began = processor_seconds() or 0.0
        seen = len(self._running.recentProgress)
        for kind in KINDS:
            # A link shares its time with the file, by which the source takes them: oldest first.
            os.link(batch / f"{kind}.parquet", self._input / kind / f"{self._fed:06}.parquet")
        self._running.processAllAvailable()
        while not self._is_done():
            time.sleep(0.01)
        self._fed += 1
        if counts:
            done = [one for one in self._running.recentProgress[seen:] if "addBatch" in one["durationMs"]]
            self.rows.append(sum(one["numInputRows"] for one in done))
            self.seconds.append(sum(one["durationMs"]["triggerExecution"] for one in done) / 1000)
            self.processor.append((processor_seconds() or 0.0) - began)

    def _is_done(self) -> bool:
        """Tell whether the progress of the micro-batch has been published."""
        latest = self._running.lastProgress
        return latest is not None and all(
            json.loads(source["endOffset"])["logOffset"] >= self._fed
            for source in latest["sources"]
            if source["description"].startswith("FileStreamSource")
        )

    def stop(self) -> None:
        self._running.stop()

    @property
    def rows_per_second(self) -> float:
        return statistics.median(map(float.__truediv__, map(float, self.rows), self.seconds))

    def times_as_fast_as(self, other: Lane, spent: str) -> float:
        """Return the median over the rounds of the ratio of rows per second, of `seconds` or `processor`."""
        ours, theirs = getattr(self, spent), getattr(other, spent)
        return statistics.median(
            (rows / mine) / (other_rows / other_spent)
            for rows, mine, other_rows, other_spent in zip(self.rows, ours, other.rows, theirs, strict=True)
        )


def set_all(session: Any, settings: Mapping[str, str], folder: Path) -> None:
    """Set what a query reads when it is built or started: its store or backend, and its folder."""
    for name, value in {**settings, CHECKPOINT_DIR: str(folder / "state")}.items():
        session.conf.set(name, value)


def checked(arguments: argparse.Namespace, session: Any, folder: Path) -> None:
    """Compare what all queries give with what DuckDB gives; ends the program at a difference."""
    events = Input.written(
        folder / "events", Events(period_ms=20), arguments.check, max(arguments.check // 3, 1)
    )
    wrong = []
    for name in arguments.queries:
        expected = events.expected(name)
        queries = [
            (backend, QUERIES[name], "append", {BACKEND: backend})
            for backend in (arguments.backends if name not in STATELESS else arguments.backends[:1])
        ]
        if name in SPARK_QUERIES:
            queries.append(("Spark", *SPARK_QUERIES[name], HDFS))
        if name in STATEFUL_QUERIES:
            queries.append((STATEFUL, STATEFUL_QUERIES[name], "update", ROCKSDB))
        for lane, query, mode, settings in queries:
            set_all(session, settings, folder / name / lane)
            found = events.found(session, name, query, folder / name / lane, mode)
            different = differences(expected, found)
            print(f"{name} {lane}: {different or f'{sum(expected.values()):,} rows as expected'}", flush=True)
            wrong += [f"{name} {lane}"] if different else []
    if wrong:
        raise SystemExit(f"The output differs from that of DuckDB in {', '.join(wrong)}.")


def lanes_of(name: str, arguments: argparse.Namespace) -> list[Lane]:
    ours = QUERIES[name]
    lanes = [
        Lane(f"keyedstate, {backend}", ours, "append", {BACKEND: backend}, arguments.rows)
        for backend in arguments.backends
    ]
    if name in SPARK_QUERIES:
        query, mode = SPARK_QUERIES[name]
        stores = {STORES[backend] for backend in arguments.backends if backend in STORES}
        lanes += [Lane(store, query, mode, SETTINGS[store], arguments.rows) for store in sorted(stores)]
    if name in STATEFUL_QUERIES and arguments.stateful_rows:
        lanes.append(Lane(STATEFUL, STATEFUL_QUERIES[name], "update", ROCKSDB, arguments.stateful_rows))
    return lanes


def timed(name: str, arguments: argparse.Namespace, session: Any, folder: Path) -> list[Lane]:
    """Return what a query took in each of its lanes."""
    lanes = lanes_of(name, arguments)
    with ExitStack() as running:
        for place, lane in enumerate(lanes):
            lane.start(session, folder / f"{name}-{place}")
            running.callback(lane.stop)
        for number in range(WARM + arguments.rounds):
            for lane in lanes:
                lane.run(folder / f"{lane.events}" / f"{number:06}", counts=number >= WARM)
    return lanes


def write_batches(arguments: argparse.Namespace, folder: Path) -> None:
    for rows in {arguments.rows, arguments.stateful_rows} - {0}:
        events = Events()
        for number in range(WARM + arguments.rounds):
            own = folder / f"{rows}" / f"{number:06}"
            write_batch(own, number, events.batch(number * rows, (number + 1) * rows))
            for kind in KINDS:
                (own / kind / f"{number:06}.parquet").rename(own / f"{kind}.parquet")


def lines_of(name: str, lanes: list[Lane]) -> Iterator[dict[str, object]]:
    """Yield a line of the report for each lane of a query."""
    by_name = {lane.name: lane for lane in lanes}
    for lane in lanes:
        backend = lane.name.removeprefix("keyedstate, ")
        peer = by_name.get(STORES.get(backend, ""))
        kinds = ("seconds", "processor")
        ratios = [f"{lane.times_as_fast_as(peer, spent):.2f}" if peer else "" for spent in kinds]
        lines = lines_of_code(QUERIES[name]), lines_of_sql(QUERIES[name])
        print(f"{name} {lane.name}: {lane.rows_per_second:,.0f} rows/s {ratios}", flush=True)
        yield dict(zip(COLUMNS, (name, lane.name, round(lane.rows_per_second), *ratios, *lines), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--queries", nargs="+", choices=QUERIES, default=list(QUERIES))
    parser.add_argument("--backends", nargs="+", default=["heap-cow", "rocksdb"])
    parser.add_argument("--check", type=int, default=6000, help="events of the comparison with DuckDB")
    parser.add_argument("--rows", type=int, default=50_000, help="events of a micro-batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stateful-rows", type=int, default=5000, help="events for transformWithState")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--docs", action="store_true", help="write the picture and the table of the page")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UnboundedStateWarning)
    mark()
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        session = open_session(folder)
        session.conf.set("spark.sql.session.timeZone", "UTC")
        try:
            if arguments.check:
                checked(arguments, session, folder / "check")
            if arguments.rounds:
                write_batches(arguments, folder)
                for name in arguments.queries:
                    if name not in STATELESS:
                        found += lines_of(name, timed(name, arguments, session, folder))
        finally:
            session.stop()
    if arguments.docs:
        with (ROOT / "docs" / "images" / "nexmark.csv").open("w", encoding="ascii", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)
        subprocess.run([sys.executable, str(ROOT / "scripts" / "draw_nexmark.py")], check=True)
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    size = f"{arguments.rows:,} events in a micro-batch, medians of {arguments.rounds} rounds"
    text = f"{size}. Here: {machine}.\n\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    text += "".join(f"| {' | '.join(map(str, line.values()))} |\n" for line in found)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
