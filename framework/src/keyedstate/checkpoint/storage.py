"""Where checkpoints are kept: any file system of pyarrow, seen from one root folder.

On a local disk `CheckpointStorage.write_atomic` is a temporary file, synced and renamed, and what was
written is on the disk when it returns.  On every other file system one output stream is opened, written and
closed, and the file appears with the close: that is how object stores publish, and all-or-nothing there.
A file system that shows half-written files (HDFS does) may show half of one to a reader or keep it after a
crash; every file of a checkpoint carries checksums, so such a half is found and never believed.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from keyedstate.checkpoint.errors import (
    MissingFileError,
    StorageError,
    UnknownSchemeError,
    UnsafePathError,
)

T = TypeVar("T")
R = TypeVar("R")

KNOWN_SCHEMES = ("file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
# At least two characters: a single letter is a drive.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_PASSWORD = re.compile(
    r"(//[^/@:]*:)[^/@]*@|([?&][^=&]*(?:key|secret|token|password|signature)[^=&]*=)[^&]*", re.IGNORECASE
)
_WRITE_BUFFER_BYTES = 1 << 20
#: Requests that are under way at once where each of them is a round trip.
_REMOTE_REQUESTS = 16


@dataclass(frozen=True)
class CheckpointStorage:
    """A folder of a file system; paths are relative to it, with ``/`` between their parts.

    Attributes
    ----------
    filesystem : pyarrow.fs.FileSystem
    root : str
        The folder, as the file system names it.
    uri : str
        What `open` takes to get the same storage, in another process too: a local folder's absolute path, or
        the URI, which may hold credentials; `location` hides them.

    Notes
    -----
    Opening creates nothing; folders come into being with the first file that is written into them.
    """

    filesystem: pafs.FileSystem
    root: str
    uri: str

    @classmethod
    def open(cls, uri: str | os.PathLike[str]) -> CheckpointStorage:
        """Open a local path or a URI such as ``s3://bucket/folder``.

        Raises
        ------
        UnknownSchemeError
            Where no file system has the URI's scheme.
        StorageError
            Where the file system cannot be opened.
        """
        text = os.fspath(uri)
        scheme = _SCHEME.match(text)
        if scheme is None:
            path = os.path.abspath(text)
            return cls(pafs.LocalFileSystem(), path, path)
        try:
            filesystem, root = pafs.FileSystem.from_uri(text)
        except (OSError, ImportError, ValueError, pa.ArrowException) as error:
            if scheme[1].lower() not in KNOWN_SCHEMES:
                raise UnknownSchemeError(_without_password(text), scheme[1], KNOWN_SCHEMES) from error
            raise StorageError(_without_password(text), "open", _reason(error)) from error
        if isinstance(filesystem, pafs.LocalFileSystem):
            root = text = os.path.abspath(root)
        return cls(filesystem, root, text)

    @property
    def is_local(self) -> bool:
        """Whether the files lie on a disk that this process reaches by path."""
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    def child(self, *parts: str) -> CheckpointStorage:
        """Return the storage whose root is a folder below this one."""
        path = "/".join(parts)
        address, mark, query = self.uri.partition("?")
        return CheckpointStorage(self.filesystem, self._resolve(path), f"{_join(address, path)}{mark}{query}")

    def location(self, path: str = "") -> str:
        """Return the address of a file for people: no options, no passwords."""
        return _join(_without_password(self.uri).partition("?")[0], path)

    def write_atomic(self, path: str, data: bytes) -> None:
        """Write a small file so that a reader sees all of it or nothing, replacing one that is there."""
        target = self._resolve(path)
        with self._errors("write", path):
            if self.is_local:
                _write_local(target, data)
                return
            with self._remote_output(target) as stream:
                stream.write(data)

    def read(self, path: str) -> bytes:
        """Return the content of a small file; raises `MissingFileError` where there is none."""
        with self._errors("read", path), self.filesystem.open_input_stream(self._resolve(path)) as stream:
            return bytes(stream.read())

    def open_output(self, path: str) -> OutputFile:
        """Begin a new file; it counts as written when `OutputFile.close` has returned."""
        target = self._resolve(path)
        with self._errors("write", path):
            if self.is_local:
                _make_folder(os.path.dirname(target))
                return OutputFile(self, path, open(target, "xb", buffering=_WRITE_BUFFER_BYTES))
            return OutputFile(self, path, self._remote_output(target))

    def open_input(self, path: str) -> InputFile:
        """Open a file for reading at any place; raises `MissingFileError` where there is none."""
        with self._errors("open", path):
            stream = self.filesystem.open_input_file(self._resolve(path))
            return InputFile(self, path, stream, stream.size())

    def list(self, path: str = "") -> Sequence[str]:
        """Return the names of the files and folders in a folder, sorted; none where it does not exist."""
        target = self._resolve(path)
        with self._errors("list", path):
            if self.is_local:
                # pyarrow looks twice, and fails for a folder that another task makes, or a file that one
                # renames, in between.
                try:
                    return sorted(os.listdir(target))
                except FileNotFoundError:
                    return []
            selector = pafs.FileSelector(target, recursive=False, allow_not_found=True)
            return sorted(info.base_name for info in self.filesystem.get_file_info(selector))

    def files(self, path: str = "") -> Sequence[str]:
        """Return the paths of all files in a folder and below it, sorted; none where it does not exist."""
        target = self._resolve(path)
        with self._errors("list", path):
            if self.is_local:
                walked = [
                    os.path.join(folder, name) for folder, _, names in os.walk(target) for name in names
                ]
                return sorted(
                    _join(path, os.path.relpath(name, target).replace(os.sep, "/")) for name in walked
                )
            selector = pafs.FileSelector(target, recursive=True, allow_not_found=True)
            infos = self.filesystem.get_file_info(selector)
            found = [info.path for info in infos if info.type == pafs.FileType.File]
            return sorted(_join(path, name[len(target) :].lstrip("/")) for name in found)

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder."""
        with self._errors("look up", path):
            info = self.filesystem.get_file_info(self._resolve(path))
            return bool(info.type != pafs.FileType.NotFound)

    def delete_file(self, path: str) -> None:
        """Delete a file; that it is missing is fine."""
        with contextlib.suppress(MissingFileError), self._errors("delete", path):
            self.filesystem.delete_file(self._resolve(path))

    def delete_dir(self, path: str) -> None:
        """Delete a folder and everything in it; that it is missing is fine."""
        with contextlib.suppress(MissingFileError), self._errors("delete", path):
            self.filesystem.delete_dir(self._resolve(path))

    def for_each(self, function: Callable[[T], R], items: Sequence[T]) -> Sequence[R]:
        """Return ``function(item)`` for every item in order; several at once where each is a round trip."""
        if self.is_local or len(items) < 2:
            return [function(item) for item in items]
        with ThreadPoolExecutor(min(_REMOTE_REQUESTS, len(items)), "keyedstate-storage") as pool:
            return tuple(pool.map(function, items))

    def _resolve(self, path: str) -> str:
        if path and any(part in ("", ".", "..") or "\0" in part for part in path.split("/")):
            raise UnsafePathError(path, self.location())
        return _join(self.root, path)

    def _remote_output(self, target: str) -> Any:
        try:
            return self.filesystem.open_output_stream(target, buffer_size=_WRITE_BUFFER_BYTES)
        except FileNotFoundError:
            # Object stores have no folders to make; the others say so this way.
            self.filesystem.create_dir(target.rpartition("/")[0], recursive=True)
            return self.filesystem.open_output_stream(target, buffer_size=_WRITE_BUFFER_BYTES)

    @contextlib.contextmanager
    def _errors(self, operation: str, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise MissingFileError(self.location(path), operation) from error
        except (OSError, pa.ArrowException) as error:
            raise StorageError(self.location(path), operation, _reason(error)) from error


class OutputFile:
    """A file that is being written; nothing may rely on it before `close` has returned."""

    def __init__(self, storage: CheckpointStorage, path: str, stream: Any) -> None:
        self._storage = storage
        self._path = path
        self._stream = stream

    def write(self, data: bytes) -> None:
        """Append bytes."""
        with self._storage._errors("write", self._path):
            self._stream.write(data)

    def close(self) -> None:
        """Publish the file; on a local disk it is on the disk afterwards."""
        with self._storage._errors("write", self._path):
            if self._storage.is_local:
                self._stream.flush()
                os.fsync(self._stream.fileno())
            self._stream.close()
            if self._storage.is_local:
                _sync_folder(os.path.dirname(self._stream.name))

    def abort(self) -> None:
        """Give the file up and delete what was written; errors of that are ignored."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self._stream.close()
        with contextlib.suppress(StorageError):
            self._storage.delete_file(self._path)


class InputFile:
    """An open file that is read in ranges, by one thread.

    Attributes
    ----------
    size : int
        Bytes in the file when it was opened.
    """

    def __init__(self, storage: CheckpointStorage, path: str, stream: Any, size: int) -> None:
        self._storage = storage
        self._path = path
        self._stream = stream
        self.size = size

    def read_at(self, offset: int, length: int) -> pa.Buffer:
        """Return up to `length` bytes from `offset`; fewer only at the end of the file."""
        with self._storage._errors("read", self._path):
            self._stream.seek(offset)
            return self._stream.read_buffer(length)

    def close(self) -> None:
        """Close the file; again does nothing."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self._stream.close()


def _join(root: str, path: str) -> str:
    if not path or not root:
        return root or path
    return root + path if root.endswith("/") else f"{root}/{path}"


def _without_password(uri: str) -> str:
    return _PASSWORD.sub(lambda found: f"{found[1]}***@" if found[1] else f"{found[2]}***", uri)


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(_without_password(text).split()).rstrip(".")


def _write_local(target: str, data: bytes) -> None:
    folder, name = os.path.split(target)
    _make_folder(folder)
    temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def _make_folder(folder: str) -> None:
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    _make_folder(parent)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    _sync_folder(parent)


def _sync_folder(folder: str) -> None:
    # A rename or a new file is durable only with the folder that names it.
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder above ours that may be passed through and not be read
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
