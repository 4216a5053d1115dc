"""The storage of checkpoints: any file system of pyarrow, seen from one root folder.

How `CheckpointStorage.write_atomic` publishes depends on the file system:

- a local disk: a temporary file, synced and renamed; it is on the disk when the call returns;
- an object store: one object, which appears as a whole when its stream is closed;
- every other one (HDFS and those of plugins) may show a file while it is written: a temporary name in the
  same folder, then a move.

Data files are written under their own unique names: nothing references them before they are complete.  Every
request is sent again after a transient error (`keyedstate.checkpoint.storage.retry`), except those of a data
file too large for memory: how much of it the storage has is unknown, so its writer has to start again.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from keyedstate.checkpoint.storage import local_disk
from keyedstate.checkpoint.storage.retry import DEFAULT, RetryPolicy, is_transient
from keyedstate.checkpoint.storage.schemes import (
    is_python,
    open_filesystem,
    publishes_with_close,
    reason_of,
    scheme_of,
    without_password,
)
from keyedstate.errors import MissingFileError, StorageError, UnsafeNameError
from keyedstate.options import CHECKPOINT_PERMISSIONS, Configuration

T = TypeVar("T")
R = TypeVar("R")

#: Where something is stored: a local path, a URI, or a storage whose root it is.
Location: TypeAlias = "str | os.PathLike[str] | CheckpointStorage"

_WRITE_BUFFER_BYTES = 1 << 20
_PIECE_BYTES = 4 << 20
#: A remote file of at most this size is kept in memory and sent in one request.
_BUFFERED_OUTPUT_BYTES = 8 << 20
#: Unsent bytes of a larger one: pyarrow uploads in the background without a limit.
_UNSENT_OUTPUT_BYTES = 32 << 20
#: A remote file of at most this size is read in one request.
_BUFFERED_INPUT_BYTES = 1 << 20
#: How often a folder that changes meanwhile is listed again.
_LISTINGS = 10
#: Concurrent requests where each of them is a round trip.
_REMOTE_REQUESTS = 16


@dataclass(frozen=True)
class StoredFile:
    """A name in a folder, as the file system describes it."""

    name: str
    is_folder: bool
    #: 0 for a folder.
    bytes: int
    #: Milliseconds since 1970 UTC; None where the file system has none, or 0.
    modified_ms: int | None


@dataclass(frozen=True)
class CheckpointStorage:
    """A folder of a file system; paths are relative to it, with ``/`` between their parts.

    Opening creates nothing; the first file in a folder creates it.
    """

    filesystem: pafs.FileSystem
    #: The folder, as the file system names it.
    root: str
    #: What `open` takes to get the same storage, in another process too: a local folder's absolute path, or
    #: the URI, which may hold credentials; `location` hides them.
    uri: str
    #: What is done after a transient error.
    retry: RetryPolicy = DEFAULT
    #: Of new files and folders on a local disk.
    permissions: local_disk.Permissions = local_disk.OWNER_ONLY

    def __repr__(self) -> str:
        return f"CheckpointStorage({self.location()!r})"

    @classmethod
    def open(cls, uri: str | os.PathLike[str], config: Configuration | None = None) -> CheckpointStorage:
        """Open a local path or a URI such as ``s3://bucket/folder``.

        The configuration, by default that of the environment, has ``checkpoint.permissions``, ``storage.*``
        and ``plugins.*``.

        Raises
        ------
        UnknownSchemeError
            Where no file system, pyarrow's or a plugin's, has the URI's scheme.
        StorageError
            Where the file system cannot be opened.
        """
        config = Configuration(environ=os.environ) if config is None else config
        retry, permissions = RetryPolicy.of(config), local_disk.PERMISSIONS[config[CHECKPOINT_PERMISSIONS]]
        text = os.fspath(uri)
        scheme = scheme_of(text)
        if scheme is None:
            path = os.path.abspath(text)
            return cls(pafs.LocalFileSystem(), path, path, retry, permissions)
        filesystem, root = open_filesystem(text, config)
        if isinstance(filesystem, pafs.LocalFileSystem):
            root = os.path.abspath(root)
            if scheme == "file":
                text = root
        return cls(filesystem, root, text, retry, permissions)

    @classmethod
    def at(cls, location: Location) -> CheckpointStorage:
        """Return the storage at a location, which may be one already; raises as `open`."""
        return location if isinstance(location, CheckpointStorage) else cls.open(location)

    @property
    def is_local(self) -> bool:
        """Whether this process reaches the files by path."""
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    def child(self, *parts: str) -> CheckpointStorage:
        """Return the storage whose root is a folder below this one."""
        path = "/".join(parts)
        address, mark, query = self.uri.partition("?")
        return replace(self, root=self._resolve(path), uri=f"{_join(address, path)}{mark}{query}")

    def parent(self) -> tuple[CheckpointStorage, str]:
        """Return the storage of the folder above, and the name of this one in it."""
        address, mark, query = self.uri.partition("?")
        above = address.rstrip("/").rpartition("/")[0]
        root, _, name = self.root.rstrip("/").rpartition("/")
        if self.is_local:
            root, above = root or "/", above or "/"
        return replace(self, root=root, uri=f"{above}{mark}{query}"), name

    def location(self, path: str = "") -> str:
        """Return the address of a file for people: no options, no passwords."""
        return _join(without_password(self.uri).partition("?")[0], path)

    def write_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Write a small file so that a reader sees all of it or nothing; replaces an existing one.

        On a local disk a crash of the machine may lose it, unless `durable`; a crash of the process does not.
        """
        target = self._resolve(path)
        if self.is_local:
            how = self.permissions
            self._run("write", path, lambda: local_disk.write_atomic(target, data, how, durable=durable))
        elif publishes_with_close(self.filesystem):
            self._run("write", path, lambda: self._write(target, data))
        else:
            self._run("write", path, lambda: self._write_and_move(target, data))

    def read(self, path: str) -> bytes:
        """Return the content of a small file; raises `MissingFileError` where it does not exist."""
        target = self._resolve(path)

        def read() -> bytes:
            with self.filesystem.open_input_stream(target) as stream:
                return bytes(stream.read())

        return self._run("read", path, read)

    def open_output(self, path: str) -> OutputFile:
        """Create a file; it counts as written when `OutputFile.close` has returned."""
        return OutputFile(self, path)

    def open_input(self, path: str) -> InputFile:
        """Open a file for reading in ranges; raises `MissingFileError` where it does not exist."""
        return InputFile(self, path)

    def list(self, path: str = "") -> Sequence[str]:
        """Return the names of the files and folders in a folder, sorted; none where it does not exist."""
        target = self._resolve(path)

        def names() -> Sequence[str]:
            if self.is_local:
                # pyarrow looks twice, and fails for a folder that another task makes, or a file that one
                # renames, in between.
                try:
                    return sorted(os.listdir(target))
                except FileNotFoundError:
                    return []
            return sorted(info.base_name for info in self._infos(target, recursive=False))

        return self._run("list", path, names)

    def files(self, path: str = "") -> Sequence[str]:
        """Return the paths of all files in a folder and below it, sorted; none where it does not exist."""
        target = self._resolve(path)

        def paths() -> Sequence[str]:
            if self.is_local:
                walked = [
                    os.path.join(folder, name) for folder, _, names in os.walk(target) for name in names
                ]
                return sorted(
                    _join(path, os.path.relpath(name, target).replace(os.sep, "/")) for name in walked
                )
            infos = self._infos(target, recursive=True)
            found = [info.path for info in infos if info.type == pafs.FileType.File]
            return sorted(_join(path, name[len(target) :].lstrip("/")) for name in found)

        return self._run("list", path, paths)

    def describe(self, path: str = "") -> Sequence[StoredFile]:
        """Return the names of `list` with sizes and times; may omit files that are deleted meanwhile."""
        target = self._resolve(path)

        def infos() -> Sequence[pafs.FileInfo]:
            if self.is_local:
                # As in `list`: pyarrow fails for what goes while it looks.
                return list(self.filesystem.get_file_info([_join(target, name) for name in self.list(path)]))
            selector = pafs.FileSelector(target, recursive=False, allow_not_found=True)
            return list(self.filesystem.get_file_info(selector))

        found = [info for info in self._run("list", path, infos) if info.type != pafs.FileType.NotFound]
        return sorted(map(_stored_file, found), key=lambda file: file.name)

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return bool(self._info(path).type != pafs.FileType.NotFound)

    def modified_ms(self, path: str) -> int | None:
        """Return when a file was written, by the storage's clock; None where it has none."""
        return _stored_file(self._info(path)).modified_ms

    def _info(self, path: str) -> pafs.FileInfo:
        target = self._resolve(path)
        return self._run("look up", path, lambda: self.filesystem.get_file_info(target))

    def delete_file(self, path: str) -> None:
        """Delete a file, if it exists."""
        target = self._resolve(path)
        with contextlib.suppress(MissingFileError):
            self._run("delete", path, lambda: self.filesystem.delete_file(target))

    def move_file(self, path: str, target: str) -> None:
        """Rename a file, replacing an existing one; not retried after an error."""
        old, new = self._resolve(path), self._resolve(target)

        def move() -> None:
            self.filesystem.move(old, new)
            if self.is_local:
                local_disk.sync_folder(os.path.dirname(new))

        self._run("write", target, move, once=True)

    def delete_dir(self, path: str) -> None:
        """Delete a folder and everything in it, if it exists."""
        target = self._resolve(path)
        with contextlib.suppress(MissingFileError):
            self._run("delete", path, lambda: self.filesystem.delete_dir(target))

    def for_each(self, function: Callable[[T], R], items: Sequence[T]) -> Sequence[R]:
        """Return ``function(item)`` for every item in order; several at once where each is a round trip."""
        if self.is_local or len(items) < 2:
            return [function(item) for item in items]
        with ThreadPoolExecutor(min(_REMOTE_REQUESTS, len(items)), "keyedstate-storage") as pool:
            return tuple(pool.map(function, items))

    def begin(self, function: Callable[[], R]) -> Callable[[], R]:
        """Begin a request; return what waits for its end, and returns its result or raises its error.

        Where it is a round trip, it runs concurrently with what follows, else at once.
        """
        if self.is_local:
            result = function()
            return lambda: result
        pool = ThreadPoolExecutor(1, "keyedstate-storage")
        running = pool.submit(function)
        pool.shutdown(wait=False)
        return running.result

    def _resolve(self, path: str) -> str:
        if path and any(part in ("", ".", "..") or "\0" in part for part in path.split("/")):
            raise UnsafeNameError(
                f"path below {self.location()}", path, "plain names, without '.', '..' and empty parts"
            )
        return _join(self.root, path)

    def _remote_output(self, target: str) -> Any:
        try:
            # Not buffered by pyarrow: what it buffers cannot be waited for.
            return self.filesystem.open_output_stream(target)
        except FileNotFoundError:
            # Object stores have no folders; other file systems report a missing one like this.
            self.filesystem.create_dir(target.rpartition("/")[0], recursive=True)
            return self.filesystem.open_output_stream(target)

    def _write(self, target: str, data: bytes) -> None:
        with self._remote_output(target) as stream:
            stream.write(data)

    def _write_and_move(self, target: str, data: bytes) -> None:
        folder, slash, name = target.rpartition("/")
        # Another name in each attempt: where the answer to a move was lost, a second one has no source.
        temporary = f"{folder}{slash}{local_disk.temporary_name(name)}"
        try:
            self._write(temporary, data)
            self.filesystem.move(temporary, target)
        except BaseException:
            with contextlib.suppress(Exception):
                self.filesystem.delete_file(temporary)
            raise

    def _infos(self, target: str, *, recursive: bool) -> Any:
        selector = pafs.FileSelector(target, recursive=recursive, allow_not_found=True)
        for _ in range(_LISTINGS):
            # That the folder itself is missing is no error: it changed while it was listed.
            with contextlib.suppress(FileNotFoundError):
                return self.filesystem.get_file_info(selector)
        return self.filesystem.get_file_info(selector)

    def _run(self, operation: str, path: str, function: Callable[[], T], *, once: bool = False) -> T:
        """Return ``function()``, retried after transient errors unless `once`; raises a `StorageError`."""
        try:
            if once:
                return function()
            return self.retry.call(function, f"{operation} {self.location(path)}")
        except FileNotFoundError as error:
            raise MissingFileError(self.location(path), operation) from error
        except Exception as error:
            # The file system of a plugin may raise whatever its client raises.
            if not isinstance(error, (OSError, pa.ArrowException)) and not is_python(self.filesystem):
                raise
            reason, transient = reason_of(error), is_transient(error)
            if transient and not once and self.retry.retries:
                reason += f" (tried {self.retry.retries + 1} times)"
            raise StorageError(
                self.location(path), operation, reason, restartable=transient and once
            ) from error


