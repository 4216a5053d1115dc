"""A Spark job of its own on a small cluster, where an executor is to be killed: counts rows per key.

``python cluster_job.py FOLDER``; FOLDER holds the input, and gets output, state and checkpoints.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from keyedstate import types
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.spark import keyed
from keyedstate.state import ValueState

WAITS = -1


class Waiting(KeyedProcessFunction):
    """Counts, and waits at one value until the test has done its part, for which it names its process."""

    n = ValueState("n", types.INT64, default=0)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        if row.v == WAITS and not (self.folder / "go").exists():
            (self.folder / "half").write_text(str(os.getpid()))
            (self.folder / "half").rename(self.folder / "waiting")
            threading.Event().wait(120)
        self.n.update(self.n.value() + 1)
        yield ctx.key, self.n.value()


def main(folder: Path) -> None:
    """Run the query until the input is used up."""
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.task.maxFailures", "8")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.worker.dir", str(folder / "work"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        .config("spark.keyedstate.checkpoint.dir", str(folder / "state"))
        .config("spark.keyedstate.checkpoint.retained", "100")
        .config("spark.keyedstate.host", "resident")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1)
    counts = keyed(rows.json(str(folder / "input")), "k", uid="counts")
    (
        counts.process(Waiting(folder), "k string, n long")
        .writeStream.format("parquet")
        .option("path", str(folder / "output"))
        .option("checkpointLocation", str(folder / "spark"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
