"""One processor for transformWithState: on Spark's own implementation with RocksDB, and on keyedstate.

    python tests/bench/bench_drop_in.py [--rows N] [--keys N] [--rounds N] [--forms FORM ...]
        [--markdown FILE]

It counts and sums the rows of each key, as rows and as pandas frames.  Both queries of a form run at the same
time and take turns: a round gives each of them the same micro-batch of many rows and then one of 100 rows.
What counts is Spark's time of that micro-batch, whose rows are computed and dropped.  The first two rounds
and the last one are not counted: there the rows of both are collected and compared.

No engine can be faster than the processor itself: "the function alone" is its processor time over the rows or
frames of a large micro-batch that are already there, on one core, with an attribute for its state.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from streaming.lanes import ROCKSDB, open_session

from keyedstate.spark import drop_in

OUT = "k string, n long, total long"
FEW = 100
#: Rounds that are not counted.
WARM = 2


class Totals(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.totals = handle.getValueState("totals", "n long, total long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        n, total = self.totals.get() or (0, 0)
        for row in rows:
            n += 1
            total += row.v
        self.totals.update((n, total))
        yield Row(k=key[0], n=n, total=total)


class TotalsOfFrames(Totals):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        n, total = self.totals.get() or (0, 0)
        for frame in rows:
            n += len(frame)
            total += int(frame["v"].sum())
        self.totals.update((n, total))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})


class Lane:
    """A running query with an input folder of its own."""

    def __init__(self, session: Any, folder: Path, frames: bool, ours: bool) -> None:
        self._input = folder / "input"
        self._input.mkdir(parents=True)
        self.collects = True
        self.rows: dict[int, list[Any]] = {}
        grouped = session.readStream.schema("k string, v long").parquet(str(self._input)).groupBy("k")
        with drop_in.enable() if ours else drop_in.disable():
            if frames:
                made = grouped.transformWithStateInPandas(TotalsOfFrames(), OUT, "update", "none")
            else:
                made = grouped.transformWithState(Totals(), OUT, "update", "none")
        self._query = (
            made.writeStream.foreachBatch(self._collect)
            .outputMode("update")
            .option("checkpointLocation", str(folder / "query"))
            .start()
        )

    def _collect(self, batch: Any, epoch: int) -> None:
        if self.collects:
            self.rows[epoch] = sorted(map(tuple, batch.collect()))
        else:
            batch.write.format("noop").mode("overwrite").save()

    def run(self, table: pa.Table, number: int) -> tuple[float, float]:
        """Run a micro-batch; return its milliseconds, and those in which its rows are computed."""
        hidden = self._input / f".{number}.parquet"
        pq.write_table(table, hidden)
        os.rename(hidden, hidden.with_name(f"{number:06}.parquet"))
        self._query.processAllAvailable()
        done = [progress for progress in self._query.recentProgress if progress["numInputRows"]]
        spent = done[-1]["durationMs"]
        return float(spent["triggerExecution"]), float(spent["addBatch"])

    def stop(self) -> None:
        self._query.stop()


def batch(number: int, rows: int, keys: int) -> pa.Table:
    generator = np.random.default_rng([number, rows, keys])
    names = np.char.add("key ", generator.integers(0, keys, rows).astype(str))
    return pa.table({"k": pa.array(names), "v": pa.array(generator.integers(0, 100, rows))})


class Attribute:
    """A value state that is an attribute."""

    def __init__(self) -> None:
        self._value: Any = None

    def getValueState(self, *_: object) -> Attribute:
        return self

    def get(self) -> Any:
        return self._value

    def update(self, value: Any) -> None:
        self._value = value


def alone(table: pa.Table, frames: bool) -> float:
    """Return the milliseconds of the processor that the function needs for a micro-batch."""
    function = TotalsOfFrames() if frames else Totals()
    function.init(Attribute())
    parts = table.to_pandas().groupby("k")
    items = [
        ((key,), [part] if frames else [Row(k=key, v=v) for v in part["v"].tolist()]) for key, part in parts
    ]
    start = time.process_time()
    for key, given in items:
        for _ in function.handleInputRows(key, iter(given), None):
            pass
    return (time.process_time() - start) * 1000


def measured(
    session: Any, folder: Path, frames: bool, arguments: argparse.Namespace
) -> list[list[tuple[float, float]]]:
    """Return the times of Spark and of keyedstate for many rows, and of both for few."""
    lanes = [Lane(session, folder / name, frames, name == "keyedstate") for name in ("spark", "keyedstate")]
    times: list[list[tuple[float, float]]] = [[], [], [], []]
    for number in range(WARM + arguments.rounds + 1):
        counts = WARM <= number < WARM + arguments.rounds
        for size, rows in enumerate((arguments.rows, FEW)):
            table = batch(2 * number + size, rows, arguments.keys)
            for which, lane in enumerate(lanes):
                lane.collects = not counts
                spent = lane.run(table, 2 * number + size)
                if counts:
                    times[2 * size + which].append(spent)
    for lane in lanes:
        lane.stop()
    if lanes[0].rows != lanes[1].rows or len(lanes[0].rows) != 2 * (WARM + 1):
        raise SystemExit("the queries have put out different rows")
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000, help="of a large micro-batch")
    parser.add_argument("--keys", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--forms", nargs="+", choices=("rows", "frames"), default=["rows", "frames"])
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    lines = [
        f"{arguments.keys:,} keys, medians of {arguments.rounds} rounds. Here: {machine}.",
        "",
        "| | rows in a micro-batch | Spark, RocksDB | keyedstate | times as fast | rows alone | function |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as made:
        session = open_session(Path(made))
        for name, value in ROCKSDB.items():
            session.conf.set(name, value)
        try:
            for form in arguments.forms:
                large = batch(0, arguments.rows, arguments.keys)
                least = statistics.median(alone(large, form == "frames") for _ in range(arguments.rounds))
                times = measured(session, Path(made) / form, form == "frames", arguments)
                for place, rows in ((0, arguments.rows), (2, FEW)):
                    spark, ours = (
                        [statistics.median(each) for each in zip(*times[place + which], strict=True)]
                        for which in range(2)
                    )
                    floor = f"{least:,.0f} ms" if rows == arguments.rows else ""
                    lines.append(
                        f"| {form} | {rows:,} | {spark[0]:,.0f} ms | {ours[0]:,.0f} ms "
                        f"| {spark[0] / ours[0]:.1f} | {spark[1] / ours[1]:.1f} | {floor} |"
                    )
        finally:
            session.stop()
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
