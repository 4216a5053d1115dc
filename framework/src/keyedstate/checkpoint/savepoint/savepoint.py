"""A savepoint: the state of a query's operators in one self-contained folder.

::

    <savepoint>/
        _savepoint                  describes the rest, with the digest of each file below it; written last
        _unfinished                 a creation, or a deletion, is running or was killed
        <uid>/_metadata             a `CheckpointMetadata`, as ``chk-<epoch>/_metadata`` of a checkpoint
        <uid>/data/<nonce>.seg      segment files of full snapshots, and <nonce>.operator.seg
        spark/...                   files of Spark's checkpoint location at that epoch, where they were copied

All paths in it are relative: it may be moved and copied, to another storage too, and any backend reads it.  A
folder without ``_savepoint`` is none.  With it the savepoint is complete, and every byte is covered:
``_savepoint`` by its own checksum, each metadata and each file of Spark by a digest in it, the segment files
by digests in the metadata.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from keyedstate.checkpoint.format.json_converter import to_json
from keyedstate.checkpoint.format.json_document import decode_as, decode_document, encode_document
from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.format.segment import SegmentHandle
from keyedstate.checkpoint.protocol.operator_folder import FORMAT_VERSION as METADATA_VERSION
from keyedstate.checkpoint.protocol.operator_folder import METADATA, OWNER, OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage, Location
from keyedstate.checkpoint.storage.local_disk import remove_empty_folders
from keyedstate.errors import (
    CorruptFileError,
    FormatVersionError,
    KeyedStateError,
    MissingFileError,
    NotASavepointError,
    SavepointTakenOverError,
    TargetExistsError,
    UnknownOperatorError,
    UnsafeNameError,
)
from keyedstate.version import __version__

FORMAT_VERSION = 1
#: The file that makes a folder a savepoint.
SAVEPOINT = "_savepoint"
UNFINISHED = "_unfinished"
SPARK = "spark"

#: Receives the bytes done and their total; called by one thread at a time, the last time with all done.
Progress: TypeAlias = "Callable[[int, int], None]"

# All files of a creation, also a killed one; nothing else in a folder is ever deleted.
_OWN = re.compile(
    rf"{SAVEPOINT}|{UNFINISHED}"
    r"|[A-Za-z0-9._-]{1,200}/(_metadata|data/[A-Za-z0-9_-]+(\.operator)?\.seg)"
    r"|spark/(metadata|(offsets|commits)/[0-9]+|sources/.+)"
    r"|([^/]+/)*\.[^/]+\.[0-9a-f]{32}\.tmp"
)


@dataclass(frozen=True)
class SparkPosition:
    """How far a query had come: the micro-batch that a savepoint is the state after."""

    #: Of the query that the savepoint was taken of.
    query_id: str
    #: Its last micro-batch that counts.
    epoch: int


_Folder = TypeVar("_Folder", bound="SavepointFolder")


@dataclass(frozen=True)
class _Description:
    """The content of `SAVEPOINT`."""

    #: Its own, which a copy of it has too.
    id: str
    #: Milliseconds since 1970 UTC.
    created_ms: int
    #: What wrote it.
    keyedstate_version: str
    #: The uids of the operators whose state is in it, sorted.
    operators: tuple[str, ...]
    #: Whether its query had used up all input before it was taken.
    drained: bool
    #: The final watermark of a drained one, in milliseconds: the largest number that there is.  None else.
    watermark: int | None
    #: Where Spark's own files are in it, so that a query can be forked from it.
    spark: SparkPosition | None
    #: The digest of each file, by its path.
    files: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class SavepointFolder(_Description):
    """A finished savepoint."""

    root: CheckpointStorage

    def __str__(self) -> str:
        names = ", ".join(self.operators)
        position = "" if self.spark is None else f", epoch {self.spark.epoch} of query {self.spark.query_id}"
        return f"savepoint {self.location} of {names}{position}{', drained' if self.drained else ''}"

    @classmethod
    def open(cls: type[_Folder], location: Location) -> _Folder:
        """Open a savepoint; reads one small file.

        Raises
        ------
        NotASavepointError
            Where the location has none, or an unfinished one.
        CorruptFileError, FormatVersionError, StorageError
            Where its file is damaged, a newer keyedstate wrote it, or it cannot be read.
        """
        root = CheckpointStorage.at(location)
        try:
            data = root.read(SAVEPOINT)
        except MissingFileError:
            names = root.list()
            raise NotASavepointError(root.location(), names, unfinished=UNFINISHED in names) from None
        found = decode_as(_Description, root.location(SAVEPOINT), "savepoint", FORMAT_VERSION, data)
        return cls(**vars(found), root=root)

    @property
    def location(self) -> str:
        """The folder's address, for people."""
        return self.root.location()

    def storage(self, uid: str) -> CheckpointStorage:
        """Return the folder of one operator; raises `UnknownOperatorError`."""
        if uid not in self.operators:
            raise UnknownOperatorError(self.location, uid, self.operators)
        return self.root.child(uid)

    def metadata(self, uid: str) -> CheckpointMetadata:
        """Return the checkpoint of one operator.

        Raises `UnknownOperatorError`, and a `CheckpointError` where its file cannot be read or is not the one
        that was written.
        """
        path = f"{uid}/{METADATA}"
        self.storage(uid)
        location = self.root.location(path)
        return decode_as(CheckpointMetadata, location, "checkpoint", METADATA_VERSION, self._verified(path))

    def spark_files(self) -> tuple[str, ...]:
        """Return the paths of Spark's files as they are in its checkpoint location, sorted."""
        return tuple(sorted(path[len(SPARK) + 1 :] for path in self.files if _is_sparks(path)))

    def read_spark_file(self, path: str) -> bytes:
        """Return one file of Spark; raises as `metadata`."""
        return self._verified(f"{SPARK}/{path}")

    def data_bytes(self) -> int:
        """Return the size of all segment files together; raises as `metadata`."""
        return sum(
            file.bytes for uid in self.operators for part in self.metadata(uid).parts for file in part.files
        )

    def verify(self, progress: Progress | None = None) -> None:
        """Verify every byte; raises a `CheckpointError` for the first damaged file."""
        for path in self.spark_files():
            self.read_spark_file(path)
        metadata = [self.metadata(uid) for uid in self.operators]
        segments = [(one.uid, segment) for one in metadata for part in one.parts for segment in part.files]
        total, done = sum(segment.bytes for _, segment in segments), 0
        for uid, segment in segments:
            with closing(SegmentHandle.open(self.storage(uid), segment)) as handle:
                handle.verify()
            done += segment.bytes
            if progress is not None:
                progress(done, total)

    def describe(self) -> dict[str, Any]:
        """Return a description as JSON values; sizes in bytes.  Raises as `metadata`."""
        return {
            "location": self.location,
            **{name: getattr(self, name) for name in ("id", "created_ms", "keyedstate_version")},
            "operators": list(self.operators),
            "drained": self.drained,
            "watermark": self.watermark,
            "query_id": None if self.spark is None else self.spark.query_id,
            "epoch": None if self.spark is None else self.spark.epoch,
            "forkable": self.spark is not None,
            "bytes": self.data_bytes(),
        }

    @staticmethod
    def delete(location: Location, *, only_id: str | None = None) -> tuple[str, ...]:
        """Delete a savepoint, and what an unfinished creation or deletion has left; files of others stay.

        Returns these; without any the folder is deleted as well.  With `only_id`, a savepoint of another id
        stays.  A killed deletion leaves either the savepoint as it was, or a folder that is none and may be
        deleted, or written over, later.  Raises `NotASavepointError` where there is neither a savepoint nor
        the rest of one.
        """
        root = CheckpointStorage.at(location)
        names = root.list()
        if SAVEPOINT not in names and UNFINISHED not in names:
            raise NotASavepointError(root.location(), names, unfinished=False)
        found = _id_in(root, "savepoint" if SAVEPOINT in names else "unfinished savepoint")
        if only_id is not None and found != only_id:
            return ()
        if SAVEPOINT in names:
            root.write_atomic(UNFINISHED, _mark(found))
            root.delete_file(SAVEPOINT)
        return _delete_own(root)

    def _verified(self, path: str) -> bytes:
        data = self.root.read(path)
        if hashlib.sha256(data).hexdigest() != self.files.get(path):
            location = self.root.location(path)
            raise CorruptFileError(location, f"it is not the file that {SAVEPOINT} was written for")
        return data


