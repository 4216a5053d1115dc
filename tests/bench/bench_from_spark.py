"""A query with much state on Spark's transformWithState is stopped, converted, and continued on keyedstate.

    python tests/bench/bench_from_spark.py [--keys N] [--whole]

Each key gets two rows on Spark, then one on keyedstate after the conversion.  The final answer must equal
that of ``GROUP BY`` over all rows; with ``--whole`` also that of the same query without interruption, which
runs on Spark alone.  Printed are the seconds of each step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from streaming.lanes import ROCKSDB, open_session

from keyedstate.savepoints import from_spark
from keyedstate.spark import drop_in

OUT = "k string, n long, total long, numbers long"


class Totals(StatefulProcessor):
    """Counts and sums in a value, and in a list that has as many elements as the key has micro-batches."""

    def init(self, handle: Any) -> None:
        self.totals = handle.getValueState("totals", "n long, total long")
        self.sums = handle.getListState("sums", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        n, total = self.totals.get() or (0, 0)
        added = 0
        for row in rows:
            n += 1
            added += row.v
        self.totals.update((n, total + added))
        self.sums.appendValue((added,))
        yield Row(k=key[0], n=n, total=total + added, numbers=sum(part for (part,) in self.sums.get()))


def timed(step: str, start: float) -> None:
    print(f"{step:<40} {time.perf_counter() - start:8.1f} s", flush=True)


def land(folder: Path, number: int, keys: int, rows_of_key: int) -> None:
    """Write the rows of a micro-batch."""
    folder.mkdir(exist_ok=True)
    of = np.tile(np.arange(keys), rows_of_key)
    rows = {"k": pa.array(of).cast(pa.string()), "v": pa.array(of % 97 + number)}
    pq.write_table(pa.table(rows), folder / f".{number}.parquet")
    (folder / f".{number}.parquet").rename(folder / f"{number}.parquet")


def run(
    session: SparkSession, rows: Path, location: Path, out: Path, on: AbstractContextManager[None]
) -> None:
    """Run the query over the rows that are there."""
    grouped = session.readStream.schema("k string, v long").parquet(str(rows)).groupBy("k")
    with on:
        made = grouped.transformWithState(Totals(), OUT, "update", "none")

    def write(batch: Any, epoch: int) -> None:
        batch.write.mode("overwrite").parquet(str(out / f"epoch={epoch}"))

    query = (
        made.writeStream.foreachBatch(write)
        .outputMode("update")
        .option("checkpointLocation", str(location))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def last_answer(session: SparkSession, out: Path) -> Any:
    """Return the last row of each key."""
    rows = session.read.parquet(str(out))
    newest = rows.groupBy("k").agg(f.max_by(f.struct("n", "total", "numbers"), "epoch").alias("last"))
    return newest.select("k", "last.*")


def differing(found: Any, expected: Any, name: str) -> int:
    """Print and return how many rows two answers do not have in common."""
    count = found.exceptAll(expected).count() + expected.exceptAll(found).count()
    print(f"{found.count()} keys; {count} rows differ from {name}", flush=True)
    return int(count)


def main() -> int:
    """Run all steps; returns 1 where an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--whole", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="keyedstate-from-spark-") as folder:
        work = Path(folder)
        session = open_session(work)
        for name, value in ROCKSDB.items():
            session.conf.set(name, value)
        land(work / "rows", 0, arguments.keys, 2)
        start = time.perf_counter()
        run(session, work / "rows", work / "spark", work / "out", drop_in.disable())
        timed("two rows of each key on Spark", start)
        start = time.perf_counter()
        made = from_spark(str(work / "spark"), work / "savepoint", spark=session)
        timed(f"converted, {made.data_bytes() / 1e6:.0f} MB", start)
        start = time.perf_counter()
        made.fork(work / "ours", work / "ours/keyedstate")
        timed("forked", start)
        land(work / "rows", 1, arguments.keys, 1)
        start = time.perf_counter()
        run(session, work / "rows", work / "ours", work / "out", drop_in.enable())
        timed("one row of each key on keyedstate", start)
        rows = session.read.parquet(str(work / "rows"))
        expected = rows.groupBy("k").agg(
            f.count("*").alias("n"), f.sum("v").alias("total"), f.sum("v").alias("numbers")
        )
        found = last_answer(session, work / "out")
        different = differing(found, expected, "GROUP BY")
        if arguments.whole:
            start = time.perf_counter()
            (work / "again").mkdir()
            for number in (0, 1):
                (work / "rows" / f"{number}.parquet").rename(work / "again" / f"{number}.parquet")
                run(session, work / "again", work / "whole", work / "whole-out", drop_in.disable())
            timed("all rows on Spark", start)
            whole = last_answer(session, work / "whole-out")
            different += differing(found, whole, "the query on Spark alone")
        session.stop()
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
