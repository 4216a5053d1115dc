"""The rows that a sink is given, as an Arrow table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from keyedstate.errors import UpsertError, did_you_mean


def arrow_table(table: str, rows: Any, keys: Sequence[str], row_kind: str | None) -> pa.Table:
    """Return the rows of an epoch, a DataFrame or an Arrow table, with the columns that a sink needs.

    A DataFrame without rows may come without its types.  Raises `UpsertError` with the sink's table.
    """
    content = _arrow_table(table, rows)
    names = content.column_names
    for column in keys if row_kind is None else (*keys, row_kind):
        if column not in names:
            reason = f"the rows have no column {column!r}, but {', '.join(names)}"
            raise UpsertError(table, reason, f"Name one of these.{did_you_mean(column, names)}")
    return content


def _arrow_table(table: str, rows: Any) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if hasattr(rows, "toArrow"):
        return rows.toArrow()
    if not hasattr(rows, "mapInArrow"):
        reason = f"its rows are {type(rows).__name__}"
        raise UpsertError(table, reason, "Give a DataFrame of Spark, or an Arrow table.")
    # PySpark 3.5, whose collect() has times without their zone.
    pieces = [bytes(row[0]) for row in rows.mapInArrow(_pieces, "piece binary").collect()]
    if not pieces:
        return pa.table({name: pa.array([], pa.null()) for name in rows.columns})
    return pa.concat_tables([pa.ipc.open_stream(piece).read_all() for piece in pieces])


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write batches as bytes, which any version of Spark collects as they are."""
    for batch in batches:
        if batch.num_rows:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            yield pa.RecordBatch.from_arrays(
                [pa.array([sink.getvalue().to_pybytes()], pa.binary())], ["piece"]
            )


def check_keys(table: str, keys: object) -> tuple[str, ...]:
    """Return the names of key columns; raises `UpsertError` for none."""
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not keys:
        raise UpsertError(table, f"its keys are {keys!r}", "Give a list of at least one column.")
    return tuple(keys)


def in_utc(rows: pa.Table, unit: str | None = None) -> pa.Table:
    """Return rows with their instants in UTC, in a unit of Arrow or else in their own; any may be null."""
    columns = [
        column.cast(pa.timestamp(unit or column.type.unit, "UTC")) if _has_zone(column.type) else column
        for column in rows.columns
    ]
    return pa.Table.from_arrays(columns, names=rows.column_names)


def _has_zone(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_)) and type_.tz is not None