class SavepointWriter:
    """Writes a savepoint into an empty folder, or over one that an earlier writer left unfinished.

    As a context manager it cleans up where the block fails or ends without `finish`.  Any number of processes
    may write data files into `storage`, under the names that `data_paths` returns for a nonce of their own;
    one thread uses this object.  Raises `TargetExistsError` where the folder has a savepoint or anything else
    that no writer of savepoints left; every method raises `StorageError` where the file system refuses.
    """

    def __init__(self, location: Location) -> None:
        self.root = CheckpointStorage.at(location)
        self.id = uuid.uuid4().hex
        self._digests: dict[str, str] = {}
        self._operators: list[str] = []
        self._finished = False
        files = self.root.files()
        foreign = [path for path in files if not _OWN.fullmatch(path)]
        # A writer that was killed while it wrote its mark leaves only a temporary file.
        marked = UNFINISHED in files or all(path.endswith(".tmp") for path in files)
        if foreign or SAVEPOINT in files or not marked:
            raise TargetExistsError(self.root.location(), foreign or files)
        # First the own mark, then the other's files: a killed process leaves a marked folder.
        self.root.write_atomic(UNFINISHED, _mark(self.id))
        self.root.for_each(self.root.delete_file, [path for path in files if path != UNFINISHED])

    def storage(self, uid: str) -> CheckpointStorage:
        """Return the folder of one operator, for its data files.

        Raises `UnsafeNameError` where the uid cannot be a folder's name among the other names of a savepoint.
        """
        storage = OperatorFolder(self.root, uid).storage
        if uid in (SAVEPOINT, UNFINISHED):
            raise UnsafeNameError("uid of an operator in a savepoint", uid, "it another name")
        return storage

    def add_operator(self, metadata: CheckpointMetadata) -> None:
        """Add an operator, after all of its data files were written; each is of a full snapshot.

        Raises `ValueError` for an operator that was added before, or metadata with deltas or files of others.
        """
        uid = metadata.uid
        if uid in self._operators:
            raise ValueError(f"the operator {uid!r} is in the savepoint already")
        storage = self.storage(uid)
        for part in metadata.parts:
            if part.deltas:
                raise ValueError(f"partition {part.identity.partition} of {uid!r} is not a whole one")
            for path in part.data_files:
                if not (_OWN.fullmatch(f"{uid}/{path}") and storage.exists(path)):
                    raise ValueError(f"the data file {path} of {uid!r} is not in the savepoint")
        data = encode_document("checkpoint", METADATA_VERSION, to_json(metadata))
        self._write(f"{uid}/{METADATA}", data)
        self._operators.append(uid)

    def add_spark_file(self, path: str, data: bytes) -> None:
        """Add a file of Spark's checkpoint location, under the path that it has there."""
        full = f"{SPARK}/{path}"
        if not _OWN.fullmatch(full):
            raise ValueError(f"{path} is none of the files of Spark that a savepoint has")
        self._write(full, data)

    def finish(
        self,
        *,
        spark: SparkPosition | None = None,
        drained: bool = False,
        watermark: int | None = None,
        created_ms: int | None = None,
    ) -> SavepointFolder:
        """Publish the savepoint: the one write that makes it exist.

        The position is that of the files of Spark that were added. It is created now, if no time is given
        (milliseconds since 1970 UTC). Raises `SavepointTakenOverError` where another writer has begun in this
        folder; nothing was published.
        """
        described = _Description(
            self.id,
            int(time.time() * 1000) if created_ms is None else created_ms,
            __version__,
            tuple(sorted(self._operators)),
            drained,
            watermark,
            spark,
            self._digests,
        )
        if not self._is_ours():
            raise SavepointTakenOverError(self.root.location())
        self.root.write_atomic(SAVEPOINT, encode_document("savepoint", FORMAT_VERSION, to_json(described)))
        self._finished = True
        self.root.delete_file(UNFINISHED)
        return SavepointFolder.open(self.root)

    def abort(self) -> None:
        """Delete what was written; does nothing after `finish`, or where another writer has taken over."""
        if not self._finished and self._is_ours():
            self._finished = True
            _delete_own(self.root)

    def __enter__(self) -> SavepointWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.abort()
            return
        # The block's error is the one to report; the mark says that the rest is of no use.
        with suppress(KeyedStateError):
            self.abort()

    def _write(self, path: str, data: bytes) -> None:
        self.root.write_atomic(path, data)
        self._digests[path] = hashlib.sha256(data).hexdigest()

    def _is_ours(self) -> bool:
        try:
            return self.root.read(UNFINISHED) == _mark(self.id)
        except MissingFileError:
            return False


