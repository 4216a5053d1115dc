"""Full snapshots of native files: uploaded, fetched, and read without the backend's tables."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from keyedstate.backend import (
    BackendContext,
    EntryBatch,
    EntryChange,
    NativeFile,
    NativeHandle,
    NativeSnapshot,
    StateMeta,
    TableSnapshot,
)
from keyedstate.checkpoint.format.delta import read_changes
from keyedstate.checkpoint.format.manifest import NativeFullSnapshot, StoredNativeFile, owner_path
from keyedstate.checkpoint.format.segment import record_batches
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.checkpoint.storage.transfer import CopiedFile, FileCopy, transfer
from keyedstate.errors import CorruptFileError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.options import Configuration
from keyedstate.plugins import PluginRegistry
from keyedstate.tables import SNAPSHOT_BATCH_ENTRIES


def write_native(
    storage: CheckpointStorage,
    path: str,
    key_groups: KeyGroupRange,
    max_parallelism: int,
    backend: str,
    snapshot: NativeSnapshot,
    completed: Mapping[str, StoredNativeFile],
    cancelled: threading.Event | None = None,
) -> tuple[NativeFullSnapshot, int]:
    """Upload the files of a snapshot that no completed checkpoint has; return it with the uploaded bytes.

    The files replace the segment file `path`; `completed` has those of the checkpoint that the epoch began
    from, by path.  The caller releases the snapshot.  After a `StorageError` or `TransferCancelledError`
    what was uploaded is deleted.
    """
    # A file that was deleted from the storage is uploaded again.
    there = {f"data/{name}" for name in storage.list("data")} if completed else set()
    shared: dict[str, StoredNativeFile] = {}
    copies: list[FileCopy] = []
    stem = path.removesuffix(".seg")
    for number, file in enumerate(snapshot.files):
        known = completed.get(file.origin) if file.origin in there and file.origin else None
        if known is not None and known.bytes == file.bytes:
            shared[file.name] = known
        else:
            copies.append(FileCopy(file.name, f"{stem}.{number}.native", file.bytes))
    copied = transfer(CheckpointStorage.open(snapshot.folder), storage, copies, cancelled=cancelled)
    uploaded = {one.source: StoredNativeFile(one.source, one.target, one.bytes, one.sha256) for one in copied}
    files = tuple((shared | uploaded)[file.name] for file in snapshot.files)
    entries, details = dict(snapshot.entries), dict(snapshot.details)
    full = NativeFullSnapshot(backend, key_groups, max_parallelism, files, entries, details)
    snapshot.stored({file.name: file.path for file in files})
    return full, sum(one.bytes for one in copied)


def delete_native(storage: CheckpointStorage, path: str, full: NativeFullSnapshot) -> None:
    """Delete the files that were uploaded for this full snapshot alone, under a path."""
    own = [file.path for file in full.files if owner_path(file.path) == path]
    storage.for_each(storage.delete_file, own)


class StoredNativeHandle(NativeHandle):
    """Reads the `wanted` key groups of a native full snapshot and the deltas that followed it.

    `states`, and the numbers of their `entries`, are those after the last delta.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        full: NativeFullSnapshot,
        states: Sequence[StateMeta],
        deltas: Sequence[SegmentFile],
        entries: Mapping[str, int],
        wanted: KeyGroupRange,
    ) -> None:
        self.backend = full.backend
        self.files = tuple(NativeFile(file.name, file.bytes, file.path) for file in full.files)
        self.native_entries = full.entries
        self.all_entries = entries
        self.details = full.details
        self._storage = storage
        self._full = full
        self._states = states
        self._deltas = deltas
        self._wanted = wanted
        #: By state, from the first read on; and what is to be freed then.
        self._snapshots: dict[str, TableSnapshot[Any, Any, Any]] | None = None
        self._closing = contextlib.ExitStack()

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._full.key_groups

    @property
    def states(self) -> Sequence[StateMeta]:
        return self._states

    def fetch(self, folder: Path) -> None:
        fetch(self._storage, self._full, folder)

    def changes(self) -> Iterator[EntryChange]:
        return read_changes(self._storage, self._deltas, self._states)

    def entries(self, state: str, key_group: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        """Yield the entries of one state and key group, from tables of the backend that wrote the files."""
        snapshot = self._opened().get(state)
        return iter(()) if snapshot is None else snapshot.batches(key_group, SNAPSHOT_BATCH_ENTRIES)

    def columns(self, state: str, key_group: int) -> Iterator[pa.RecordBatch]:
        """Yield the same entries as the columns of a segment file."""
        meta = next(meta for meta in self._states if meta.name == state)
        for batch in self.entries(state, key_group):
            yield from record_batches(meta, key_group, batch)

    def _opened(self) -> dict[str, TableSnapshot[Any, Any, Any]]:
        if self._snapshots is None:
            with contextlib.ExitStack() as opened:
                config = Configuration({"backend": self.backend})
                registry = PluginRegistry(config)
                backend, options = registry.choose(), config.plugin_options(registry.options, self.backend)
                context = BackendContext(
                    self.key_groups.intersection(self._wanted),
                    self._full.max_parallelism,
                    options,
                    Path(tempfile.gettempdir()),
                )
                opened.callback(context.closing.close)
                tables = backend.create_restore_operation([self], context).restore()
                snapshots = {}
                for name, table in tables.items():
                    snapshots[name] = table.snapshot()
                    opened.callback(snapshots[name].release)
                self._closing, self._snapshots = opened.pop_all(), snapshots
        return self._snapshots

    def close(self) -> None:
        """Close the tables, and delete what was fetched for them."""
        self._snapshots = None
        self._closing.close()


def fetch(storage: CheckpointStorage, full: NativeFullSnapshot, folder: Path) -> None:
    """Copy a full snapshot's files into a folder, several at once, and verify each byte.

    After a `CorruptFileError` or `StorageError`, which names the file, the folder is deleted.
    """
    folder.mkdir(mode=0o700, parents=True)
    try:
        target = CheckpointStorage.open(folder)
        copies = [FileCopy(file.path, file.name) for file in full.files]
        copied: Sequence[CopiedFile] = transfer(storage, target, copies)
        for file, copy in zip(full.files, copied, strict=True):
            if (copy.bytes, copy.sha256) != (file.bytes, file.sha256):
                reason = f"it is not the file {file.name} of {full.backend} that was written"
                raise CorruptFileError(storage.location(file.path), reason)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
