"""A local disk on which the writing of some files waits, or fails, as a test wants."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs


class Gate:
    """Where the writers of files with a word in their path stop until it is opened, or until it breaks."""

    def __init__(self, word: str) -> None:
        self.word = word
        self._open = threading.Event()
        self._open.set()
        self.broken: OSError | None = None

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        assert self._open.wait(60), "nobody has opened the gate"
        if self.broken is not None:
            raise self.broken


class _Stream:
    """A Python file over pyarrow's, whose closing, which makes it count, passes the gate."""

    def __init__(self, stream: Any, gate: Gate) -> None:
        self._stream = stream
        self._gate = gate
        self.closed = False

    def write(self, data: bytes) -> int:
        self._gate.pass_through()
        return int(self._stream.write(data))

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.close()


def gated(gate: Gate) -> pafs.FileSystem:
    """Return the local disk with a gate."""
    disk = pafs.LocalFileSystem()

    def open_output(self: Any, path: str, metadata: Any) -> Any:
        stream = disk.open_output_stream(path)
        return pa.PythonFile(_Stream(stream, gate), "w") if gate.word in path else stream

    methods: dict[str, Any] = {
        "get_type_name": lambda self: "gated",
        "normalize_path": lambda self, path: path,
        "get_file_info": lambda self, paths: disk.get_file_info(paths),
        "get_file_info_selector": lambda self, selector: disk.get_file_info(selector),
        "create_dir": lambda self, path, recursive: disk.create_dir(path, recursive=recursive),
        "delete_dir": lambda self, path: disk.delete_dir(path),
        "delete_dir_contents": lambda self, path, missing_dir_ok: disk.delete_dir_contents(path),
        "delete_root_dir_contents": lambda self: None,
        "delete_file": lambda self, path: disk.delete_file(path),
        "move": lambda self, old, new: disk.move(old, new),
        "copy_file": lambda self, old, new: disk.copy_file(old, new),
        "open_input_stream": lambda self, path: disk.open_input_stream(path),
        "open_input_file": lambda self, path: disk.open_input_file(path),
        "open_output_stream": open_output,
        "open_append_stream": lambda self, path, metadata: disk.open_append_stream(path),
    }
    handler = type("Gated", (pafs.FileSystemHandler,), methods)()
    return pafs.PyFileSystem(handler)
