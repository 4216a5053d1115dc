"""An interval join of two streams, a minute to either side: keyedstate's, and Spark's own stream-stream join.

    python tests/bench/bench_join.py [--rows N] [--keys N] [--batches N] [--markdown FILE]

Both are inner joins of the same two folders of files on an equal key and a range of event time, with a
watermark on each side, in append mode; each micro-batch has rows of the next minute of both.  What counts is
processor time of the session with all of its processes, from the fourth micro-batch on: how busy the machine
is beside matters little then.  Both must put out as many rows.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from streaming.lanes import HDFS, PARTITIONS, ROCKSDB, open_session

from keyedstate import connect, keyed
from keyedstate.time import EventTime

STEP_MS = 60_000
#: Micro-batches before the state is as large as it gets.
WARM = 3


def batch(side: int, number: int, rows: int, keys: int) -> pa.Table:
    generator = np.random.default_rng([side, number, rows, keys])
    # From the second minute on: Spark takes rows of 1970-01-01 00:00 for late ones.
    times = (number + 1) * STEP_MS + generator.integers(0, STEP_MS, rows)
    return pa.table(
        {
            "k": pa.array(generator.integers(0, keys, rows)),
            "v": pa.array(generator.integers(0, 100, rows)),
            "ts": pa.array(times * 1000, pa.timestamp("us", "UTC")),
        }
    )


def spark_join(left: Any, right: Any, folder: Path) -> Any:
    from pyspark.sql import functions as f

    near = f.expr("l.k = r.k and r.ts >= l.ts - interval 1 minute and r.ts <= l.ts + interval 1 minute")
    late = [frame.withWatermark("ts", "1 second").alias(name) for frame, name in ((left, "l"), (right, "r"))]
    return late[0].join(late[1], near).select("l.k", "l.v", "l.ts", "r.v", "r.ts")


def keyedstate_join(left: Any, right: Any, folder: Path) -> Any:
    config = {"checkpoint.dir": str(folder / "state"), "parallelism": PARTITIONS}
    event_time = EventTime("ts", delay="1 second")
    first, second = (keyed(rows, "k", event_time=event_time) for rows in (left, right))
    return connect(first, second, uid="join", config=config).interval_join("-1 minute", "1 minute").join()


def processor_seconds() -> float:
    """Return the processor time of this process and of all that it has started."""
    spent = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        spent += times.user + times.system + times.children_user + times.children_system
    return spent


def on_spark(arguments: argparse.Namespace) -> Iterator[tuple[str, float, int]]:
    """Yield of each query the processor seconds of a micro-batch, and how many rows it put out."""
    lanes: list[tuple[str, Callable[[Any, Any, Path], Any], dict[str, str]]] = [
        ("Spark, stream-stream join, HDFS-backed store", spark_join, HDFS),
        ("Spark, stream-stream join, RocksDB", spark_join, ROCKSDB),
        ("keyedstate, interval_join, heap-cow", keyedstate_join, {}),
    ]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for side in range(2):
            (folder / f"side-{side}").mkdir()
        session = open_session(folder)
        try:
            for lane, (name, build, settings) in enumerate(lanes):
                for setting, value in settings.items():
                    session.conf.set(setting, value)
                own = folder / str(lane)
                frames, counted = [], [0]
                for side in range(2):
                    (own / f"side-{side}").mkdir(parents=True)
                    reader = session.readStream.schema("k long, v long, ts timestamp")
                    frames.append(reader.parquet(str(own / f"side-{side}")))

                def count(rows: Any, epoch: int, counted: list[int] = counted) -> None:
                    counted[0] += rows.count()

                query = (
                    build(*frames, own)
                    .writeStream.foreachBatch(count)
                    .outputMode("append")
                    .option("checkpointLocation", str(own / "query"))
                    .start()
                )
                began = 0.0
                for number in range(arguments.batches):
                    if number == WARM:
                        began = processor_seconds()
                    for side in range(2):
                        hidden = own / f"side-{side}" / f".{number}.parquet"
                        pq.write_table(batch(side, number, arguments.rows, arguments.keys), hidden)
                        hidden.rename(hidden.with_name(f"{number:06}.parquet"))
                    query.processAllAvailable()
                spent = (processor_seconds() - began) / (arguments.batches - WARM)
                query.stop()
                yield name, spent, counted[0]
        finally:
            session.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000, help="of each side in a micro-batch")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=9)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    lines = [
        f"{arguments.rows:,} rows of each side in a batch, {arguments.keys:,} keys. Here: {machine}.",
        "",
    ]
    lines += ["| | processor s per batch | times as fast as the first | rows out |", "|---|---|---|---|"]
    found = list(on_spark(arguments))
    for name, spent, rows in found:
        lines.append(f"| {name} | {spent:.2f} | {found[0][1] / spent:.2f} | {rows:,} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    if len({rows for _, _, rows in found}) > 1:
        raise SystemExit("the queries have put out different numbers of rows")


if __name__ == "__main__":
    main()
