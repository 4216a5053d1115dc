"""Keyed state over the epochs of streaming queries, their restarts and their repetitions."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from keyedstate import keyed, types
from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import MapState, ValueState

SCHEMA = "k string, n long, total long, new boolean"


class RunningTotals(KeyedProcessFunction):
    """Counts the rows of a key, adds up their values, and says whether a value is new to the key."""

    count = ValueState("count", types.INT64, default=0)
    total = ValueState("total", types.INT64, default=0)
    seen = MapState("seen", types.INT64, types.BOOLEAN)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.count.update(self.count.value() + 1)
        self.total.update(self.total.value() + row.v)
        new = self.seen.get(row.v) is None
        self.seen.put(row.v, True)
        yield ctx.key, self.count.value(), self.total.value(), new


def totals(stream: Any, source: DataFrame, uid: str = "totals", **options: object) -> DataFrame:
    config = {"checkpoint.dir": str(stream.state), "parallelism": 2}
    config |= {name.replace("_", "-"): value for name, value in options.items()}
    return keyed(source, "k", uid=uid, config=config).process(RunningTotals(), SCHEMA)


def epoch_rows(epoch: int, rows: int = 60) -> list[dict[str, Any]]:
    """Rows of a dozen keys, the null key among them, that differ from epoch to epoch."""
    keys = [None, *(f"key {number}" for number in range(11))]
    return [{"k": keys[(7 * row + epoch) % (9 + epoch)], "v": (row * 13 + epoch) % 5} for row in range(rows)]


def assert_equal_to_batch(stream: Any) -> None:
    """Compare what was put out with what Spark computes over the same rows at once.

    The running count of a key must be 1, 2, 3 ... without gap or repetition, so that no row was lost or
    counted twice, and the last results must be those of the batch query.
    """
    answer = stream.batch().groupBy("k").agg(f.count("*"), f.sum("v"), f.countDistinct("v"))
    expected = {row[0]: tuple(row[1:]) for row in answer.collect()}
    rows = stream.all_rows()
    found = {}
    for key in {row[0] for row in rows}:
        of_key = sorted((row for row in rows if row[0] == key), key=lambda row: row[1])
        assert [row[1] for row in of_key] == list(range(1, len(of_key) + 1)), f"running count of {key!r}"
        found[key] = (of_key[-1][1], of_key[-1][2], sum(row[3] for row in of_key))
    assert found == expected


def checkpoint(stream: Any, epoch: int, uid: str = "totals") -> CheckpointMetadata:
    metadata = OperatorFolder(CheckpointStorage.open(str(stream.state)), uid).read_metadata(epoch)
    assert metadata is not None
    return metadata


def test_running_totals_over_several_epochs_equal_a_batch_query(stream: Any, backend_name: str) -> None:
    for epoch in range(3):
        stream.add(epoch_rows(epoch))
    stream.run(totals(stream, stream.frame(), backend=backend_name))
    assert sorted(stream.rows) == [0, 1, 2]
    assert_equal_to_batch(stream)
    parts = checkpoint(stream, 2).parts
    assert {part.backend for part in parts} == {backend_name}
    assert sum(part.rows_in for part in parts) == sum(part.rows_out for part in parts) == 60
    # Three states, of which each key has one entry.
    keys = {row["k"] for epoch in range(3) for row in epoch_rows(epoch)}
    assert sum(sum(part.entries.values()) for part in parts) == 3 * len(keys)
    assert not (stream.state / "totals" / "chk-0").exists(), "two checkpoints are kept by default"


def test_restarts_use_the_configuration_of_spark_each_time(
    stream: Any, spark: SparkSession, backend_name: str
) -> None:
    """KG-07: another parallelism redistributes key groups; any backend reads any other's state."""
    other = "heap-cow" if backend_name == "nested-map" else "nested-map"
    runs = [(backend_name, 2), (other, 3), (backend_name, 1)]
    for epoch, (backend, parallelism) in enumerate(runs):
        stream.add(epoch_rows(epoch))
        session = spark.newSession()
        session.conf.set("spark.keyedstate.checkpoint.dir", str(stream.state))
        session.conf.set("spark.keyedstate.backend", backend)
        session.conf.set("spark.sql.shuffle.partitions", parallelism)
        # The code is the same in every run.
        stream.run(keyed(stream.frame(session), "k", uid="totals").process(RunningTotals(), SCHEMA))
        metadata = checkpoint(stream, epoch)
        assert metadata.parallelism == parallelism
        assert {part.backend for part in metadata.parts} == {backend}
    assert_equal_to_batch(stream)


