"""The layout of one operator's folder, and nothing else.

::

    <checkpoint.dir>/<uid>/
        _owner                          whose state this is (`Owner`)
        _start-empty                    made by a user: the operator may begin without state
        _continue-at-<epoch>            made by a user: it may continue there from a state that missed epochs
        _set-back-to-<epoch>            made by a user: Spark's checkpoint location was set back to that epoch
        chk-<epoch>/_metadata           a published checkpoint (`CheckpointMetadata`)
        data/<nonce>.seg                the segment file of one attempt: a full snapshot or a delta
        data/<nonce>.operator.seg       its operator state, where there is any
        data/<nonce>.base.seg           a full snapshot of the state before its epoch, written in background
        data/<nonce>[.base].<number>.native  a file of the backend's own, in the place of one of those
        attempts/epoch-<epoch>/<run id>.p<partition>.t<attempt>.<nonce>.started    an attempt that began
        attempts/epoch-<epoch>/<run id>.p<partition>.t<attempt>.<nonce>.json       its manifest: it finished
        holds/<epoch>.<expires>.<nonce>  a lease: data files that a reader needs until then (ms since 1970)

The names of attempts have everything that recovery and clean-up need, so that both list and do not read.  An
attempt writes its started marker before its data files, and its data files before its manifest; a manifest
references its own data files and those of the checkpoint that it began from, and no other.  So each data file
has an attempt of its name until a checkpoint references it, or it is obsolete.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from keyedstate.checkpoint.format.json_converter import to_json
from keyedstate.checkpoint.format.json_document import decode_as, encode_document
from keyedstate.checkpoint.format.manifest import (
    AttemptManifest,
    CheckpointMetadata,
    Owner,
    TaskIdentity,
    owner_path,
)
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.checkpoint.storage.local_disk import permissions_like, remove_empty_folders
from keyedstate.errors import (
    CorruptFileError,
    MissingFileError,
    UnsafeNameError,
)

T = TypeVar("T")

FORMAT_VERSION = 1
OWNER = "_owner"
#: Empty files by which a user allows something; the last two are followed by an epoch.
START_EMPTY = "_start-empty"
CONTINUE_AT = "_continue-at-"
SET_BACK = "_set-back-to-"
METADATA = "_metadata"

_UID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,200}")
#: The name of a checkpoint's folder.
CHECKPOINT = re.compile(r"chk-(0|[1-9][0-9]*)")
_ATTEMPT_EPOCH = re.compile(r"epoch-(0|[1-9][0-9]*)")
_ATTEMPT = re.compile(r"([A-Za-z0-9_-]+)\.p([0-9]+)\.t([0-9]+)\.([A-Za-z0-9_-]+)\.(started|json)")
_DATA = re.compile(r"([A-Za-z0-9_-]+)(\.operator|\.base)?(\.[0-9]+\.native|\.seg)")
_LEASE = re.compile(r"(0|[1-9][0-9]*)\.([0-9]+)\.[A-Za-z0-9_-]+")
# The temporary file of a killed process.
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
_STALE_MS = 3_600_000


@dataclass(frozen=True)
class AttemptFile:
    """The name of an attempt's file, parsed."""

    #: Relative to the operator's folder.
    path: str
    run_id: str
    partition: int
    attempt: int
    nonce: str
    #: True for a manifest, False for a started marker.
    finished: bool
    #: When it was written by the storage's clock, in milliseconds since 1970 UTC; None where unknown.
    modified_ms: int | None = None


@dataclass(frozen=True)
class LeaseFile:
    """The name of a lease, parsed."""

    #: Relative to the operator's folder.
    path: str
    #: The leased checkpoint.
    epoch: int
    #: Milliseconds since 1970 UTC.
    expires_ms: int


@dataclass(frozen=True)
class _LeaseDocument:
    data_files: tuple[str, ...]


