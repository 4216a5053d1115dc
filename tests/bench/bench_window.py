"""Tumbling one-minute windows with a count and a sum per key: by columns, row by row, and Spark's own.

    python tests/bench/bench_window.py [--rows N] [--keys N] [--batches N] [--no-spark] [--markdown FILE]

Each micro-batch has rows of the next twenty seconds, so that every third one ends a window of all keys.

- in one process, without Spark: seconds of the processor for a micro-batch, state and timers included;
- on Spark: seconds of a micro-batch from its trigger to its end, for ``groupBy(window("ts", ...), "k")`` with
  a watermark in append mode over both of Spark's state stores, and for keyedstate by columns and row by row.

The median over the batches after the first three counts.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from streaming.lanes import HDFS, PARTITIONS, ROCKSDB, open_session

from keyedstate import types
from keyedstate.murmur3 import key_groups
from keyedstate.runtime.aggregates import count, sum_
from keyedstate.runtime.windows import windowed
from keyedstate.state import AggregateFunction
from keyedstate.testing import Harness
from keyedstate.window import Tumbling

STEP_MS = 20_000
#: Batches before the state is as large as it gets.
WARM = 3
RESULT = "k string, window_start timestamp, window_end timestamp, n long, total long"


class Sums(AggregateFunction[Any, Any, Any]):
    """The count and the sum, row by row."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + 1, accumulator[1] + value.c

    def get_result(self, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator


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


def in_process(function: Any, arguments: argparse.Namespace) -> float:
    """Return the median processor seconds of a micro-batch in the operator."""
    with Harness(function, key="k", schema="k string, c long, ts timestamp", output=RESULT, time="ts") as job:
        [instance] = job.instances
        operator: Any = instance._operator
        spent = []
        for number in range(arguments.batches):
            [rows] = batch(number, arguments.rows, arguments.keys).combine_chunks().to_batches()
            groups = pa.array(key_groups([rows.column("k")], 128))
            rows = rows.append_column("__keyedstate_key_group", groups)
            instance.backend.advance_watermark((number - 1) * STEP_MS)
            began = time.process_time()
            for _ in operator.process(iter([rows])):
                pass
            spent.append(time.process_time() - began)
    return statistics.median(spent[WARM:])


def by_columns(builder: Any) -> Any:
    return builder.aggregate(n=count(), total=sum_("c"))


def row_by_row(builder: Any) -> Any:
    return builder.aggregate_with(Sums(), PAIR, "n long, total long")


# -- Spark -----------------------------------------------------------------------------------------


def spark_windows(events: Any, folder: Path) -> Any:
    from pyspark.sql import functions as f

    late = events.withWatermark("ts", "1 second")
    return late.groupBy(f.window("ts", "1 minute"), "k").agg(f.count("*"), f.sum("c"))


def keyedstate(made: Callable[[Any], Any]) -> Callable[[Any, Path], Any]:
    from keyedstate.spark import keyed

    def build(events: Any, folder: Path) -> Any:
        config = {"checkpoint.dir": str(folder / "state"), "parallelism": PARTITIONS}
        rows = keyed(events, "k", uid="windows", config=config)
        return made(rows.window(Tumbling.of("1 min"), time="ts", delay="1 s"))

    return build


def on_spark(arguments: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """Yield the median seconds of a micro-batch of each query."""
    lanes: list[tuple[str, Callable[[Any, Path], Any], dict[str, str]]] = [
        ("Spark, groupBy(window), HDFS-backed store", spark_windows, HDFS),
        ("Spark, groupBy(window), RocksDB", spark_windows, ROCKSDB),
        ("keyedstate by columns, heap-cow", keyedstate(by_columns), {}),
        ("keyedstate row by row, heap-cow", keyedstate(row_by_row), {}),
    ]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        events = folder / "events"
        events.mkdir()
        for number in range(arguments.batches):
            path = events / f"{number:06}.parquet"
            pq.write_table(
                batch(number, arguments.rows, arguments.keys), path, row_group_size=-(-arguments.rows // 2)
            )
        session = open_session(folder)
        try:
            for number, (name, build, settings) in enumerate(lanes):
                for setting, value in settings.items():
                    session.conf.set(setting, value)
                frame = session.readStream.schema("k string, c long, ts timestamp")
                frame = frame.option("maxFilesPerTrigger", 1).parquet(str(events))
                own = folder / str(number)
                query = (
                    build(frame, own)
                    .writeStream.format("noop")
                    .outputMode("append")
                    .option("checkpointLocation", str(own / "query"))
                    .start()
                )
                query.processAllAvailable()
                done: list[Any] = []
                while len(done) < arguments.batches:
                    done = [one for one in query.recentProgress if "addBatch" in one["durationMs"]]
                    time.sleep(0.05)
                query.stop()
                spent = [one["durationMs"]["triggerExecution"] / 1000 for one in done]
                yield name, statistics.median(spent[WARM : arguments.batches])
        finally:
            session.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    lines = [f"{arguments.rows:,} rows in a batch, {arguments.keys:,} keys. Here: {machine}.", ""]
    lines += ["| | s per batch | times as fast as the first |", "|---|---|---|"]

    def report(found: list[tuple[str, float]]) -> None:
        for name, spent in found:
            lines.append(f"| {name} | {spent:.2f} | {found[0][1] / spent:.2f} |")

    minutes = windowed(Tumbling.of("1 min"))
    report(
        [
            ("in one process, row by row", in_process(row_by_row(minutes), arguments)),
            ("in one process, by columns", in_process(by_columns(minutes), arguments)),
        ]
    )
    if not arguments.no_spark:
        report(list(on_spark(arguments)))
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
