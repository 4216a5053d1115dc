"""The broadcast side: how every row of a second, small DataFrame reaches every task.

A batch DataFrame is read when the operator is built and travels inside it.  Spark has no union of a streaming
and a batch DataFrame, by which its rows could come along, and this way no task has to keep rows of keys back.

The rows of a streaming DataFrame come through the same exchange as the rows of keys, once for every task.
Each batch of them is packed into one value of a binary column, so that rows of keys, where it is null, carry
next to nothing.  Spark hands a task the two sorts of rows in any order; all rows of the broadcast side are
processed first, and those of keys wait in a `BatchSpool`: so what a row of a key finds depends on its
micro-batch alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from keyedstate.errors import BroadcastFrameError
from keyedstate.keygroups import KEY_GROUP_COLUMN, key_group_range_for
from keyedstate.spark.hosts.task_identity import task_context
from keyedstate.spark.routing import numbered
from keyedstate.spark.schema import to_arrow
from keyedstate.spark.task.spool import BatchSpool

#: Name of the column that carries rows of the broadcast side to a task.
BROADCAST_COLUMN = "__keyedstate_broadcast"

#: What stands before the rows of a packed batch: the partition and the place in it that it came from.  The
#: exchange keeps no order, and all tasks must see one.
_PLACE = struct.Struct(">QQ")
_PACKED = f"{KEY_GROUP_COLUMN} int, {BROADCAST_COLUMN} binary"


@dataclass(frozen=True)
class BroadcastSide:
    """The broadcast side of an operator, as its tasks know it.

    Attributes
    ----------
    columns : tuple of str
        The real names of the columns.
    rows : tuple of bytes or None
        The packed rows of a batch DataFrame; None where rows come with those of keys.
    each_epoch : bool
        Whether `rows` were read for one micro-batch, and not for a whole run of the query.
    """

    columns: tuple[str, ...]
    rows: tuple[bytes, ...] | None
    each_epoch: bool

    def batches(self, packed: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
        """Yield packed rows in the order that is the same for every task."""
        for piece in sorted(packed):
            for batch in pa.ipc.open_stream(pa.py_buffer(piece)[_PLACE.size :]):
                yield batch.rename_columns(self.columns)

    def separate(
        self, batches: Iterable[pa.RecordBatch], spool: BatchSpool
    ) -> tuple[Iterator[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        """Read all that comes to a task; return the rows of the broadcast side and, after them, of keys."""
        packed: list[bytes] = []
        for batch in batches:
            *columns, pieces = batch.columns
            keyed_rows = pa.RecordBatch.from_arrays(columns, batch.schema.names[:-1])
            if pieces.null_count < len(pieces):
                packed += pieces.drop_null().to_pylist()
                keyed_rows = keyed_rows.filter(pc.is_null(pieces))
            if keyed_rows.num_rows:
                spool.add(keyed_rows)
        return self.batches(packed), spool.drain()


def broadcast_side_of(keyed_frame: DataFrame, rows: DataFrame) -> BroadcastSide:
    """Return the broadcast side of an operator; reads the rows of a batch DataFrame.

    Raises
    ------
    BroadcastFrameError
        For a streaming DataFrame beside a batch one, no column, or a type that Arrow does not have.
    """
    if not rows.columns:
        raise BroadcastFrameError("it has no column")
    for field in rows.schema.fields:
        try:
            to_arrow(StructType([field]))
        except (PySparkException, TypeError) as error:
            raise BroadcastFrameError(
                f"its column {field.name!r} has the type {field.dataType.simpleString()}, which has no Arrow "
                "type; cast it, for example to a string"
            ) from error
    columns = tuple(rows.columns)
    if not rows.isStreaming:
        packed = _packed(rows, [0]).select(BROADCAST_COLUMN).collect()
        return BroadcastSide(columns, tuple(bytes(row[0]) for row in packed), not keyed_frame.isStreaming)
    if not keyed_frame.isStreaming:
        raise BroadcastFrameError(
            "it is streaming and the keyed one is not; give rows of a batch DataFrame, or key a streaming one"
        )
    return BroadcastSide(columns, None, True)


def with_broadcast_rows(
    keyed_rows: DataFrame, rows: DataFrame, parallelism: int, max_parallelism: int
) -> DataFrame:
    """Return the frame of keyed rows, its columns numbered, with the packed rows for each task added."""
    ranges = [key_group_range_for(task, parallelism, max_parallelism) for task in range(parallelism)]
    packed = _packed(rows, [key_groups.start for key_groups in ranges])
    alone = numbered(keyed_rows).withColumn(BROADCAST_COLUMN, f.lit(None).cast("binary"))
    return alone.unionByName(packed, allowMissingColumns=True)


def _packed(rows: DataFrame, key_groups: Sequence[int]) -> DataFrame:
    packing = _Packing(tuple(key_groups))

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return packing.pack(batches)

    return rows.toDF(*(f"c{number}" for number in range(len(rows.columns)))).mapInArrow(pack, _PACKED)


@dataclass(frozen=True)
class _Packing:
    """Packs each batch of the broadcast side, once for every key group: the first of a task's."""

    key_groups: tuple[int, ...]

    def pack(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition = task_context().partitionId()
        for number, batch in enumerate(batches):
            if not batch.num_rows:
                continue
            sink = pa.BufferOutputStream()
            sink.write(_PLACE.pack(partition, number))
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            piece = pa.array([sink.getvalue().to_pybytes()], pa.binary())
            for key_group in self.key_groups:
                columns = [pa.array([key_group], pa.int32()), piece]
                yield pa.RecordBatch.from_arrays(columns, [KEY_GROUP_COLUMN, BROADCAST_COLUMN])
