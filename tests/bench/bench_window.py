"""Windows with a count and a sum per key: by columns, row by row, and Spark's own.

    python tests/bench/bench_window.py [--rows N] [--keys N] [--rounds N] [--no-spark] [--markdown FILE]

Windows tumble by the minute, and each micro-batch has rows of the next twenty seconds; a round is three of
them, so that windows of all keys end in each round.  Rounds of all lanes take turns, after one that does not
count.

- without Spark, each in a process of its own: seconds of the processor for a micro-batch, state and timers
  included, and by how much memory grew at the most since the lane began; also for sessions with a gap of
  fifteen seconds, which one in forty rows ends;
- on Spark: seconds of a micro-batch from its trigger to its end, for ``groupBy(window("ts", ...), "k")`` with
  a watermark in append mode over both of Spark's state stores, for ``transformWithState`` row by row, with
  the windows of a key in a map state and a timer for each, and for keyedstate by columns and row by row.
  What is slow gets few rows; keyedstate row by row gets as few once more.

The ratio of two lanes is the median of those of their rounds.  Timers alone are in bench_timers.py.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from streaming.lanes import HDFS, PARTITIONS, ROCKSDB, Lane, open_session

from keyedstate import types
from keyedstate.aggregates import count, sum_
from keyedstate.murmur3 import key_groups
from keyedstate.state import AggregateFunction
from keyedstate.testing import Harness
from keyedstate.time import EventTime
from keyedstate.windows import Session, Tumbling, windowed

STEP_MS = 20_000
#: Micro-batches of a round: a minute.
BATCHES = 3
SCHEMA = "k string, c long, ts timestamp"
RESULT = "k string, window_start timestamp, window_end timestamp, n long, total long"
ROWS = "keyedstate row by row, heap-cow"
STATEFUL = "Spark transformWithState, row by row"


class Sums(AggregateFunction[Any, Any, Any]):
    """The count and the sum, row by row."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + 1, accumulator[1] + value.c

    def get_result(self, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


PAIR = types.tuple_of(types.INT64, types.INT64)


def batch(number: int, rows: int, keys: int) -> pa.Table:
    generator = np.random.default_rng([number, rows, keys])
    names = pa.array([f"customer-{key:08}" for key in range(keys)])
    times = number * STEP_MS + generator.integers(0, STEP_MS, rows)
    return pa.table(
        {
            "k": names.take(pa.array(generator.integers(0, keys, rows))),
            "c": pa.array(generator.integers(0, 100, rows)),
            "ts": pa.array(times * 1000, pa.timestamp("us", "UTC")),
        }
    )


def by_columns(builder: Any) -> Any:
    return builder.aggregate(n=count(), total=sum_("c"))


def row_by_row(builder: Any) -> Any:
    return builder.aggregate_with(Sums(), PAIR, "n long, total long")


class Engine(Protocol):
    """What runs micro-batches."""

    def run(self, numbers: range, rows: int, keys: int) -> list[float]:
        """Return the seconds of each."""


@dataclass
class Entry:
    """An engine with its size of micro-batches, and the seconds of one, in each round."""

    name: str
    engine: Engine
    rows: int
    keys: int
    seconds: list[float] = field(default_factory=list)
    #: By how many bytes its process grew at the most; None where it shares a process.
    grown: int | None = None

    def times_as_fast_as(self, other: Entry) -> float:
        """Return the median over the rounds of the ratio of rows per second."""
        pairs = zip(self.seconds, other.seconds, strict=True)
        return statistics.median(theirs / mine for mine, theirs in pairs) * self.rows / other.rows


def measure(entries: list[Entry], rounds: int) -> None:
    """Run rounds of all engines in turn; the first one does not count."""
    for number in range(rounds + 1):
        for entry in entries:
            numbers = range(number * BATCHES, (number + 1) * BATCHES)
            found = statistics.mean(entry.engine.run(numbers, entry.rows, entry.keys))
            if number:
                entry.seconds.append(found)


class InOperator:
    """The operator alone, in this process."""

    def __init__(self, function: Any, opened: ExitStack) -> None:
        schema: Any = {"key": "k", "schema": SCHEMA, "output": RESULT, "event_time": EventTime("ts")}
        [self._instance] = opened.enter_context(Harness(function, **schema)).instances

    def run(self, numbers: range, rows: int, keys: int) -> list[float]:
        operator: Any = self._instance._operator
        spent = []
        for number in numbers:
            [made] = batch(number, rows, keys).combine_chunks().to_batches()
            groups = pa.array(key_groups([made.column("k")], 128))
            made = made.append_column("__keyedstate_key_group", groups)
            self._instance.backend.advance_watermark((number - 1) * STEP_MS)
            began = time.process_time()
            operator.begin_epoch(number)
            for _ in operator.process(iter([made])):
                pass
            self._instance.backend.write_back()
            spent.append(time.process_time() - began)
        return spent


#: What the operators without Spark are measured with.
LANES: dict[str, Callable[[], Any]] = {
    "tumbling, row by row": lambda: row_by_row(windowed(Tumbling.of("1 min"))),
    "tumbling, by columns": lambda: by_columns(windowed(Tumbling.of("1 min"))),
    "sessions, row by row": lambda: row_by_row(windowed(Session.with_gap("15 s"))),
    "sessions, by columns": lambda: by_columns(windowed(Session.with_gap("15 s"))),
}


def resident(name: str) -> int:
    """Return bytes of this process, VmRSS now or VmHWM at the most; 0 on a system without that file."""
    status = Path("/proc/self/status")
    # Not `ru_maxrss`, which begins with the memory of the process that started this one.
    return int(status.read_text().partition(f"{name}:")[2].split()[0]) << 10 if status.exists() else 0


def serve(name: str, connection: Connection) -> None:
    """Run the micro-batches of a lane that a connection names, until it ends."""
    with ExitStack() as opened:
        operator = InOperator(LANES[name](), opened)
        began = resident("VmRSS")
        while (asked := connection.recv()) is not None:
            connection.send((operator.run(*asked), resident("VmHWM") - began))


class InOwnProcess:
    """The operator alone, in a process of its own: no other lane's state is in its memory."""

    def __init__(self, name: str, opened: ExitStack) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        process = spawn.Process(target=serve, args=(name, theirs), daemon=True)
        process.start()
        theirs.close()
        opened.callback(process.join)
        opened.callback(self._connection.send, None)
        self.grown = 0

    def run(self, numbers: range, rows: int, keys: int) -> list[float]:
        self._connection.send((numbers, rows, keys))
        seconds: list[float]
        seconds, self.grown = self._connection.recv()
        return seconds


def without_spark(arguments: argparse.Namespace) -> list[Entry]:
    """Return the operators, measured."""
    with ExitStack() as opened:
        lanes = {name: InOwnProcess(name, opened) for name in LANES}
        entries = [Entry(name, lane, arguments.rows, arguments.keys) for name, lane in lanes.items()]
        measure(entries, arguments.rounds)
        for entry in entries:
            entry.grown = lanes[entry.name].grown
    return entries


# -- Spark -----------------------------------------------------------------------------------------


class Query:
    """A streaming query, which is fed files."""

    def __init__(self, lane: Lane, folder: Path) -> None:
        self._lane = lane
        self._folder = folder

    def run(self, numbers: range, rows: int, keys: int) -> list[float]:
        files = []
        for number in numbers:
            path = self._folder / f"{rows}-{keys}" / f"{number:06}.parquet"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(batch(number, rows, keys), path, row_group_size=-(-rows // 2))
            files.append(path)
        return self._lane.run(files)


def spark_windows(events: Any, folder: Path) -> Any:
    from pyspark.sql import functions as f

    late = events.withWatermark("ts", "1 second")
    return late.groupBy(f.window("ts", "1 minute"), "k").agg(f.count("*"), f.sum("c"))


def stateful_windows(events: Any, folder: Path) -> Any:
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Minutes(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._handle = handle
            self._windows = handle.getMapState("windows", "start long", "n long, total long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            found: dict[int, tuple[int, int]] = {}
            for row in rows:
                start = int(row.ts.timestamp()) // 60 * 60_000
                n, total = found.get(start, (0, 0))
                found[start] = n + 1, total + row.c
            for start, (n, total) in found.items():
                before = self._windows.getValue((start,))
                if before is None:
                    self._handle.registerTimer(start + 60_000)
                else:
                    n, total = n + before[0], total + before[1]
                self._windows.updateValue((start,), (n, total))
            return iter(())

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
            end = expiredTimerInfo.getExpiryTimeInMs()
            n, total = self._windows.getValue((end - 60_000,))
            self._windows.removeKey((end - 60_000,))
            yield Row(k=key[0], window_end=end, n=n, total=total)

        def close(self) -> None:
            pass

    late = events.withWatermark("ts", "1 second")
    return late.groupBy("k").transformWithState(
        Minutes(), "k string, window_end long, n long, total long", "Append", "EventTime"
    )


def keyedstate(made: Callable[[Any], Any]) -> Callable[[Any, Path], Any]:
    from keyedstate import keyed

    def build(events: Any, folder: Path) -> Any:
        config = {"checkpoint.dir": str(folder / "state"), "parallelism": PARTITIONS}
        rows = keyed(events, "k", uid="windows", config=config, event_time=EventTime("ts", "1 s"))
        return made(rows.window(Tumbling.of("1 min")))

    return build


def on_spark(arguments: argparse.Namespace, folder: Path, opened: ExitStack) -> list[Entry]:
    """Return the queries, each of which is running."""
    size = arguments.rows, arguments.keys
    small = arguments.slow_rows, arguments.slow_rows * arguments.keys // arguments.rows
    lanes = [
        ("Spark, groupBy(window), HDFS-backed store", spark_windows, HDFS, size),
        ("Spark, groupBy(window), RocksDB", spark_windows, ROCKSDB, size),
        ("keyedstate by columns, heap-cow", keyedstate(by_columns), {}, size),
        (ROWS, keyedstate(row_by_row), {}, size),
        (STATEFUL, stateful_windows, ROCKSDB, small),
        (f"{ROWS}, as few rows", keyedstate(row_by_row), {}, small),
    ]
    session = open_session(folder)
    opened.callback(session.stop)
    entries = []
    for number, (name, build, settings, (rows, keys)) in enumerate(lanes):
        lane = Lane(name, build, settings, schema=SCHEMA, mode="append")
        lane.start(session, folder / str(number))
        assert lane.query is not None
        opened.callback(lane.query.stop)
        entries.append(Entry(name, Query(lane, folder / "events"), rows, keys))
    return entries


def lines_of(entries: list[Entry], floors: list[str]) -> list[str]:
    named = {entry.name: entry for entry in entries}
    headings = ["", "rows", "s per batch", *(f"times {floor}" for floor in floors)]
    rows = [
        [
            entry.name,
            f"{entry.rows:,}",
            f"{statistics.median(entry.seconds):.2f}",
            *(f"{entry.times_as_fast_as(named[floor]):.2f}" for floor in floors),
        ]
        for entry in entries
    ]
    if any(entry.grown for entry in entries):
        headings.append("MB more at the most")
        for row, entry in zip(rows, entries, strict=True):
            row.append(f"{(entry.grown or 0) / 1e6:,.0f}")
    return ["", *(f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--slow-rows", type=int, default=20_000, help="rows for transformWithState")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    lines = [f"{arguments.rows:,} rows in a batch, {arguments.keys:,} keys. Here: {machine}."]
    lines += lines_of(without_spark(arguments), ["tumbling, row by row", "sessions, row by row"])
    if not arguments.no_spark:
        with tempfile.TemporaryDirectory() as made, ExitStack() as opened:
            entries = on_spark(arguments, Path(made), opened)
            measure(entries, arguments.rounds)
            lines += lines_of(entries, [entries[0].name, entries[1].name, STATEFUL])
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