def test_the_stored_max_parallelism_wins_over_the_default_of_a_larger_parallelism(
    stream: Any, one_backend: str
) -> None:
    """By default three partitions have 128 key groups, here they have 4 because that is what is stored."""
    stream.add(epoch_rows(0))
    stream.run(totals(stream, stream.frame(), backend=one_backend, max_parallelism=4))
    stream.add(epoch_rows(1))
    stream.run(totals(stream, stream.frame(), backend=one_backend, parallelism=3))
    assert (checkpoint(stream, 1).max_parallelism, checkpoint(stream, 1).parallelism) == (4, 3)
    assert_equal_to_batch(stream)


def test_an_epoch_that_spark_did_not_commit_runs_again_and_counts_once(stream: Any, one_backend: str) -> None:
    for epoch in range(2):
        stream.add(epoch_rows(epoch))
        stream.run(totals(stream, stream.frame(), backend=one_backend))
    first_time = stream.rows[1]
    # What a driver leaves that dies after the checkpoint and before Spark's commit.
    for name in ("1", ".1.crc"):
        (stream.spark_checkpoint / "commits" / name).unlink()
    stream.add(epoch_rows(2))
    stream.run(totals(stream, stream.frame(), backend=one_backend))
    assert sorted(stream.rows) == [0, 1, 2]
    assert sorted(stream.rows[1], key=repr) == sorted(first_time, key=repr)
    assert_equal_to_batch(stream)


def test_a_micro_batch_that_is_evaluated_twice_counts_once(stream: Any, one_backend: str) -> None:
    for epoch in range(3):
        stream.add(epoch_rows(epoch))

    def twice(batch: DataFrame, epoch: int) -> None:
        before = sorted((tuple(row) for row in batch.collect()), key=repr)
        stream.rows[epoch] = [tuple(row) for row in batch.collect()]
        assert sorted(stream.rows[epoch], key=repr) == before

    stream.run(totals(stream, stream.frame(), backend=one_backend), twice)
    assert_equal_to_batch(stream)


def test_an_operator_inside_foreach_batch_keeps_its_state_from_epoch_to_epoch(
    stream: Any, one_backend: str
) -> None:
    for epoch in range(3):
        stream.add(epoch_rows(epoch))

    def process(batch: DataFrame, epoch: int) -> None:
        stream.rows[epoch] = [tuple(row) for row in totals(stream, batch, backend=one_backend).collect()]

    stream.run(stream.frame(), process)
    assert_equal_to_batch(stream)


def test_several_operators_of_one_query_each_keep_their_own_state(stream: Any, one_backend: str) -> None:
    for epoch in range(2):
        stream.add(epoch_rows(epoch))
    source = stream.frame()
    left = totals(stream, source, "left", backend=one_backend)
    right = totals(stream, source.where("v > 1"), "right", backend=one_backend)
    # In a union the second operator's tasks are counted behind those of the first.
    stream.run(left.select(f.lit("left"), "*").union(right.select(f.lit("right"), "*")))
    for side, rows in (("left", "true"), ("right", "v > 1")):
        last: dict[Any, int] = {}
        for name, key, count, *_ in stream.all_rows():
            if name == side:
                last[key] = max(count, last.get(key, 0))
        expected = stream.batch().where(rows).groupBy("k").count().collect()
        assert last == {row["k"]: row["count"] for row in expected}, side


