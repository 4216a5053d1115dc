"""Routing: every row to the task that owns its key group.

The JVM computes the key group, ``pmod(hash(keys...), max_parallelism)``, as a column, and partition
``key_group * parallelism div max_parallelism`` gets the row (`keyedstate.keygroups`).  Since 4.1 Spark sends
a row to a given partition (``DataFrame.repartitionById``); older versions hash a value, so they get a number
that hashes to the wanted partition.

No operator may be between the exchange and the tasks: adaptive execution removes an exchange without rows
below a projection, and then the tasks of that epoch never run.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from keyedstate.keygroups import KEY_GROUP_COLUMN
from keyedstate.murmur3 import hash_columns


def quoted(name: str) -> str:
    """Return a column name that Spark's parser reads as one name."""
    return "`" + name.replace("`", "``") + "`"


def with_key_group(frame: DataFrame, key_columns: list[str], max_parallelism: int) -> DataFrame:
    """Return the frame with the column `KEY_GROUP_COLUMN`; Spark hashes a key of nulls to its seed, 42."""
    keys = [frame[quoted(name)] for name in key_columns]
    return frame.select("*", f.pmod(f.hash(*keys), f.lit(max_parallelism)).alias(KEY_GROUP_COLUMN))


def with_plain_names(frame: DataFrame) -> DataFrame:
    """Return the frame, `numbered` if `mapInArrow` would read a column's name as a path."""
    special = any(character in name for name in frame.columns for character in ".`")
    return numbered(frame) if special else frame


def numbered(frame: DataFrame) -> DataFrame:
    """Return the frame of `with_key_group` with numbered columns; the key group keeps its name."""
    *columns, key_group = frame.columns
    return frame.toDF(*(f"__keyedstate_column_{number}" for number in range(len(columns))), key_group)


def route(
    frame: DataFrame, parallelism: int, max_parallelism: int, *, by_id: bool | None = None
) -> DataFrame:
    """Return the frame, with the column `KEY_GROUP_COLUMN`, in `parallelism` partitions by key group.

    It uses ``repartitionById`` by default if this Spark has it.
    """
    # At most 32,768 squared: fits Spark's int.
    partition = f.expr(f"cast({KEY_GROUP_COLUMN} * {parallelism} div {max_parallelism} as int)")
    if by_id is None:
        by_id = hasattr(frame, "repartitionById")
    if by_id:
        return frame.repartitionById(parallelism, partition)
    salts = f.array(*[f.lit(salt) for salt in partition_salts(parallelism)])
    return frame.repartition(parallelism, f.element_at(salts, partition + f.lit(1)))


def partition_salts(parallelism: int) -> list[int]:
    """Return for each partition p the smallest int with ``pmod(hash(salts[p]), parallelism) == p``."""
    salts = np.full(parallelism, -1, dtype=np.int64)
    start, block = 0, max(1024, 4 * parallelism)
    while (salts < 0).any():
        candidates = np.arange(start, start + block, dtype=np.int32)
        partitions = np.remainder(hash_columns([pa.array(candidates)]), np.int32(parallelism))
        found, first = np.unique(partitions, return_index=True)
        new = salts[found] < 0
        salts[found[new]] = candidates[first[new]]
        start += block
    numbers: list[int] = salts.tolist()
    return numbers
