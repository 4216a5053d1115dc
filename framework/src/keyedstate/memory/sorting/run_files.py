"""The files of a sorter: sorted runs, and records that are too large for a page.

A run is record batches, each with its length and `checksum`, and a count at the end. The first two columns of
a batch are the normalized keys and whether they are only prefixes.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from keyedstate.errors import RunFileError, SpillError
from keyedstate.memory.sorting.keys import NormalizedKeys

#: The bytes of a batch or a large record and their checksum; at the end of a run 0 and the number of batches.
_HEAD = struct.Struct(">QI")
#: How many columns precede those of the rows.
KEY_COLUMNS: Final = 2


def run_schema(key_bytes: int, rows: pa.Schema) -> pa.Schema:
    """Return the schema of a run of rows with keys of one length."""
    return pa.schema([("key", pa.binary(key_bytes)), ("prefix_only", pa.bool_()), *rows])


def record_schema(key_bytes: int) -> pa.Schema:
    """Return the schema of a run of serialized records; of a large one it has the offset in its file."""
    rows = pa.schema([("record", pa.large_binary()), ("large", pa.int64())])
    return run_schema(key_bytes, rows)


def key_columns(keys: NormalizedKeys) -> list[pa.Array]:
    """Return the first two columns of a run."""
    data = pa.py_buffer(np.ascontiguousarray(keys.data))
    prefix_only = np.zeros(len(keys), np.bool_) if keys.prefix_only is None else keys.prefix_only
    return [
        pa.Array.from_buffers(pa.binary(keys.length), len(keys), [None, data]),
        pa.array(prefix_only),
    ]


def keys_of(batch: pa.RecordBatch) -> NormalizedKeys:
    """Return the keys of a batch of a run."""
    column, marks = batch.column(0), batch.column(1)
    width = column.type.byte_width
    data: NDArray[Any] = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, width)
    prefix_only = marks.to_numpy(zero_copy_only=False)
    return NormalizedKeys(
        data[column.offset : column.offset + len(batch)], prefix_only if prefix_only.any() else None
    )


def checksum(path: Path, data: bytes | pa.Buffer) -> int:
    """Return the checksum of bytes in a file: those of another file in its place are damaged."""
    return zlib.crc32(data, zlib.crc32(path.name.encode()))


class SpillFile:
    """A new file of this user alone.

    Where the file system refuses, every method raises `SpillError`, and the file is deleted.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SpillError(path, str(error)) from error
        # Without a buffer, a full disk is an error of the write itself.
        self._file = io.FileIO(descriptor, "wb")

    def write(self, data: bytes | pa.Buffer) -> None:
        """Append bytes."""
        left = memoryview(data)
        try:
            while left.nbytes:
                left = left[self._file.write(left) :]
        except OSError as error:
            self.delete()
            raise SpillError(self._path, str(error)) from error

    def close(self) -> None:
        """Close the file; again has no effect."""
        self._file.close()

    def delete(self) -> None:
        """Close and delete the file; again has no effect."""
        self._file.close()
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True)
class RunFile:
    """A sorted run on disk, with its size and that of its largest batch in bytes."""

    path: Path
    schema: pa.Schema
    size: int
    largest: int

    @classmethod
    def write(cls, path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> RunFile:
        """Write a run; raises SpillError, and no file is left then."""
        file = SpillFile(path)
        size = largest = count = 0
        try:
            for batch in batches:
                data = batch.serialize()
                file.write(_HEAD.pack(data.size, checksum(path, data)))
                file.write(data)
                size += _HEAD.size + data.size
                largest = max(largest, data.size)
                count += 1
            file.write(_HEAD.pack(0, count))
        except BaseException:
            file.delete()
            raise
        file.close()
        return cls(path, schema, size + _HEAD.size, largest)

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches; raises RunFileError for a missing, short or damaged file."""
        try:
            with self.path.open("rb") as file:
                count = 0
                while (data := self._next(file, count)) is not None:
                    yield pa.ipc.read_record_batch(pa.py_buffer(data), self.schema)
                    count += 1
        except OSError as error:
            raise RunFileError(self.path, str(error)) from error

    def _next(self, file: BufferedReader, count: int) -> bytes | None:
        """Return the bytes of the next batch, after some others; None at the end of the run."""
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise RunFileError(self.path, f"it ends after {count} batches")
        size, stored = _HEAD.unpack(head)
        if size == 0 and stored == count:
            return None
        data = file.read(size) if 0 < size <= self.largest else b""
        if not data or len(data) < size or checksum(self.path, data) != stored:
            raise RunFileError(self.path, f"its batch {count} is damaged")
        return data

    def delete(self) -> None:
        """Delete the file; again has no effect."""
        self.path.unlink(missing_ok=True)


class LargeRecords:
    """Records in a file, found by their offset (Flink's ``LargeRecordHandler``); the first one creates it.

    Runs contain the offsets alone, so that a large record is written once, however often runs are merged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: SpillFile | None = None
        self._end = 0

    def append(self, data: bytes) -> int:
        """Write a record, and return its offset; raises SpillError."""
        if self._file is None:
            self._file = SpillFile(self.path)
        offset = self._end
        self._file.write(_HEAD.pack(len(data), checksum(self.path, data)) + data)
        self._end += _HEAD.size + len(data)
        return offset

    def read(self, offset: int) -> bytes:
        """Return the record at an offset; raises RunFileError."""
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                size, stored = _HEAD.unpack(file.read(_HEAD.size))
                data = file.read(size) if size <= self._end else b""
        except (OSError, struct.error) as error:
            raise RunFileError(self.path, str(error)) from error
        if len(data) != size or checksum(self.path, data) != stored:
            raise RunFileError(self.path, f"the record at byte {offset} is damaged")
        return data

    def close(self) -> None:
        """Delete the file; again has no effect."""
        if self._file is not None:
            self._file.delete()
            self._file = None
