"""A Spark job of its own, to be killed: numbers the rows of keys by rules that change in every epoch.

``python fragile_rules_job.py FOLDER BACKEND PARALLELISM``; FOLDER holds input and rules, and gets output,
state and checkpoints.  A task fails once, and another one waits once until the job is killed.
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
from keyedstate.runtime import BroadcastContext, Context, KeyedBroadcastProcessFunction
from keyedstate.state import BroadcastState, OperatorListState, ValueState

FAILS_ONCE = -1
WAITS_TO_BE_KILLED = -2


class FragileRules(KeyedBroadcastProcessFunction):
    """Treats two values in a special way, always behind the rules and other rows of the same partition."""

    n = ValueState("n", types.INT64, default=0)
    rules = BroadcastState("rules", types.STRING, types.INT64)
    given = OperatorListState("given", types.STRING)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process_broadcast(self, row: Any, ctx: BroadcastContext) -> None:
        self.rules.put("epoch", row.epoch)
        self.rules.put("times", (self.rules.get("times") or 0) + 1)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        context = TaskContext.get()
        assert context is not None
        self.n.update(self.n.value() + 1)
        self.given.add(f"{ctx.key} {self.n.value()}")
        if row.v == FAILS_ONCE and context.attemptNumber() == 0:
            (self.folder / "failed").touch()
            raise RuntimeError("the first attempt")
        if row.v == WAITS_TO_BE_KILLED and not (self.folder / "waiting").exists():
            (self.folder / "waiting").touch()
            threading.Event().wait()
        yield ctx.key, self.n.value(), ctx.epoch, self.rules.get("epoch"), self.rules.get("times")


def main(folder: Path, backend: str, parallelism: str) -> None:
    settings = {
        "spark.keyedstate.backend": backend,
        "spark.keyedstate.parallelism": parallelism,
    }
    spark = session(folder, "local[2, 3]", settings)  # a task may fail twice
    rows = rows_of(spark, folder / "input", "k string, v long")
    rules = rows_of(spark, folder / "rules", "epoch long")
    numbered = (
        keyed(rows, "k", uid="counts")
        .broadcast(rules)
        .process(FragileRules(folder), "k string, n long, epoch long, rule long, times long")
    )
    run_to_the_end(numbered, folder)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
