"""A Spark job of its own whose function fails: ``python failing_job.py FOLDER streaming|foreach-batch``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from own_job import rows_of, session
from pyspark.sql import DataFrame

from keyedstate import keyed
from keyedstate.runtime import Context, KeyedProcessFunction


class Flights(KeyedProcessFunction):
    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        raise LookupError(f"no flight {row.v}")


def main(folder: Path, plan: str) -> None:
    spark = session(folder, "local[2]", {"spark.sql.shuffle.partitions": "2"})
    rows = rows_of(spark, folder / "input", "k string, v long")

    def keep(batch: DataFrame, epoch: int) -> None:
        out = batch
        if plan == "foreach-batch":
            out = keyed(batch, "k", uid="flights").process(Flights(), "k string")
        out.collect()

    if plan == "streaming":
        rows = keyed(rows, "k", uid="flights").process(Flights(), "k string")
    writer = rows.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder / "spark"))
    try:
        writer.trigger(availableNow=True).start().awaitTermination()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
