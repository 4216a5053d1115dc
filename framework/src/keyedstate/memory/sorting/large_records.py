"""The file of records that are too large for a page (Flink's ``LargeRecordHandler``)."""

from __future__ import annotations

import struct
from pathlib import Path

from keyedstate.errors import RunFileError
from keyedstate.memory.sorting.run_files import SpillFile, checksum

#: The bytes of a record and their checksum.
_HEAD = struct.Struct(">QI")


class LargeRecords:
    """Records in a file, found by their offset; the file is made with the first of them.

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
