"""A file system over a local folder that shows files while they are written, and fails on demand."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.fs as pafs

from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.checkpoint.storage.retry import RetryPolicy

#: Called with the operation and the path below the folder; what it raises, the operation raises.
Watcher = Callable[[str, str], None]


class UnrulyHandler(pafs.FileSystemHandler):
    """Hands everything on to the local disk, without any care of its own, and tells a watcher first.

    Attributes
    ----------
    calls : list of (str, str)
        Operations and paths so far.
    """

    def __init__(self, folder: Path) -> None:
        self.calls: list[tuple[str, str]] = []
        self.watcher: Watcher = lambda operation, path: None
        self._files = pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())
        self._folder = folder

    def seen(self, operation: str, path: str) -> None:
        self.calls.append((operation, path))
        self.watcher(operation, path)

    def fail(self, operation: str, errors: Sequence[Exception], part: str = "") -> None:
        """Let the next calls of an operation, on paths that contain a part, fail one after the other."""
        waiting = list(errors)
        lock = threading.Lock()

        def watcher(found: str, path: str) -> None:
            with lock:
                if found == operation and part in path and waiting:
                    raise waiting.pop(0)

        self.watcher = watcher

    def count(self) -> dict[str, int]:
        counts: defaultdict[str, int] = defaultdict(int)
        for operation, _ in self.calls:
            counts[operation] += 1
        return dict(counts)

    def get_type_name(self) -> str:
        return "unruly"

    def get_file_info(self, paths: list[str]) -> Any:
        for path in paths:
            self.seen("look up", path)
        return self._files.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        self.seen("list", selector.base_dir)
        return self._files.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.seen("create folder", path)
        self._files.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self.seen("delete folder", path)
        self._files.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        self._files.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self.seen("delete", path)
        self._files.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self.seen("move", dest)
        self._files.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        self._files.copy_file(src, dest)

    def open_input_stream(self, path: str) -> Any:
        self.seen("open", path)
        return pa.PythonFile(_Watched(self, path, (self._folder / path).open("rb")), mode="r")

    def open_input_file(self, path: str) -> Any:
        return self.open_input_stream(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self.seen("create", path)
        return pa.PythonFile(_Watched(self, path, (self._folder / path).open("wb", buffering=0)), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError

    def normalize_path(self, path: str) -> str:
        return path


class _Watched:
    def __init__(self, handler: UnrulyHandler, path: str, file: object) -> None:
        self._handler = handler
        self._path = path
        self._file = cast(BinaryIO, file)

    def read(self, size: int = -1) -> bytes:
        self._handler.seen("read", self._path)
        return self._file.read(size)

    def write(self, data: bytes) -> int:
        self._handler.seen("write", self._path)
        return self._file.write(data)

    def close(self) -> None:
        if not self._file.closed:
            self._file.close()
            self._handler.seen("close", self._path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class UnrulyStorage:
    """A storage over an `UnrulyHandler`.

    Attributes
    ----------
    handler : UnrulyHandler
    storage : CheckpointStorage
        Waits for nothing between two attempts; `pauses` says how long it would have.
    """

    def __init__(self, folder: Path, retries: int = 5) -> None:
        folder.mkdir(exist_ok=True)
        self.pauses: list[float] = []
        self.handler = UnrulyHandler(folder)
        retry = RetryPolicy(retries, 200, self.pauses.append, lambda: 0.0)
        filesystem = pafs.PyFileSystem(self.handler)
        self.storage = CheckpointStorage(filesystem, "state", "unruly:state", retry)
