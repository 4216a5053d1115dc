"""Copies of data files on a task's own machine, from which a restore there reads.

A task writes to the storage and, byte for byte, to a local folder.  A later restore on the machine uses a
local copy only if it is exactly the file that the manifest describes: every byte is verified first, and a
copy that differs is deleted and read from the storage.  So a copy may be lost, damaged or left behind by a
crash at any moment.

`keyedstate.checkpoint.protocol.local_copies_folder` has their layout, and what may be deleted there.  Follows
Flink's ``TaskLocalStateStoreImpl``, ``DuplicatingCheckpointOutputStream`` and
``PrioritizedOperatorSubtaskState``.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from keyedstate.checkpoint.format.manifest import CheckpointMetadata, StoredNativeFile
from keyedstate.checkpoint.format.segment import SegmentHandle
from keyedstate.checkpoint.format.segment_format import SegmentFile, read_index
from keyedstate.checkpoint.protocol.local_copies_folder import CopiesFolder, delete
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage, InputFile, OutputFile
from keyedstate.errors import CheckpointError, CorruptFileError, StorageError
from keyedstate.options import CHECKPOINT_LOCAL_COPIES, CHECKPOINT_LOCAL_COPIES_DIR, Configuration

_log = logging.getLogger(__name__)

#: Where copies are below a task's local folder, if ``checkpoint.local-copies-dir`` is not set.
DEFAULT_FOLDER = "keyedstate-copies"


def with_local_copies(
    operator: OperatorFolder,
    epoch: int,
    restore_point: CheckpointMetadata | None,
    config: Configuration,
    default_folder: Path | None,
) -> OperatorFolder:
    """Return what `open_with_copies` does, or the folder as it is where ``checkpoint.local-copies`` is off.

    The copies are where ``checkpoint.local-copies-dir`` says, else in a subfolder of `default_folder`; with
    neither, no copies are made.
    """
    if config[CHECKPOINT_LOCAL_COPIES] == "off":
        return operator
    given = config.get(CHECKPOINT_LOCAL_COPIES_DIR)
    if given is None and default_folder is None:
        return operator
    folder = Path(given) if given is not None else Path(str(default_folder), DEFAULT_FOLDER)
    return open_with_copies(folder, operator, epoch, restore_point)


def open_with_copies(
    folder: Path, operator: OperatorFolder, epoch: int, restore_point: CheckpointMetadata | None
) -> OperatorFolder:
    """Return the operator's folder, with data files copied as they are written and read from copies.

    Several tasks, in several processes, may use one folder at once; it is made with the first copy.  New
    copies belong to the `epoch` that runs.  Of earlier ones only the files of the checkpoint that it begins
    from are read locally; the other copies are deleted first.
    """
    # First: the operator's own copies, however old, are not abandoned.
    copies = CopiesFolder(folder, operator.storage.uri.partition("?")[0])
    _sweep_once(folder)
    parts = () if restore_point is None else restore_point.parts
    described = {file.path: file for part in parts for file in part.all_files}
    copies.prune(epoch, {path for part in parts for path in part.kept_files})
    opened = copy(operator)
    opened.storage = CopyingStorage(**vars(operator.storage), copies=copies, epoch=epoch, described=described)
    return opened


@dataclass(frozen=True)
class CopyingStorage(CheckpointStorage):
    """An operator's storage whose data files have local copies."""

    copies: CopiesFolder = field(kw_only=True)
    epoch: int = field(kw_only=True)
    #: The manifests' descriptions of the files that may be read locally, by path.
    described: Mapping[str, SegmentFile | StoredNativeFile] = field(kw_only=True)

    @property
    def remote(self) -> CheckpointStorage:
        """The same storage without copies."""
        return CheckpointStorage(self.filesystem, self.root, self.uri, self.retry, self.permissions)

    def child(self, *parts: str) -> CheckpointStorage:
        return self.remote.child(*parts)

    def open_output(self, path: str) -> OutputFile:
        return _CopiedOutput(super().open_output(path), self.copies, self.epoch, path)

    def open_input(self, path: str) -> InputFile:
        """Open the local copy if it is the described file, and otherwise the file itself."""
        described = self.described.get(path)
        found = None if described is None else self.copies.find(path)
        if described is not None and found is not None:
            try:
                return _LocalFirst(self.remote, path, _verified(found, described), found)
            except CheckpointError as error:
                _log.warning("the local copy %s is not used, and deleted: %s", found, error)
                delete(found)
        return super().open_input(path)


