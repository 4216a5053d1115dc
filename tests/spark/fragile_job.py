"""A Spark job of its own, to be killed: counts rows per key, fails once, and waits once until it is killed.

``python fragile_job.py FOLDER BACKEND``; FOLDER holds the input, and gets output, state and checkpoints.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from keyedstate import types
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.spark import keyed
from keyedstate.state import ValueState

FAILS_ONCE = -1
WAITS_TO_BE_KILLED = -2


class Fragile(KeyedProcessFunction):
    """Counts, and treats two values in a special way, always behind the rows of the same partition."""

    n = ValueState("n", types.INT64, default=0)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        context = TaskContext.get()
        assert context is not None
        if row.v == FAILS_ONCE and context.attemptNumber() == 0:
            (self.folder / "failed").touch()
            raise RuntimeError("the first attempt")
        if row.v == WAITS_TO_BE_KILLED and not (self.folder / "waiting").exists():
            (self.folder / "waiting").touch()
            threading.Event().wait(120)
        self.n.update(self.n.value() + 1)
        yield ctx.key, self.n.value()


def main(folder: Path, backend: str) -> None:
    spark = (
        SparkSession.builder.master("local[2, 3]")  # a task may fail twice
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.keyedstate.backend", backend)
        .config("spark.keyedstate.checkpoint.dir", str(folder / "state"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1)
    counts = keyed(rows.json(str(folder / "input")), "k", uid="counts")
    (
        counts.process(Fragile(folder), "k string, n long")
        .writeStream.format("parquet")
        .option("path", str(folder / "output"))
        .option("checkpointLocation", str(folder / "spark"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