def _id_in(root: CheckpointStorage, kind: str) -> str:
    """Return the id in a savepoint's file or mark; empty where that is damaged."""
    path = SAVEPOINT if kind == "savepoint" else UNFINISHED
    try:
        body = decode_document(root.location(path), kind, FORMAT_VERSION, root.read(path))
    except (CorruptFileError, FormatVersionError, MissingFileError):
        return ""
    return str(body.get("id", ""))


def _mark(id: str) -> bytes:
    return encode_document("unfinished savepoint", FORMAT_VERSION, {"id": id})


def _delete_own(root: CheckpointStorage) -> tuple[str, ...]:
    """Delete the files of a former savepoint; the mark last, so that a killed deletion can be repeated."""
    # A publication whose answer was lost may have left it; without it the rest is no savepoint.
    root.delete_file(SAVEPOINT)
    files = root.files()
    # A user may have set a query's checkpoint.dir to this folder, which then has folders of operators.
    claimed = {path.partition("/")[0] for path in files if path.endswith(f"/{OWNER}")}
    foreign = tuple(path for path in files if not _OWN.fullmatch(path) or path.partition("/")[0] in claimed)
    kept = {*foreign, UNFINISHED}
    root.for_each(root.delete_file, [path for path in files if path not in kept])
    root.delete_file(UNFINISHED)
    if root.is_local:
        # A file that was added since the listing keeps the folder.
        remove_empty_folders(root.root)
    elif not foreign and "/" in root.root.strip("/"):
        # Not a whole bucket, where the savepoint has one to itself.
        root.delete_dir("")
    return foreign


def _is_sparks(path: str) -> bool:
    # An operator may have the uid of Spark's folder, which then has its metadata too.
    return path.startswith(f"{SPARK}/") and path != f"{SPARK}/{METADATA}"
