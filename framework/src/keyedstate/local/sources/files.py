"""Files of a `pyarrow.dataset` as a source: Parquet, CSV, JSON and others, single files or whole folders."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from keyedstate.checkpoint.format.json_converter import from_json, to_json
from keyedstate.checkpoint.savepoint.file_positions import FilePosition
from keyedstate.errors import SourceError
from keyedstate.local.sources.batches import BATCH_ROWS
from keyedstate.local.sources.source import SourceChannel, other_source
from keyedstate.local.sources.text_files import readable

if TYPE_CHECKING:
    import pyarrow.dataset as ds


class FileSource:
    """The files of a dataset, in the order of their paths.

    A later run reads the rest of the file that an earlier one has begun, and the files that were added since.

    Parameters
    ----------
    dataset : pyarrow.dataset.Dataset
        ``pyarrow.dataset.dataset("flights/", format="csv")``.  A file may not change once it was read.
    channels : int, default 1
        In how many channels the files are read, the same number in each run.  The path of a file decides its
        channel.

    Raises
    ------
    SourceError
    """

    def __init__(self, dataset: ds.Dataset, channels: int = 1) -> None:
        if channels < 1:
            raise SourceError(f"{channels} channels", "a source has at least one channel", "Give 1 or more.")
        self.schema: pa.Schema = dataset.schema
        self._fragments = _by_path(dataset)
        self._channels = channels

    def channels(self) -> Sequence[SourceChannel]:
        """Return the channels, each with its files."""
        of_channel: list[dict[str, Any]] = [{} for _ in range(self._channels)]
        for path in sorted(self._fragments):
            # Not the position of the file in the list, which changes when files are added.
            of_channel[zlib.crc32(_identity(path).encode()) % self._channels][path] = self._fragments[path]
        return [_FileChannel(str(number), files, self.schema) for number, files in enumerate(of_channel)]


def _by_path(dataset: ds.Dataset) -> dict[str, Any]:
    """Return the parts of a dataset by their files."""
    try:
        fragments = list(dataset.get_fragments())
    except ValueError as error:  # of a filtered one
        way_out = "Give the dataset itself, and filter the rows in the function."
        raise SourceError("the dataset", str(error).rstrip("."), way_out) from error
    if not all(hasattr(fragment, "path") for fragment in fragments):
        raise SourceError("the dataset", "only some of its rows are in files", "Give dataset.to_table().")
    found = {_name_of(fragment): fragment for fragment in fragments}
    if len({_identity(path) for path in found}) < len(fragments):
        raise SourceError("the dataset", "it has a file twice", "Leave one out, or give dataset.to_table().")
    return found


def _name_of(fragment: Any) -> str:
    """Return the path of a file, the same whatever the folder is in which the program runs."""
    path: str = fragment.path
    return os.path.abspath(path) if isinstance(fragment.filesystem, LocalFileSystem) else path


def _identity(path: str) -> str:
    """Return what distinguishes a file from others, however many symbolic links lead to it."""
    return os.path.realpath(path) if os.path.isabs(path) else path


class _FileChannel:
    """Reads files one after the other; its offset has those that are done, and rows of the current one."""

    def __init__(self, name: str, files: dict[str, Any], schema: pa.Schema) -> None:
        self.name = name
        self._schema = schema
        self._files = files
        self._done: list[str] = []
        self._current: str | None = None
        self._rows = 0
        self._batches = self._read_all()

    def read(self) -> pa.RecordBatch | None:
        """Return the next rows of the current file, or the first ones of the next file."""
        return next(self._batches, None)

    def offset(self) -> Any:
        """Return a `FilePosition`: the files that were read, and the number of rows of the one being read."""
        return to_json(FilePosition(tuple(self._done), self._current, self._rows))

    def seek(self, offset: Any) -> None:
        """Skip the files and rows before an offset."""
        try:
            position = from_json(FilePosition, offset)
        except (KeyError, TypeError, ValueError):
            raise other_source(self.name) from None
        self._done, self._rows = list(position.done), position.rows
        if position.file is not None:
            same = [path for path in self._files if _identity(path) == _identity(position.file)]
            if not same:
                raise SourceError(
                    f"the file {position.file}",
                    f"it is gone, and only its first {position.rows} rows were read",
                    "Put it back, or start from an earlier savepoint.",
                )
            self._current = same[0]
        self._batches = self._read_all()

    def _read_all(self) -> Iterator[pa.RecordBatch]:
        done = {_identity(path) for path in self._done}
        waiting = [path for path in self._files if _identity(path) not in done and path != self._current]
        if self._current is not None:
            waiting.insert(0, self._current)
        for path in waiting:
            if path != self._current:
                self._current, self._rows = path, 0
            skipped = self._rows
            for batch in self._batches_of(path):
                rest = batch.slice(min(skipped, batch.num_rows))
                skipped -= batch.num_rows - rest.num_rows
                if rest.num_rows:
                    self._rows += rest.num_rows
                    yield rest
            self._done.append(path)
            self._current, self._rows = None, 0

    def _batches_of(self, path: str) -> Iterator[pa.RecordBatch]:
        try:
            fragment = readable(self._files[path])
            if fragment is not None:
                yield from fragment.to_batches(schema=self._schema, batch_size=BATCH_ROWS)
        except (pa.ArrowException, OSError) as error:
            way_out = "Repair the file, or take it out of the folder to leave out its rows."
            raise SourceError(f"the file {path}", str(error).rstrip("."), way_out) from error