class OperatorFolder:
    """The folder of one operator, named after its uid, in a storage with the folders of all operators.

    Raises `UnsafeNameError` where the uid cannot be a folder's name.
    """

    def __init__(self, storage: CheckpointStorage, uid: str) -> None:
        if not _UID.fullmatch(uid):
            raise UnsafeNameError("uid of an operator", uid, "1 to 200 letters, digits, '.', '_' and '-'")
        self.uid = uid
        #: The operator's own folder; the paths of segment files are relative to it.
        self.storage = storage.child(uid)
        self._all = storage

    @property
    def location(self) -> str:
        """The folder's address, for people."""
        return self.storage.location()

    @property
    def directory_uri(self) -> str:
        """The URI of the folder with the folders of all operators."""
        return self._all.uri

    # -- the owner ---------------------------------------------------------------------------------

    def read_owner(self) -> Owner | None:
        """Return whose folder this is, or None for an unclaimed one."""
        return self._read(OWNER, "owner", Owner)

    def write_owner(self, owner: Owner) -> None:
        """Write whose folder this is."""
        self._write(OWNER, "owner", to_json(owner))

    def has_state(self) -> bool:
        """Return whether there is anything that only an owner writes."""
        names = self.storage.list()
        return "data" in names or "attempts" in names or any(map(CHECKPOINT.fullmatch, names))

    def sibling(self, uid: str) -> OperatorFolder:
        """Return the folder of another operator next to this one."""
        return OperatorFolder(self._all, uid)

    def siblings(self, query_id: str) -> list[str]:
        """Return the uids of the other operators of a query that have a folder next to this one."""
        found = [file.name for file in self._all.describe() if file.is_folder and _UID.fullmatch(file.name)]
        owners = {uid: self.sibling(uid).read_owner() for uid in found if uid != self.uid}
        return [uid for uid, owner in owners.items() if owner is not None and owner.query_id == query_id]

    # -- checkpoints -------------------------------------------------------------------------------

    def checkpoints(self) -> list[int]:
        """Return the epochs that have a checkpoint folder, ascending; a folder may lack its metadata."""
        return _numbers(self.storage.list(), CHECKPOINT)

    def newest_before(self, epoch: int) -> CheckpointMetadata | None:
        """Return the newest published checkpoint of an epoch before this one."""
        # In all but the first epochs of a run it is that of the epoch before: without a listing.
        metadata = self.read_metadata(epoch - 1) if epoch else None
        if metadata is not None:
            return metadata
        for number in reversed(self.checkpoints()):
            metadata = self.read_metadata(number) if number < epoch else None
            if metadata is not None:
                return metadata
        return None

    def read_metadata(self, epoch: int) -> CheckpointMetadata | None:
        """Return a published checkpoint, or None where it does not exist."""
        path = metadata_path(epoch)
        metadata = self._read(path, "checkpoint", CheckpointMetadata)
        if metadata is not None and (metadata.uid, metadata.epoch) != (self.uid, epoch):
            what = f"it is the checkpoint of epoch {metadata.epoch} of {metadata.uid!r}"
            raise CorruptFileError(self.storage.location(path), what)
        return metadata

    def write_metadata(self, metadata: CheckpointMetadata) -> None:
        """Publish a checkpoint: the one write that makes it exist."""
        self._write(metadata_path(metadata.epoch), "checkpoint", to_json(metadata))

    def delete_checkpoint(self, epoch: int) -> None:
        """Delete a checkpoint's metadata, and its folder unless it has other files."""
        self._delete_own(f"chk-{epoch}", lambda name: name == METADATA)

    # -- attempts ----------------------------------------------------------------------------------

    def write_started(self, identity: TaskIdentity) -> None:
        """Record that an attempt begins; must precede its data files.

        To be called right after `claim`: an attempt that fails before it and hides its failure from Spark
        would look like an epoch that was never evaluated.
        """
        # Only its name counts, and the sync of the first manifest in the folder covers that. Before that, no
        # output of the epoch is complete; and a sync here would be half the cost of an epoch without rows.
        path = _attempt_path(identity, "started")
        self._write(path, "started attempt", to_json(identity), durable=False)

    def started_ms(self, identity: TaskIdentity) -> int | None:
        """Return when an attempt began by the storage's clock, in milliseconds since 1970 UTC.

        None where the storage has no clock.
        """
        return self.storage.modified_ms(_attempt_path(identity, "started"))

    def delete_started(self, identity: TaskIdentity) -> None:
        """Delete the marker of an attempt that may not begin; it has written nothing else."""
        self.storage.delete_file(_attempt_path(identity, "started"))

    def write_manifest(
        self, manifest: AttemptManifest, shared: Collection[str] = (), *, durable: bool = True
    ) -> str:
        """Record that an attempt has finished; returns the manifest's path for its acknowledgement.

        The attempt's data files must have been closed before.  It may reference the `shared` files, which are
        the `AttemptManifest.kept_files` of the checkpoint that it began from.  It need not be durable where a
        checkpoint with its content is written before Spark commits the epoch.
        """
        path = _attempt_path(manifest.identity, "json")
        allowed = {*data_paths(manifest.identity.nonce), *shared}
        foreign = {
            file for file in manifest.kept_files if file not in allowed and owner_path(file) not in allowed
        }
        if foreign:
            raise ValueError(
                f"a manifest may name its own data files and shared ones, and not {sorted(foreign)}"
            )
        self._write(path, "attempt", to_json(manifest), durable=durable)
        return path

    def read_manifest(self, path: str) -> AttemptManifest:
        """Return the manifest at a path that `write_manifest` or `attempts` gave."""
        manifest = self._read(path, "attempt", AttemptManifest)
        if manifest is None:
            raise MissingFileError(self.storage.location(path), "read")
        if _attempt_path(manifest.identity, "json") != path:
            what = f"it is the manifest of {_attempt_path(manifest.identity, 'json')}"
            raise CorruptFileError(self.storage.location(path), what)
        return manifest

    def attempt_epochs(self) -> list[int]:
        """Return the epochs that have a folder of attempts, ascending; a folder may be empty."""
        return _numbers(self.storage.list("attempts"), _ATTEMPT_EPOCH)

    def attempts(self, epoch: int) -> list[AttemptFile]:
        """Return the started markers and manifests of an epoch; other names are ignored."""
        names = self.storage.list(f"attempts/epoch-{epoch}")
        return [file for file in (_attempt_file(epoch, name) for name in names) if file is not None]

    def stamped_attempts(self, epoch: int) -> list[AttemptFile]:
        """Return the same, each with its time."""
        described = self.storage.describe(f"attempts/epoch-{epoch}")
        files = ((_attempt_file(epoch, each.name), each.modified_ms) for each in described)
        return [replace(file, modified_ms=modified_ms) for file, modified_ms in files if file is not None]

    def delete_attempts(self, epoch: int) -> None:
        """Delete an epoch's markers and manifests, and their folder unless it has other files."""
        self._delete_own(f"attempts/epoch-{epoch}", lambda name: _ATTEMPT.fullmatch(name) is not None)

    def delete_stale_temporaries(self) -> None:
        """Delete temporary files of processes that were killed long ago.

        A writing process renames its file within moments, so an old one has no writer any more.
        """
        before_ms = time.time() * 1000.0 - _STALE_MS
        for folder in ("", "holds"):
            for file in self.storage.describe(folder):
                stale = file.modified_ms is not None and file.modified_ms < before_ms
                if stale and not file.is_folder and _TEMPORARY.fullmatch(file.name):
                    self.storage.delete_file(f"{folder}/{file.name}" if folder else file.name)

    # -- data --------------------------------------------------------------------------------------

    def data_path(self, identity: TaskIdentity) -> str:
        """Return the path of an attempt's keyed state."""
        return data_paths(identity.nonce)[0]

    def data_files(self) -> list[str]:
        """Return the paths of all data files; other names are ignored."""
        return [f"data/{name}" for name in self.storage.list("data") if _DATA.fullmatch(name)]

    # -- leases ------------------------------------------------------------------------------------

    def write_lease(self, epoch: int, expires_ms: int, nonce: str, data_files: Collection[str]) -> LeaseFile:
        """Lease the data files of a checkpoint to a reader until a time."""
        path = f"holds/{epoch}.{expires_ms}.{nonce}"
        document = encode_document("hold", FORMAT_VERSION, {"data_files": sorted(data_files)})
        storage = self.storage
        if storage.is_local:
            # A reader has options of its own, and clean-up stops at a lease that the query cannot read.
            permissions = permissions_like(storage.root, storage.permissions)
            storage = replace(storage, permissions=permissions)
        storage.write_atomic(path, document)
        return LeaseFile(path, epoch, expires_ms)

    def leases(self) -> list[LeaseFile]:
        """Return all leases, expired ones too; other names are ignored."""
        found = [(name, _LEASE.fullmatch(name)) for name in self.storage.list("holds")]
        return [LeaseFile(f"holds/{name}", int(match[1]), int(match[2])) for name, match in found if match]

    def read_lease(self, lease: LeaseFile) -> set[str]:
        """Return the data files of a lease; none where it was released meanwhile."""
        found = self._read(lease.path, "hold", _LeaseDocument)
        return set() if found is None else set(found.data_files)

    def _read(self, path: str, kind: str, made: type[T]) -> T | None:
        location = self.storage.location(path)
        decode: Callable[..., Any] = _decode_once if kind == "checkpoint" else decode_as
        data = None
        while True:
            before = data
            try:
                data = self.storage.read(path)
            except MissingFileError:
                return None
            try:
                decoded: T = decode(made, location, kind, FORMAT_VERSION, data)
                return decoded
            except CorruptFileError:
                # A document that is replaced between the two requests of a read, for its size and for its
                # bytes, is cut off at the size of the old one: only what stays the same is damaged.
                if data == before:
                    raise

    def _write(self, path: str, kind: str, body: Mapping[str, Any], *, durable: bool = True) -> None:
        self.storage.write_atomic(path, encode_document(kind, FORMAT_VERSION, body), durable=durable)

    def _delete_own(self, folder: str, is_own: Callable[[str], bool]) -> None:
        names = self.storage.list(folder)
        own = [name for name in names if is_own(name) or _TEMPORARY.fullmatch(name)]
        if len(own) == len(names) and not self.storage.is_local:
            # One request for all, and object stores may have an empty object for the folder.
            self.storage.delete_dir(folder)
            return
        self.storage.for_each(self.storage.delete_file, [f"{folder}/{name}" for name in own])
        if self.storage.is_local:
            # A file that was added since the listing keeps the folder.
            remove_empty_folders(f"{self.storage.root}/{folder}")


