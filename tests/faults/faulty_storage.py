"""The scheme ``faulty://``: a folder of the local disk as a distant file system, with faults at its requests.

It has no locks, shows a file while it is written, and renames in one step: HDFS, more or less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from faults.injection import reached
from keyedstate.hooks import hookimpl

SCHEME = "faulty://"


class FaultyHandler(pafs.FileSystemHandler):
    """Hands everything on to the local disk, and tells of each request first."""

    def __init__(self) -> None:
        self._files = pafs.LocalFileSystem()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FaultyHandler)

    def get_type_name(self) -> str:
        return "faulty"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        return self._files.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        reached("list", selector.base_dir)
        return self._files.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._files.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        reached("delete", path)
        self._files.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        self._files.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        reached("delete", path)
        self._files.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        reached("publish", dest, temporary=src)
        self._files.move(src, dest)
        reached("written", dest)

    def copy_file(self, src: str, dest: str) -> None:
        self._files.copy_file(src, dest)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        reached("read", path)
        return self._files.open_input_stream(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        reached("read", path)
        return self._files.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Mapping[str, str]) -> pa.NativeFile:
        stream = self._files.open_output_stream(path)
        if not path.rpartition("/")[2].startswith("."):
            reached("create", path)
        return stream

    def open_append_stream(self, path: str, metadata: Mapping[str, str]) -> pa.NativeFile:
        return self._files.open_append_stream(path)


@hookimpl
def keyedstate_checkpoint_storage(uri: str, options: Mapping[str, str]) -> tuple[pafs.FileSystem, str] | None:
    if not uri.startswith(SCHEME):
        return None
    return pafs.PyFileSystem(FaultyHandler()), uri.removeprefix(SCHEME)
