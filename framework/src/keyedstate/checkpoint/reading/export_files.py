"""Files of typed columns: Parquet, Arrow, CSV and JSON lines, each complete when it appears."""

from __future__ import annotations

import enum
import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from keyedstate.checkpoint.reading.json_values import json_value
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage, OutputFile
from keyedstate.errors import UnexportableTypeError

#: Rows that are written at once: the streams of small key groups would make poor row groups.
_ROWS = 65_536
_BYTES = 64 << 20


class ExportFormat(str, enum.Enum):
    """What an export may be written as."""

    parquet = "parquet"
    arrow = "arrow"
    csv = "csv"
    jsonl = "jsonl"


class ExportFile:
    """A file under a name that nobody looks at, until `publish`.

    Parameters
    ----------
    storage : CheckpointStorage
        The folder.
    name : str
        The file, once it is published.
    state : str
        For errors.

    Attributes
    ----------
    rows, bytes : int
        Of what was written.

    Raises
    ------
    UnexportableTypeError, StorageError
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
        self._sink = _Sink(storage.open_output(self._temporary))

    @property
    def bytes(self) -> int:
        """The size of the file."""
        return self._sink.length

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write everything; raises `UnexportableTypeError`, and what reading the batches raises."""
        try:
            writer = _WRITERS[self._format](self._sink, self._schema)
            for table in _gathered(batches, self._schema):
                writer.write(table)
                self.rows += table.num_rows
            writer.close()
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UnexportableTypeError(self.state, self._format.value, str(error)) from error
        self._sink.output.close()

    def publish(self) -> None:
        """Give the file its name, in place of one that has it."""
        self._storage.move_file(self._temporary, self.name)

    def abort(self) -> None:
        """Delete what was written; does nothing after `publish`."""
        self._sink.output.abort()


class _Sink:
    """Hands bytes on; what Arrow needs of a file."""

    def __init__(self, output: OutputFile) -> None:
        self.output = output
        self.length = 0
        self.closed = False

    def write(self, data: bytes | pa.Buffer) -> int:
        piece = bytes(data)
        self.output.write(piece)
        self.length += len(piece)
        return len(piece)

    def flush(self) -> None:
        """Do nothing: the file counts when it is closed."""

    def close(self) -> None:
        self.closed = True


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


class _Writer(ABC):
    """Writes tables of one schema."""

    @abstractmethod
    def __init__(self, sink: _Sink, schema: pa.Schema) -> None: ...

    @abstractmethod
    def write(self, table: pa.Table) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class _Parquet(_Writer):
    def __init__(self, sink: _Sink, schema: pa.Schema) -> None:
        self._writer = pa_parquet.ParquetWriter(pa.PythonFile(sink, "w"), schema, compression="zstd")

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table.combine_chunks())

    def close(self) -> None:
        self._writer.close()


class _Arrow(_Writer):
    def __init__(self, sink: _Sink, schema: pa.Schema) -> None:
        self._writer = pa.ipc.new_file(pa.PythonFile(sink, "w"), schema)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table.combine_chunks())

    def close(self) -> None:
        self._writer.close()


class _Csv(_Writer):
    """One line per entry; what is no plain value is JSON in a cell of text."""

    def __init__(self, sink: _Sink, schema: pa.Schema) -> None:
        self._schema = pa.schema(
            [field if _is_plain(field.type) else pa.field(field.name, pa.string()) for field in schema]
        )
        self._file = pa.PythonFile(sink, "w")
        self._writer = pa_csv.CSVWriter(self._file, self._schema)

    def write(self, table: pa.Table) -> None:
        columns = [_cells(column) for column in table.columns]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class _JsonLines(_Writer):
    """One object per line."""

    def __init__(self, sink: _Sink, schema: pa.Schema) -> None:
        self._sink = sink

    def write(self, table: pa.Table) -> None:
        columns = [_json_values(column) for column in table.columns]
        for values in zip(*columns, strict=True):
            line = dict(zip(table.column_names, values, strict=True))
            self._sink.write(json.dumps(line, allow_nan=False).encode("ascii") + b"\n")

    def close(self) -> None:
        """Do nothing: lines need no end."""


_WRITERS: dict[ExportFormat, type[_Writer]] = {
    ExportFormat.parquet: _Parquet,
    ExportFormat.arrow: _Arrow,
    ExportFormat.csv: _Csv,
    ExportFormat.jsonl: _JsonLines,
}


def _is_plain(kind: pa.DataType) -> bool:
    tests: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_date,
        pa.types.is_time,
        pa.types.is_timestamp,
    )
    return any(test(kind) for test in tests)


def _cells(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    if _is_plain(column.type):
        return column
    texts = [
        value if value is None or isinstance(value, str) else json.dumps(value)
        for value in _json_values(column)
    ]
    return pa.array(texts, pa.string())


def _json_values(column: pa.ChunkedArray) -> list[Any]:
    convert = _converter(column.type)
    return [convert(value) for value in column.to_pylist()]


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return what makes JSON of the Python form of a column's values: maps come as lists of pairs."""
    if pa.types.is_map(kind):
        key, item = _converter(kind.key_type), _converter(kind.item_type)
        as_object = pa.types.is_string(kind.key_type)

        def of_map(value: Any) -> Any:
            if value is None:
                return None
            pairs = [[key(name), item(inner)] for name, inner in value]
            return dict(pairs) if as_object else pairs

        return of_map
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = _converter(kind.value_type)
        return lambda value: None if value is None else [element(inner) for inner in value]
    if pa.types.is_struct(kind):
        parts = {field.name: _converter(field.type) for field in kind}
        return lambda value: (
            None if value is None else {name: convert(value[name]) for name, convert in parts.items()}
        )
    return json_value
