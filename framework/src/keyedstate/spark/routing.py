"""Routing: every row to the task that owns its key group.

The JVM computes the key group, ``pmod(hash(keys...), max_parallelism)``, as a column, and partition
``key_group * parallelism div max_parallelism`` gets the row (`keyedstate.keygroups`).  Spark can send a row
to a given partition since 4.1 (``DataFrame.repartitionById``); older ones hash whatever they are given, so
they are given a number that is known to hash to the wanted partition.

No other operator may stand between the exchange and the tasks: adaptive execution removes an exchange without
rows below a projection, and then the tasks of that epoch never run.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from keyedstate.keygroups import KEY_GROUP_COLUMN
from keyedstate.murmur3 import hash_columns


def quoted(name: str) -> str:
    """Return a column name as Spark's parser takes it for one name, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def with_key_group(frame: DataFrame, key_columns: list[str], max_parallelism: int) -> DataFrame:
    """Return the frame with the column `KEY_GROUP_COLUMN` added.

    A null key has a key group like any other: Spark's hash leaves out nulls, so that of a key of nulls only
    is its seed, 42.
    """
    keys = [frame[quoted(name)] for name in key_columns]
    return frame.select("*", f.pmod(f.hash(*keys), f.lit(max_parallelism)).alias(KEY_GROUP_COLUMN))


def with_plain_names(frame: DataFrame) -> DataFrame:
    """Return the frame of `with_key_group` with names that `mapInArrow` takes; it looks for ``a.b`` in ``a``.

    Only where a name needs it are the columns numbered; the last one, the key group's, keeps its name.
    """
    if not any(character in name for name in frame.columns for character in ".`"):
        return frame
    return numbered(frame)


def numbered(frame: DataFrame) -> DataFrame:
    """Return the frame of `with_key_group` with numbers for names; the last, the key group's, is kept."""
    *columns, key_group = frame.columns
    return frame.toDF(*(f"__keyedstate_column_{number}" for number in range(len(columns))), key_group)


def route(
    frame: DataFrame, parallelism: int, max_parallelism: int, *, by_id: bool | None = None
) -> DataFrame:
    """Return the frame in `parallelism` partitions by key group.

    Parameters
    ----------
    frame : DataFrame
        With the column `KEY_GROUP_COLUMN`.
    parallelism, max_parallelism : int
    by_id : bool, optional
        Whether to use ``repartitionById``; by default where this Spark has it.
    """
    # At most 32,768 squared: fits Spark's int.
    partition = f.expr(f"cast({KEY_GROUP_COLUMN} * {parallelism} div {max_parallelism} as int)")
    if by_id is None:
        by_id = hasattr(frame, "repartitionById")
    if by_id:
        return frame.repartitionById(parallelism, partition)
    return frame.repartition(parallelism, _salt(partition, parallelism))


def _salt(partition: Column, parallelism: int) -> Column:
    salts = f.array(*[f.lit(salt) for salt in partition_salts(parallelism)])
    return f.element_at(salts, partition + f.lit(1))


def partition_salts(parallelism: int) -> list[int]:
    """Return, for each partition from 0 to parallelism - 1, the smallest int that Spark's hash sends there.

    ``pmod(hash(salts[p]), parallelism) == p``, which is how ``HashPartitioning`` places a row.
    """
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