class OutputFile:
    """A file that is being written; nothing may rely on it before `close` has returned.

    Elsewhere than on a local disk it stays in memory up to 8 MiB: a smaller file is sent in one request, and
    sent again after a transient error.
    """

    def __init__(self, storage: CheckpointStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._target = storage._resolve(path)
        self._stream: Any = None
        self._buffer = io.BytesIO()
        self._unsent_bytes = 0
        # Whether there may be something of the file in the storage.
        self._begun = storage.is_local
        if storage.is_local:
            self._stream = storage._run(
                "write",
                path,
                lambda: local_disk.create(self._target, storage.permissions, _WRITE_BUFFER_BYTES),
            )

    def write(self, data: bytes) -> None:
        """Append bytes."""
        if self._storage.is_local:
            self._storage._run("write", self._path, lambda: self._stream.write(data), once=True)
            return
        self._buffer.write(data)
        if self._buffer.tell() < (_BUFFERED_OUTPUT_BYTES if self._stream is None else _WRITE_BUFFER_BYTES):
            return
        if self._stream is None:
            self._begun = True
            storage = self._storage
            self._stream = storage._run("write", self._path, lambda: storage._remote_output(self._target))
        self._storage._run("write", self._path, self._send_buffer, once=True)

    def close(self) -> None:
        """Publish the file; on a local disk it is durable afterwards."""
        if self._stream is None:
            self._begun = True
            data = self._release()
            self._storage._run("write", self._path, lambda: self._storage._write(self._target, data))
        else:
            self._storage._run("write", self._path, self._close, once=True)

    def abort(self) -> None:
        """Delete what was written; errors of that are suppressed."""
        self._release()
        if self._stream is not None:
            # pyarrow has no other way to give a stream up.
            with contextlib.suppress(Exception):
                self._stream.close()
        if self._begun:
            with contextlib.suppress(StorageError):
                self._storage.delete_file(self._path)

    def _send_buffer(self) -> None:
        data = self._release()
        self._stream.write(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes >= _UNSENT_OUTPUT_BYTES:
            self._stream.flush()
            self._unsent_bytes = 0

    def _release(self) -> bytes:
        data, self._buffer = self._buffer.getvalue(), io.BytesIO()
        return data

    def _close(self) -> None:
        if self._buffer.tell():
            self._send_buffer()
        if self._storage.is_local:
            self._stream.flush()
            os.fsync(self._stream.fileno())
        self._stream.close()
        if self._storage.is_local:
            local_disk.sync_folder(os.path.dirname(self._target))


class InputFile:
    """An open file of `size` bytes that one thread reads in ranges."""

    def __init__(self, storage: CheckpointStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._target = storage._resolve(path)
        self._stream: Any = None
        self._buffer: pa.Buffer | None = None
        self._closed = False
        self.size: int = storage._run("open", path, lambda: self._opened().size())

    def read_at(self, offset: int, length: int) -> pa.Buffer:
        """Return up to `length` bytes from `offset`; fewer only at the end of the file."""
        if self._storage.is_local or self.size > _BUFFERED_INPUT_BYTES:
            return self._storage._run("read", self._path, lambda: self._read(offset, length))
        if self._buffer is None:
            self._buffer = self._storage._run("read", self._path, lambda: self._read(0, self.size))
        start = min(offset, self._buffer.size)
        return self._buffer.slice(start, max(0, min(length, self._buffer.size - start)))

    def pieces(self) -> Iterator[pa.Buffer]:
        """Yield the file in pieces of at most 4 MiB."""
        for start in range(0, self.size, _PIECE_BYTES):
            yield self.read_at(start, _PIECE_BYTES)

    def __enter__(self) -> InputFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; again does nothing."""
        self._closed = True
        self._buffer = None
        self._drop()

    def _opened(self) -> Any:
        if self._closed:
            raise ValueError("the file is closed")
        if self._stream is None:
            self._stream = self._storage.filesystem.open_input_file(self._target)
        return self._stream

    def _read(self, offset: int, length: int) -> pa.Buffer:
        try:
            stream = self._opened()
            stream.seek(offset)
            return stream.read_buffer(length)
        except Exception:
            # A broken stream is unreliable: the next attempt opens the file again.
            self._drop()
            raise

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(Exception):
                stream.close()


def _stored_file(info: pafs.FileInfo) -> StoredFile:
    modified = info.mtime_ns // 1_000_000 if info.mtime_ns else None
    return StoredFile(info.base_name, info.type == pafs.FileType.Directory, info.size or 0, modified)


def _join(root: str, path: str) -> str:
    if not path or not root:
        return root or path
    return root + path if root.endswith("/") else f"{root}/{path}"
