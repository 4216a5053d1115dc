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

from own_job import rows_of, run_to_the_end, session

from keyedstate import keyed, types
from keyedstate.runtime import Context, KeyedProcessFunction
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
            threading.Event().wait()
        self.n.update(self.n.value() + 1)
        yield ctx.key, self.n.value()


def main(folder: Path) -> None:
    """Run the query until the input is used up."""
    settings = {
        "spark.task.maxFailures": "8",
        "spark.sql.shuffle.partitions": "4",
        "spark.worker.dir": str(folder / "work"),
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "spark.keyedstate.checkpoint.retained": "100",
        "spark.keyedstate.host": "resident",
    }
    spark = session(folder, "local-cluster[2,1,1024]", settings)
    rows = rows_of(spark, folder / "input", "k string, v long")
    run_to_the_end(keyed(rows, "k", uid="counts").process(Waiting(folder), "k string, n long"), folder)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
