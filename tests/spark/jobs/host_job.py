"""A Spark job of its own whose executor is to end: ``python host_job.py FOLDER``.

It runs a query with hosts twice, each in a session of its own, and writes the hosts' numbers into
``hosts-1`` and ``hosts-2``; between the two it stops the session and waits for the file ``go-on``, and after
the second one it waits to be killed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from own_job import session

from keyedstate import keyed, types
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import ValueState


class WhereAmI(KeyedProcessFunction):
    n = ValueState("n", types.INT64, default=0)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        print(f"a host says: {row.k}")  # noqa: T201 - looked for in the log
        yield os.getpid(), self.n.value()


def run(folder: Path, number: int) -> None:
    settings = {"spark.sql.shuffle.partitions": "2", "spark.keyedstate.host": "resident"}
    spark = session(folder, "local[2]", settings)
    (folder / "jvm").write_text(str(spark.sparkContext._gateway.proc.pid))
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).load()
    keys = rows.selectExpr("concat('key ', value % 10) as k")
    hosts: set[int] = set()
    query = (
        keyed(keys, "k", uid=f"where-{number}")
        .process(WhereAmI(), "pid long, n long")
        .writeStream.foreachBatch(lambda batch, _: hosts.update(row.pid for row in batch.collect()))
        .option("checkpointLocation", str(folder / f"spark-{number}"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    while len(query.recentProgress) < 3 and query.isActive:
        time.sleep(0.05)
    if number == 1:
        query.stop()
    (folder / ".hosts").write_text(" ".join(map(str, sorted(hosts))))
    (folder / ".hosts").rename(folder / f"hosts-{number}")
    if number == 1:
        spark.stop()
    else:
        query.awaitTermination()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    run(place, 1)
    while not (place / "go-on").exists():
        time.sleep(0.05)
    run(place, 2)
