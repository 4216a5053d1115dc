"""The scheme ``distant://``: a folder of the local disk as an object store, whose requests are counted.

A request is one call that waits for the store: a file is opened to be read, written, looked up or deleted, or
a folder is listed.  `CriticalPath` tells how many of them an epoch waits for one after the other.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from keyedstate.hooks import hookimpl

SCHEME = "distant://"


class Requests:
    """The requests of this process to the store.

    Attributes
    ----------
    delay_s : float
        How long each of them takes.
    made : list of (int, str, str)
        How many requests had to end before this one began, with itself; what it did; the path.
    fails : callable
        Is called with what a request does and its path; what it raises, the request raises.
    """

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.made: list[tuple[int, str, str]] = []
        self.fails: Callable[[str, str], None] = lambda what, path: None
        self._of_thread = threading.local()

    @property
    def depth(self) -> int:
        """How many requests in a row this thread has waited for."""
        return getattr(self._of_thread, "depth", 0)

    @depth.setter
    def depth(self, depth: int) -> None:
        self._of_thread.depth = depth

    def make(self, what: str, path: str) -> None:
        self.fails(what, path)
        self.depth += 1
        self.made.append((self.depth, what, path))
        if self.delay_s:
            time.sleep(self.delay_s)


REQUESTS = Requests()


@contextlib.contextmanager
def critical_path() -> Iterator[Requests]:
    """Give the requests from now on, each with its depth.

    A thread of a pool begins at the depth of the one that submits, which takes over that of its result.
    """
    submit, result = ThreadPoolExecutor.submit, Future.result
    REQUESTS.made.clear()
    REQUESTS.depth = 0

    def submit_with_depth(self: Any, function: Any, /, *arguments: Any, **named: Any) -> Any:
        depth = REQUESTS.depth

        def running() -> Any:
            REQUESTS.depth = depth
            try:
                return function(*arguments, **named)
            finally:
                future.depth = REQUESTS.depth

        # The function must not run before its future has a name.
        begun = threading.Event()
        future = submit(self, lambda: begun.wait() and running())
        begun.set()
        return future

    def result_with_depth(self: Any, timeout: float | None = None) -> Any:
        try:
            return result(self, timeout)
        finally:
            REQUESTS.depth = max(REQUESTS.depth, getattr(self, "depth", 0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "submit", submit_with_depth)
        patch.setattr(Future, "result", result_with_depth)
        yield REQUESTS


class DistantHandler(pafs.FileSystemHandler):
    """Passes all calls on to the local disk; folders exist where files do."""

    def __init__(self) -> None:
        self._files = pafs.LocalFileSystem()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DistantHandler)

    def get_type_name(self) -> str:
        # A file is visible when its stream is closed, as in an object store.
        return "fsspec+s3"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        for path in paths:
            REQUESTS.make("look up", path)
        return self._files.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        REQUESTS.make("list", selector.base_dir)
        return self._files.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        raise NotImplementedError

    def delete_dir(self, path: str) -> None:
        REQUESTS.make("delete", path)
        self._files.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        REQUESTS.make("delete", path)
        self._files.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_input_stream(self, path: str) -> pa.NativeFile:
        REQUESTS.make("read", path)
        return self._files.open_input_stream(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        REQUESTS.make("read", path)
        return self._files.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Mapping[str, str]) -> pa.NativeFile:
        return pa.PythonFile(_Upload(path), mode="w")

    def open_append_stream(self, path: str, metadata: Mapping[str, str]) -> pa.NativeFile:
        raise NotImplementedError


class _Upload:
    """Writes a file in one request when it is closed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._pieces: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        REQUESTS.make("write", self._path)
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        unfinished = f"{self._path}.{threading.get_ident()}.unfinished"
        with open(unfinished, "wb") as file:
            file.writelines(self._pieces)
        os.replace(unfinished, self._path)


@hookimpl
def keyedstate_checkpoint_storage(uri: str, options: Mapping[str, str]) -> tuple[pafs.FileSystem, str] | None:
    if not uri.startswith(SCHEME):
        return None
    return pafs.PyFileSystem(DistantHandler()), uri.removeprefix(SCHEME)
