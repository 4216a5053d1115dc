"""A streaming query whose checkpoints are on a real S3-compatible server."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from keyedstate import keyed, types
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import PreflightError
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import ValueState


class Totals(KeyedProcessFunction):
    count = ValueState("count", types.INT64, default=0)
    total = ValueState("total", types.INT64, default=0)

    def process(self, row: Any, ctx: Context) -> Any:
        self.count.update(self.count.value() + 1)
        self.total.update(self.total.value() + row.v)
        yield ctx.key, self.count.value(), self.total.value()


def totals(source: DataFrame, uri: str, backend: str, parallelism: int) -> DataFrame:
    config = {"backend": backend, "checkpoint.dir": uri, "parallelism": parallelism}
    schema = "k string, n long, total long"
    return keyed(source, "k", uid="totals", config=config).process(Totals(), schema)


def test_a_query_on_an_object_store_continues_with_another_parallelism(
    stream: Any, object_store: Any, one_backend: str
) -> None:
    """Each row counts once, over deltas, a restart, a rescaling and the pruning of old checkpoints."""
    folder = uuid.uuid4().hex
    uri = object_store.uri(folder)
    for epoch in range(6):
        stream.add({"k": f"key {(row * epoch) % 7}", "v": row} for row in range(40))
        if epoch == 3:
            stream.run(totals(stream.frame(), uri, one_backend, 2))
    stream.run(totals(stream.frame(), uri, one_backend, 3))
    last = {}
    for key, count, total in sorted(stream.all_rows(), key=lambda row: row[1]):
        last[key] = (count, total)
    answer = stream.batch().groupBy("k").agg(f.count("*"), f.sum("v")).collect()
    assert last == {row[0]: (row[1], row[2]) for row in answer}
    operator = OperatorFolder(CheckpointStorage.open(uri), "totals")
    assert operator.checkpoints() == [4, 5]
    metadata = operator.read_metadata(5)
    assert metadata is not None and metadata.parallelism == 3
    used = {path for epoch in (4, 5) for part in read(operator, epoch).parts for path in part.data_files}
    assert set(operator.data_files()) == used


def test_a_tasks_epoch_makes_a_bounded_number_of_requests(
    stream: Any, object_store: Any, one_backend: str
) -> None:
    """What a task adds to an epoch does not grow with the epochs before."""
    uri = object_store.uri(uuid.uuid4().hex)
    counts = []
    for _ in range(7):
        stream.add({"k": f"key {row}", "v": row} for row in range(10))
        out = totals(stream.frame(), uri, one_backend, 2)
        object_store.requests()
        stream.run(out)
        # The driver looks for requests to stop the query every two seconds, however long an epoch takes.
        requests = [line for line in object_store.requests() if not line.endswith("/_stop")]
        counts.append(Counter(line.split()[0] for line in requests))
    written = [count["PUT"] for count in counts]
    # Marker, data and manifest of two tasks, owner, metadata, and the folders that clean-up leaves.
    assert max(written) <= 16, counts
    totals_of_epochs = [sum(count.values()) for count in counts]
    # Clean-up is in the background, so what it does for one epoch may count with the next one.
    assert max(totals_of_epochs[5:]) <= max(totals_of_epochs[2:5]) + 8, counts
    assert max(totals_of_epochs) <= 140, counts


def read(operator: OperatorFolder, epoch: int) -> Any:
    metadata = operator.read_metadata(epoch)
    assert metadata is not None
    return metadata


def test_a_bucket_that_is_not_there_is_refused_before_any_row(
    stream: Any, object_store: Any, one_backend: str
) -> None:
    with pytest.raises(PreflightError, match=r"NO_SUCH_BUCKET") as caught:
        totals(stream.frame(), object_store.uri("a", bucket="elsewhere"), one_backend, 2)
    assert "secret" not in str(caught.value)