class _CopiedOutput(OutputFile):
    """Writes a file and its copy; an error of the copy is logged, and ends the copy alone."""

    def __init__(self, output: OutputFile, folder: CopiesFolder, epoch: int, path: str) -> None:
        self._output = output
        self._folder = folder
        self._epoch = epoch
        self._path = path
        #: The copy's final and its present name; none before it was created.
        self._names: tuple[Path, ...] = ()
        self._copy: BinaryIO | None = None
        self._guarded(self._create)

    def write(self, data: bytes) -> None:
        self._output.write(data)
        if self._copy is not None:
            self._guarded(partial(self._copy.write, data))

    def close(self) -> None:
        self._output.close()
        if self._copy is not None:
            self._guarded(partial(self._publish, self._copy))

    def abort(self) -> None:
        self._discard()
        self._output.abort()

    def _create(self) -> None:
        target, unfinished, descriptor = self._folder.create(self._epoch, self._path)
        self._names = target, unfinished
        # Not synced, here and below: a copy that a crash of the machine damages is found when it is verified.
        self._copy = os.fdopen(descriptor, "wb")

    def _publish(self, copy: BinaryIO) -> None:
        target, unfinished = self._names
        copy.flush()
        # Before it is closed, and so unlocked: another task would delete it.
        os.replace(unfinished, target)
        copy.close()
        self._copy = None

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            _log.warning("the local copy of %s in %s is abandoned: %s", self._path, self._folder.path, error)
            self._discard()

    def _discard(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            with contextlib.suppress(OSError):
                copy.close()
        for name in self._names:
            delete(name)


class _LocalFirst(InputFile):
    """Reads a verified copy, and the file itself once the copy cannot be read."""

    def __init__(self, remote: CheckpointStorage, path: str, source: InputFile, local: Path) -> None:
        self._remote = remote
        self._path = path
        self._source = source
        self._copy: Path | None = local
        self.size = source.size

    def read_at(self, offset: int, length: int) -> pa.Buffer:
        try:
            return self._source.read_at(offset, length)
        except StorageError as error:
            if self._copy is None:
                raise
            _log.warning("the local copy %s cannot be read any more: %s", self._copy, error)
            delete(self._copy)
            self._copy = None
            self._source.close()
            self._source = self._remote.open_input(self._path)
            return self._source.read_at(offset, length)

    def close(self) -> None:
        self._source.close()


def _verified(local: Path, described: SegmentFile | StoredNativeFile) -> InputFile:
    """Open a copy after comparing each of its bytes with the checksums of manifest and index."""
    location = str(local)
    source = CheckpointStorage.open(local.parent).open_input(local.name)
    try:
        if isinstance(described, SegmentFile):
            covered, streams = described.key_groups, read_index(location, source, described)
            SegmentHandle(location, source, covered, covered, streams).verify()
            return source
        digest = hashlib.sha256()
        for piece in source.pieces():
            digest.update(piece)
        if (source.size, digest.hexdigest()) != (described.bytes, described.sha256):
            raise CorruptFileError(location, f"it is not the file {described.name} that was written")
        return source
    except BaseException:
        source.close()
        raise


# Once in a process: leftovers of crashed processes and finished queries grow slowly.
_sweep_once = lru_cache(maxsize=8)(CopiesFolder.sweep)
