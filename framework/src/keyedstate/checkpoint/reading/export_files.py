"""Files of typed columns: Parquet, Arrow, CSV and JSON lines, each complete when it appears."""

from __future__ import annotations

import enum
import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from keyedstate.checkpoint.format.segment import StreamSink
from keyedstate.checkpoint.reading.json_values import json_converter
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import UnexportableTypeError

#: Rows that are written at once: the streams of small key groups would make poor row groups.
_ROWS = 65_536
_BYTES = 64 << 20


class ExportFormat(str, enum.Enum):
    """The format of an export."""

    parquet = "parquet"
    arrow = "arrow"
    csv = "csv"
    jsonl = "jsonl"


class ExportFile:
    """A file in a folder that has a temporary name until `publish`; the state's name is for errors.

    Raises `UnexportableTypeError` and `StorageError`.
    """

    def __init__(
        self, storage: CheckpointStorage, name: str, format: ExportFormat, state: str, schema: pa.Schema
    ) -> None:
        self.name = name
        self.state = state
        self.rows = 0
        self._storage = storage
        self._format = format
        self._schema = schema
        self._temporary = f".{name}.{uuid.uuid4().hex}.tmp"
        self._output = storage.open_output(self._temporary)
        self._sink = StreamSink(self._output)

    @property
    def bytes(self) -> int:
        """The size of the file."""
        return self._sink.length

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write everything; raises `UnexportableTypeError`, and what reading the batches raises."""
        try:
            writer = _WRITERS[self._format](self._sink, self._schema)
            for table in _gathered(batches, self._schema):
                writer.write_table(table.combine_chunks())
                self.rows += table.num_rows
            writer.close()
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UnexportableTypeError(self.state, self._format.value, str(error)) from error
        self._sink.send()
        self._output.close()

    def publish(self) -> None:
        """Give the file its name, in place of one that has it."""
        self._storage.move_file(self._temporary, self.name)

    def abort(self) -> None:
        """Delete what was written; does nothing after `publish`."""
        self._output.abort()


def _gathered(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _ROWS or size >= _BYTES:
            yield pa.Table.from_batches(waiting, schema)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema)


class _CsvWriter:
    """One line per entry; a cell of a nested type is JSON."""

    def __init__(self, sink: StreamSink, schema: pa.Schema) -> None:
        self._schema = pa.schema(
            [field if _is_plain(field.type) else pa.field(field.name, pa.string()) for field in schema]
        )
        self._writer = pa_csv.CSVWriter(pa.PythonFile(sink, "w"), self._schema)

    def write_table(self, table: pa.Table) -> None:
        columns = [_cells(column) for column in table.columns]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class _JsonLinesWriter:
    """One object per line."""

    def __init__(self, sink: StreamSink, schema: pa.Schema) -> None:
        self._sink = sink

    def write_table(self, table: pa.Table) -> None:
        for values in zip(*map(_json_values, table.columns), strict=True):
            line = dict(zip(table.column_names, values, strict=True))
            self._sink.write(json.dumps(line, allow_nan=False).encode("ascii") + b"\n")

    def close(self) -> None:
        """Do nothing: lines need no end."""


_WRITERS: dict[ExportFormat, Callable[[StreamSink, pa.Schema], Any]] = {
    ExportFormat.parquet: lambda sink, schema: pa_parquet.ParquetWriter(
        pa.PythonFile(sink, "w"), schema, compression="zstd"
    ),
    ExportFormat.arrow: lambda sink, schema: pa.ipc.new_file(pa.PythonFile(sink, "w"), schema),
    ExportFormat.csv: _CsvWriter,
    ExportFormat.jsonl: _JsonLinesWriter,
}


def _is_plain(kind: pa.DataType) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_number = pa.types.is_primitive(kind) and not pa.types.is_duration(kind)
    return is_text or is_number or pa.types.is_decimal(kind)


def _cells(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    if _is_plain(column.type):
        return column
    texts = [
        value if value is None or isinstance(value, str) else json.dumps(value)
        for value in _json_values(column)
    ]
    return pa.array(texts, pa.string())


def _json_values(column: pa.ChunkedArray) -> list[Any]:
    return list(map(json_converter(column.type), column.to_pylist()))