def test_a_keyed_result_can_be_keyed_again(stream: Any, one_backend: str) -> None:
    for epoch in range(2):
        stream.add(epoch_rows(epoch))
    first = totals(stream, stream.frame(), "first", backend=one_backend)
    again = first.select("k", f.col("n").alias("v"))
    stream.run(totals(stream, again, "second", backend=one_backend))
    rows = len(epoch_rows(0)) + len(epoch_rows(1))
    assert len(stream.all_rows()) == rows
    # The second operator adds up running counts: 1 + 2 + ... + n for a key with n rows.
    last = {}
    for key, count, total, _ in sorted(stream.all_rows(), key=lambda row: row[1]):
        last[key] = (count, total)
    assert all(total == count * (count + 1) // 2 for count, total in last.values())


def test_epochs_without_rows_keep_the_state_and_publish_checkpoints(stream: Any, one_backend: str) -> None:
    stream.add(epoch_rows(0))
    stream.add([])
    stream.add(epoch_rows(2))
    options = {"backend": one_backend, "checkpoint.retained": 3}
    stream.run(totals(stream, stream.frame(), **options))
    assert [len(stream.rows[epoch]) for epoch in range(3)] == [60, 0, 60]
    assert len(list((stream.state / "totals").glob("chk-*/_metadata"))) == 3, "as many as configured are kept"
    assert sum(part.rows_in for part in checkpoint(stream, 1).parts) == 0
    assert_equal_to_batch(stream)


def test_the_next_epoch_publishes_a_checkpoint_that_the_driver_did_not(
    stream: Any, one_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    for epoch in range(3):
        stream.add(epoch_rows(epoch))
    in_the_way = stream.state / "totals" / "chk-1"

    def hinder(batch: DataFrame, epoch: int) -> None:
        stream.rows[epoch] = [tuple(row) for row in batch.collect()]
        if epoch == 0:
            in_the_way.write_text("a file where a folder is to be made")
        elif epoch == 1:
            assert in_the_way.is_file()
            in_the_way.unlink()

    stream.run(totals(stream, stream.frame(), backend=one_backend), hinder)
    assert_equal_to_batch(stream)
    assert checkpoint(stream, 1).epoch == 1
    # Clean-up may say that the file is in its way, too.
    (said,) = [record for record in caplog.records if record.name == "keyedstate.spark.task.acknowledgements"]
    assert "was not published as a checkpoint; the next epoch will publish it" in said.getMessage()


PLUGIN = """
import dataclasses
import os
from keyedstate.hooks import hookimpl
from keyedstate_nested_map import plugin as real

completed, subsumed = [], []

@hookimpl
def keyedstate_describe_backend():
    return dataclasses.replace(real.keyedstate_describe_backend(), name="telling", options=())

@hookimpl
def keyedstate_create_state_table(meta, context):
    return real.keyedstate_create_state_table(meta=meta, context=context)

@hookimpl
def keyedstate_create_snapshot_strategy(context):
    return real.keyedstate_create_snapshot_strategy(context=context)

@hookimpl
def keyedstate_create_restore_operation(handles, context):
    return real.keyedstate_create_restore_operation(handles=handles, context=context)

@hookimpl
def keyedstate_checkpoint_completed(uid, epoch, location, data_files):
    assert all(os.path.isfile(os.path.join(location, path)) for path in data_files) and data_files
    completed.append((uid, epoch))
    raise RuntimeError("a hook that fails")

@hookimpl
def keyedstate_checkpoint_subsumed(uid, epoch):
    subsumed.append((uid, epoch))
"""


def test_a_backend_of_a_module_is_used_and_notified_of_every_checkpoint(
    stream: Any, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver's module registers by configuration, in tasks too; its failing hook stops nothing."""
    module = tmp_path / "telling_backend.py"
    module.write_text(PLUGIN)
    spark.sparkContext.addPyFile(str(module))
    for epoch in range(3):
        stream.add(epoch_rows(epoch))
    options = {"backend": "telling", "plugins.modules": "telling_backend"}
    stream.run(totals(stream, stream.frame(), **options))
    assert_equal_to_batch(stream)
    assert {part.backend for part in checkpoint(stream, 1).parts} == {"telling"}
    recorded = importlib.import_module("telling_backend")
    assert recorded.completed == [("totals", 0), ("totals", 1), ("totals", 2)]
    assert recorded.subsumed == [("totals", 0)]
    assert "the hook keyedstate_checkpoint_completed of telling_backend (module) raised" in caplog.text


LISTENER = """
from keyedstate.hooks import hookimpl

notified = []

@hookimpl
def keyedstate_checkpoint_completed(uid, epoch):
    notified.append(("completed", epoch))

@hookimpl
def keyedstate_checkpoint_subsumed(uid, epoch):
    notified.append(("subsumed", epoch))
"""


def test_a_plugin_without_a_backend_is_notified_of_every_checkpoint(
    stream: Any, one_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "listening_plugin.py").write_text(LISTENER)
    monkeypatch.syspath_prepend(str(tmp_path))
    stream.spark.sparkContext.addPyFile(str(tmp_path / "listening_plugin.py"))
    for epoch in range(3):
        stream.add(epoch_rows(epoch))
    options = {"backend": one_backend, "plugins.modules": "listening_plugin"}
    stream.run(totals(stream, stream.frame(), **options))
    assert_equal_to_batch(stream)
    notified = importlib.import_module("listening_plugin").notified
    assert [epoch for event, epoch in notified if event == "completed"] == [0, 1, 2]
    assert [epoch for event, epoch in notified if event == "subsumed"] == [0]


def test_what_was_built_for_an_epoch_cannot_be_evaluated_outside(stream: Any, one_backend: str) -> None:
    stream.add(epoch_rows(0))
    built = []

    def build(batch: DataFrame, epoch: int) -> None:
        built.append(
            totals(stream, batch.sparkSession.range(3).selectExpr("'k' k", "id v"), backend=one_backend)
        )

    stream.run(stream.frame(), build)
    with pytest.raises(PythonException, match="TaskContextError: the keyed operator cannot run here"):
        built[0].collect()
