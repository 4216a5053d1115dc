"""Rows arrive at the partition that owns their key group, by either way of sending them there."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from keyedstate.keygroups import KEY_GROUP_COLUMN, operator_index_for_key_group
from keyedstate.spark.routing import partition_salts, route, with_key_group

WAYS = [pytest.param(False, id="salts"), pytest.param(True, id="repartitionById")]


def require_way(by_id: bool) -> None:
    if by_id and not hasattr(DataFrame, "repartitionById"):
        pytest.skip("this Spark has no repartitionById")


def partition_and_key_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    groups = [group for batch in batches for group in batch.column("__keyedstate_key_group").to_pylist()]
    yield pa.RecordBatch.from_pydict(
        {"partition": pa.array([context.partitionId()]), "groups": pa.array([groups], pa.list_(pa.int32()))}
    )


@pytest.mark.parametrize("by_id", WAYS)
@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(1, 128), (3, 128), (4, 4), (7, 10)])
def test_every_row_arrives_at_the_owner_of_its_key_group(
    spark: SparkSession, by_id: bool, parallelism: int, max_parallelism: int
) -> None:
    """KG-05: the owner is that of Flink's formula."""
    require_way(by_id)
    rows = spark.range(0, 300, 1, 2).select(
        f.when(f.col("id") % 9 > 0, f.col("id").cast("string")).alias("k")
    )
    routed = route(with_key_group(rows, ["k"], max_parallelism), parallelism, max_parallelism, by_id=by_id)
    schema = "partition long, groups array<int>"
    found = {
        row.partition: row.groups for row in routed.mapInArrow(partition_and_key_groups, schema).collect()
    }
    assert sorted(found) == list(range(parallelism)), "each partition has a task, also one without rows"
    assert sum(map(len, found.values())) == 300
    for partition, groups in found.items():
        assert {operator_index_for_key_group(group, parallelism, max_parallelism) for group in groups} <= {
            partition
        }


@pytest.mark.parametrize("by_id", WAYS)
def test_adaptive_execution_keeps_partitions_that_have_no_rows(spark: SparkSession, by_id: bool) -> None:
    """Their tasks have state to carry on; Spark would otherwise merge them with others."""
    require_way(by_id)
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    rows = spark.range(0, 20, 1, 2).select(f.lit("one key").alias("k"))
    routed = route(with_key_group(rows, ["k"], 128), 5, 128, by_id=by_id)
    out = routed.mapInArrow(partition_and_key_groups, "partition long, groups array<int>")
    assert sorted((row.partition, len(row.groups)) for row in out.collect()) == [
        (0, 0),
        (1, 0),
        (2, 0),
        (3, 0),
        (4, 20),
    ]


def test_a_null_key_has_the_key_group_of_sparks_hash_of_null(spark: SparkSession) -> None:
    rows = spark.sql("select cast(null as string) as k, cast(null as double) as x")
    assert with_key_group(rows, ["k"], 128).first()[KEY_GROUP_COLUMN] == 42  # type: ignore[index]
    assert with_key_group(rows, ["k", "x"], 10).first()[KEY_GROUP_COLUMN] == 2  # type: ignore[index]


@pytest.mark.parametrize("parallelism", [1, 2, 200])
def test_salts_hash_to_their_partitions_on_spark(spark: SparkSession, parallelism: int) -> None:
    salts = partition_salts(parallelism)
    rows = spark.createDataFrame([(salt,) for salt in salts], "salt int")
    placed = rows.select(f.pmod(f.hash("salt"), f.lit(parallelism))).collect()
    assert [row[0] for row in placed] == list(range(parallelism))


def test_salts_of_the_largest_parallelism_are_found() -> None:
    salts = partition_salts(32_768)
    assert len(set(salts)) == 32_768
    assert min(salts) >= 0
