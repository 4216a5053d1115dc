"""The broadcast side: every row of a second, small DataFrame reaches every task.

The driver reads a batch DataFrame when it builds the operator, and sends its rows inside the plan: Spark has
no union of a streaming and a batch DataFrame.

The rows of a streaming DataFrame pass through the same exchange as keyed rows, once for every task.  Each
batch of them is packed into one value of a binary column, which is null in keyed rows.  A task receives both
in any order and processes the broadcast rows first, while keyed rows wait in a `BatchSpool`.  So what a keyed
row finds depends on its micro-batch alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from keyedstate.errors import BroadcastFrameError
from keyedstate.keygroups import KEY_GROUP_COLUMN, key_group_range_for
from keyedstate.spark.hosts.task_identity import task_context
from keyedstate.spark.routing import numbered
from keyedstate.spark.schema import without_arrow_type
from keyedstate.spark.task.spool import BatchSpool

#: Name of the column that carries rows of the broadcast side to a task.
BROADCAST_COLUMN = "__keyedstate_broadcast"

#: The prefix of a packed batch: its partition and position there.  All tasks must process the batches in the
#: same order, which the exchange does not keep.
_PLACE = struct.Struct(">QQ")
_PACKED = f"{KEY_GROUP_COLUMN} int, {BROADCAST_COLUMN} binary"


@dataclass(frozen=True)
class BroadcastSide:
    """The broadcast side of an operator, for its tasks."""

    #: The real names of the columns.
    columns: tuple[str, ...]
    #: The packed rows of a batch DataFrame; None if rows arrive together with keyed ones.
    rows: tuple[bytes, ...] | None
    #: Whether `rows` belong to one micro-batch, and not to a whole run of the query.
    each_epoch: bool

    def separate(
        self, batches: Iterable[pa.RecordBatch], spool: BatchSpool
    ) -> tuple[Iterator[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        """Read all batches of a task; return the rows of the broadcast side, and the keyed rows."""
        packed: list[bytes] = []
        for batch in batches:
            *columns, pieces = batch.columns
            keyed_rows = pa.RecordBatch.from_arrays(columns, batch.schema.names[:-1])
            if pieces.null_count < len(pieces):
                packed += pieces.drop_null().to_pylist()
                keyed_rows = keyed_rows.filter(pc.is_null(pieces))
            if keyed_rows.num_rows:
                spool.add(keyed_rows)
        return unpacked(packed, self.columns), spool.drain()


def broadcast_side_of(keyed_frame: DataFrame, rows: DataFrame) -> BroadcastSide:
    """Return the broadcast side of an operator; reads the rows of a batch DataFrame.

    Raises `BroadcastFrameError` for a streaming DataFrame with a keyed batch one, no column, or a type that
    Arrow lacks.
    """
    if not rows.columns:
        raise BroadcastFrameError("it has no column")
    fault = without_arrow_type(rows.schema.fields)
    if fault is not None:
        raise BroadcastFrameError(fault)
    columns = tuple(rows.columns)
    if not rows.isStreaming:
        return BroadcastSide(columns, collect_packed(rows), not keyed_frame.isStreaming)
    if not keyed_frame.isStreaming:
        raise BroadcastFrameError(
            "it is streaming and the keyed one is not; give rows of a batch DataFrame, or key a streaming one"
        )
    return BroadcastSide(columns, None, True)


def with_broadcast_rows(
    keyed_rows: DataFrame, rows: DataFrame, parallelism: int, max_parallelism: int
) -> DataFrame:
    """Return the keyed rows, with numbered columns, and the packed broadcast rows for each task."""
    ranges = [key_group_range_for(task, parallelism, max_parallelism) for task in range(parallelism)]
    packed = _packed(rows, [key_groups.start for key_groups in ranges])
    alone = numbered(keyed_rows).withColumn(BROADCAST_COLUMN, f.lit(None).cast("binary"))
    return alone.unionByName(packed, allowMissingColumns=True)


def collect_packed(rows: DataFrame) -> tuple[bytes, ...]:
    """Return all rows of a batch DataFrame, packed."""
    return tuple(bytes(row[0]) for row in _packed(rows, [0]).select(BROADCAST_COLUMN).collect())


def unpacked(packed: Iterable[bytes], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield packed rows, in the order of the DataFrame, under the given names."""
    for piece in sorted(packed):
        for batch in pa.ipc.open_stream(pa.py_buffer(piece)[_PLACE.size :]):
            yield batch.rename_columns(columns)


def _packed(rows: DataFrame, key_groups: Sequence[int]) -> DataFrame:
    numbered_rows = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
    return numbered_rows.mapInArrow(_Packing(tuple(key_groups)).pack, _PACKED)


@dataclass(frozen=True)
class _Packing:
    """Packs each batch of the broadcast side, once for each key group: the first one of every task."""

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
