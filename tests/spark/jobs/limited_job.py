"""A Spark job of its own on a machine that lacks something: ``python limited_job.py FOLDER BACKEND``.

It counts the rows of two epochs in hosts, and writes into ``result.json`` the counts, and where the state of
each partition of the second epoch came from.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from own_job import rows_of, run_to_the_end, session

from keyedstate import keyed, types
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import ValueState


class Count(KeyedProcessFunction):
    n = ValueState("n", types.INT64, default=0)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        yield ctx.key, self.n.value()


def run(folder: Path, backend: str) -> None:
    """Run the job."""
    settings = {"spark.sql.shuffle.partitions": "2", "spark.keyedstate.backend": backend}
    spark = session(folder, "local[2]", settings)
    rows = folder / "input"
    rows.mkdir()
    for epoch in range(2):
        (rows / f"{epoch}.json").write_text("".join(f'{{"k": "key {n}"}}\n' for n in range(8)))
    out = keyed(rows_of(spark, rows, "k string"), "k", uid="count").process(Count(), "k string, n long")
    run_to_the_end(out, folder)
    counts = spark.read.parquet(str(folder / "output")).groupBy("k").max("n").collect()
    metadata = OperatorFolder(CheckpointStorage.open(str(folder / "state")), "count").read_metadata(1)
    assert metadata is not None
    found = {
        "counts": sorted([row[0], row[1]] for row in counts),
        "origins": sorted({part.state_origin.value for part in metadata.parts}),
    }
    (folder / "result.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