#: All tasks of an epoch read the same checkpoint, whose size grows with their number: a process that runs
#: several of them decodes it once.  The result is never modified.
_decode_once = lru_cache(maxsize=4)(decode_as)


def metadata_path(epoch: int) -> str:
    """Return the path of a published checkpoint's metadata."""
    return f"chk-{epoch}/{METADATA}"


def data_paths(nonce: str) -> tuple[str, str, str]:
    """Return the paths of the data files that the attempt with that nonce may write.

    They are those of its keyed state, its operator state, and the full snapshot in the background.
    """
    return f"data/{nonce}.seg", f"data/{nonce}.operator.seg", f"data/{nonce}.base.seg"


def is_data_path(path: str) -> bool:
    """Return whether a path has the form of a data file's."""
    return path.startswith("data/") and _DATA.fullmatch(path.removeprefix("data/")) is not None


def _attempt_path(identity: TaskIdentity, suffix: str) -> str:
    name = f"{identity.run_id}.p{identity.partition}.t{identity.attempt}.{identity.nonce}.{suffix}"
    return f"attempts/epoch-{identity.epoch}/{name}"


def _attempt_file(epoch: int, name: str) -> AttemptFile | None:
    found = _ATTEMPT.fullmatch(name)
    if found is None:
        return None
    run_id, partition, attempt, nonce, suffix = found.groups()
    path = f"attempts/epoch-{epoch}/{name}"
    return AttemptFile(path, run_id, int(partition), int(attempt), nonce, suffix == "json")


def _numbers(names: Sequence[str], pattern: re.Pattern[str]) -> list[int]:
    return sorted(int(found[1]) for found in map(pattern.fullmatch, names) if found)
