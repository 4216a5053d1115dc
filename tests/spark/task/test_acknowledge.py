"""The accumulator between tasks and driver: small on its way, and deaf to errors of one operator."""

from __future__ import annotations

import pickle
from pathlib import Path

from pyspark.sql import SparkSession

from keyedstate.checkpoint.format.manifest import TaskIdentity
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.spark.task.acknowledgements import acknowledge, acknowledgements_of


def word(partition: int) -> Acknowledgement:
    identity = TaskIdentity("u", "query", "run", 0, partition, 2, 128, partition, f"op-{partition}")
    return Acknowledgement(identity, f"attempts/epoch-0/{partition}")


def test_what_travels_to_the_tasks_does_not_carry_the_driver_along(
    spark: SparkSession, tmp_path: Path
) -> None:
    mine = acknowledgements_of(spark.sparkContext)
    assert acknowledgements_of(spark.sparkContext) is mine, "one for a context"
    folder = OperatorFolder(CheckpointStorage.open(tmp_path), "u")
    assert mine.coordinator(folder) is mine.coordinator(folder), "one for a folder"
    param = mine.accumulator.accum_param
    packed = pickle.dumps(param)
    assert len(packed) < 200
    in_task = pickle.loads(packed)
    assert in_task.addInPlace({"a": 1}, {"b": 2}) == {"a": 1, "b": 2}
    assert in_task.zero({"a": 1}) == {}


def test_the_driver_keeps_nothing_and_an_error_of_one_operator_does_not_reach_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An error that got out would cut PySpark's connection for the accumulators of all operators."""
    mine = acknowledgements_of(spark.sparkContext)
    accumulator = mine.accumulator
    acknowledge(accumulator, "a folder that is not registered", word(0), 8.0)
    folder = OperatorFolder(CheckpointStorage.open(tmp_path), "u")
    mine.coordinator(folder)
    for partition in range(2):
        # There is no such manifest, so publishing fails.
        acknowledge(accumulator, folder.storage.uri, word(partition), 8.0)
    assert accumulator.value == {}
    assert folder.checkpoints() == []
