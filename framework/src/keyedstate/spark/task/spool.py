"""Arrow batches that wait: in memory up to a limit, then in a file on the task's local disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import pyarrow as pa

#: Bytes of a task's batches that wait in memory.
MEMORY_BYTES = 32 << 20


class BatchSpool(AbstractContextManager["BatchSpool"]):
    """A queue of record batches of one schema: `add` all, then `drain`.

    A file is in the folder, by default the system's temporary one. It has no name, so nothing is left of it
    when the process is killed.
    """

    def __init__(self, folder: Path | None, memory_bytes: int = MEMORY_BYTES) -> None:
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._file: IO[bytes] | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def __exit__(self, *error: object) -> None:
        self._waiting.clear()
        if self._file is not None:
            self._file.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep a batch."""
        if self._writer is None and self._memory_bytes >= batch.nbytes:
            self._memory_bytes -= batch.nbytes
            self._waiting.append(batch)
            return
        if self._writer is None:
            self._file = tempfile.TemporaryFile(dir=self._folder, prefix="keyedstate-")  # noqa: SIM115 - closed by __exit__
            options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
            self._writer = pa.ipc.new_stream(self._file, batch.schema, options=options)
        self._writer.write_batch(batch)

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yield every batch once, in the order in which they were added."""
        self._waiting.reverse()
        while self._waiting:
            yield self._waiting.pop()
        if self._file is not None and self._writer is not None:
            self._writer.close()
            self._file.seek(0)
            yield from pa.ipc.open_stream(self._file, options=pa.ipc.IpcReadOptions(use_threads=False))
