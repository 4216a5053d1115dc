"""A Spark job of its own, to be killed: counts rows per key, fails once, and waits once until it is killed.

``python fragile_job.py FOLDER BACKEND``; FOLDER holds the input, and gets output, state and checkpoints.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from own_job import rows_of, run_to_the_end, session
from pyspark import TaskContext

from keyedstate import keyed, types
from keyedstate.runtime import Context, KeyedProcessFunction
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
            threading.Event().wait()
        self.n.update(self.n.value() + 1)
        yield ctx.key, self.n.value()


def main(folder: Path, backend: str) -> None:
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.keyedstate.backend": backend,
    }
    spark = session(folder, "local[2, 3]", settings)  # a task may fail twice
    rows = rows_of(spark, folder / "input", "k string, v long")
    run_to_the_end(keyed(rows, "k", uid="counts").process(Fragile(folder), "k string, n long"), folder)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
