"""Rows that the tasks of a query get in its first epoch, together with those of its sources.

The driver reads a batch DataFrame when it builds the operator, since Spark has no union of a streaming and a
batch DataFrame.  A broadcast variable has the rows: only the tasks of the first epoch read it.  Spark Connect
has none, so there the rows are in the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import Broadcast
from pyspark.sql import DataFrame

from keyedstate.keygroups import KEY_GROUP_COLUMN, KeyGroupRange
from keyedstate.spark.routing import with_key_group
from keyedstate.spark.session import is_connect
from keyedstate.spark.task.broadcast import collect_packed, unpacked


@dataclass(frozen=True)
class FirstRows:
    """The rows of an operator's first epoch, with their key groups."""

    columns: tuple[str, ...]
    packed: Broadcast[tuple[bytes, ...]] | tuple[bytes, ...]

    def of(self, key_groups: KeyGroupRange) -> Iterator[pa.RecordBatch]:
        """Yield those of some key groups, in the order of the DataFrame."""
        packed = self.packed if isinstance(self.packed, tuple) else self.packed.value
        for batch in unpacked(packed, self.columns):
            column = batch.column(KEY_GROUP_COLUMN)
            own = pc.and_(pc.greater_equal(column, key_groups.start), pc.less_equal(column, key_groups.end))
            yield batch.filter(own)


def first_rows_of(rows: DataFrame, key_columns: list[str], max_parallelism: int) -> FirstRows:
    """Read a batch DataFrame with the columns of an operator's rows."""
    with_groups = with_key_group(rows, key_columns, max_parallelism)
    spark, packed = rows.sparkSession, collect_packed(with_groups)
    columns = tuple(with_groups.columns)
    return FirstRows(columns, packed if is_connect(spark) else spark.sparkContext.broadcast(packed))
