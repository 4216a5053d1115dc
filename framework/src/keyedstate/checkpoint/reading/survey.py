"""The content of an operator's folder by names and metadata: checkpoints, and epochs without one."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, Owner
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.protocol.operator_folder import METADATA, OWNER, AttemptFile, metadata_path
from keyedstate.checkpoint.savepoint.location import StoredOperator
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.errors import (
    CheckpointError,
    CorruptFileError,
    FormatVersionError,
    MissingFileError,
    UnreadableStateError,
)


class Fault(str, enum.Enum):
    """What is wrong with a file."""

    DAMAGED = "damaged"
    MISSING = "missing"
    #: A newer keyedstate wrote it.
    TOO_NEW = "too new"
    #: Its bytes are right, and a type in it is not known here; or the storage does not let it be read.
    UNREADABLE = "unreadable"


def fault_of(error: CheckpointError) -> tuple[Fault, str]:
    """Return what is wrong with a file that cannot be read, also in words."""
    if isinstance(error, MissingFileError):
        return Fault.MISSING, "the file does not exist"
    if isinstance(error, CorruptFileError):
        return Fault.DAMAGED, error.what
    if isinstance(error, FormatVersionError):
        newer = f"it has the format version {error.version}, and up to {error.supported} can be read here"
        return Fault.TOO_NEW, f"{newer}. Upgrade keyedstate."
    if isinstance(error, UnreadableStateError):
        return Fault.UNREADABLE, f"the state {error.state!r}: {error.reason}"
    return Fault.UNREADABLE, str(error)


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of an operator."""

    #: None where the metadata of a savepoint cannot be read.
    epoch: int | None
    #: Of its metadata, in the operator's folder.
    path: str
    #: What is wrong with the metadata, and in words; None and nothing where it can be read or is not there.
    fault: Fault | None
    problem: str
    #: When its metadata was written, by the file system's clock.
    published_ms: int | None
    #: None where it cannot be read, and for a folder that lacks it.
    metadata: CheckpointMetadata | None
    #: When the last lease on it expires; None without a lease.
    leased_until_ms: int | None = None

    @property
    def status(self) -> str:
        """Whether it can be used: ``complete``, ``unfinished`` for a folder without metadata, or a fault."""
        if self.fault is not None:
            return self.fault.value
        return "unfinished" if self.metadata is None else "complete"


@dataclass(frozen=True)
class UnpublishedEpoch:
    """An epoch with attempts that has no checkpoint yet, or not any more."""

    epoch: int
    #: Whether a later epoch has a checkpoint: then clean-up will delete it.
    is_left_over: bool
    #: The newest run that has attempts.
    run_id: str
    #: Markers and manifests, those of older runs too.
    attempts: tuple[AttemptFile, ...]

    @property
    def finished(self) -> list[int]:
        """The partitions of the newest run that have a finished attempt, one for each attempt."""
        return sorted(one.partition for one in self.attempts if one.finished and one.run_id == self.run_id)

    @property
    def begun(self) -> list[int]:
        """The partitions of the newest run that began and have no finished attempt."""
        began = {one.partition for one in self.attempts if one.run_id == self.run_id}
        return sorted(began.difference(self.finished))


@dataclass(frozen=True)
class Survey:
    """The content of an operator's folder."""

    operator: StoredOperator
    #: None where the file is not there or cannot be read, and in a savepoint.
    owner: Owner | None
    #: What is wrong with the owner's file, in words.
    owner_problem: str
    #: The newest first.
    checkpoints: tuple[Checkpoint, ...]
    #: The newest first.
    unpublished: tuple[UnpublishedEpoch, ...]

    @property
    def newest(self) -> Checkpoint | None:
        """The checkpoint that the next epoch begins from; None where none can be read."""
        return next((one for one in self.checkpoints if one.metadata is not None), None)

    @property
    def has_problem(self) -> bool:
        """Whether something that should be readable is not."""
        return bool(self.owner_problem) or any(one.fault for one in self.checkpoints)


def survey(operator: StoredOperator) -> Survey:
    """Look at an operator's folder; raises `StorageError` where folders cannot be listed."""
    folder = operator.folder
    if folder is None:
        return Survey(operator, None, "", (_read(operator, None),), ())
    owner, owner_problem = None, ""
    try:
        owner = folder.read_owner()
        if owner is None and folder.has_state():
            owner_problem = f"its file {OWNER} is gone, so it is unknown whose state this is"
    except CheckpointError as error:
        owner_problem = str(error)
    found = [_read(operator, epoch) for epoch in reversed(folder.checkpoints())]
    leases = [lease for lease in folder.leases() if lease.expires_ms > time.time() * 1000]
    until = {lease.epoch: lease.expires_ms for lease in sorted(leases, key=lambda one: one.expires_ms)}
    found = [replace(one, leased_until_ms=until.get(one.epoch)) for one in found if one.epoch is not None]
    published = {one.metadata.epoch for one in found if one.metadata is not None}
    unpublished = []
    for epoch in reversed(folder.attempt_epochs()):
        attempts = folder.attempts(epoch)
        if attempts and epoch not in published:
            runs = {attempt.run_id for attempt in attempts}
            run_id = max(runs, key=lambda run: (-1 if owner is None else owner.position(run), run))
            is_left_over = any(other > epoch for other in published)
            unpublished.append(UnpublishedEpoch(epoch, is_left_over, run_id, tuple(attempts)))
    return Survey(operator, owner, owner_problem, tuple(found), tuple(unpublished))


#: What a file of the backend's own is for.
NATIVE = "native full snapshot"


def files_of(part: AttemptManifest) -> Iterator[tuple[str, SegmentFile]]:
    """Yield every file of a part of a checkpoint, with its role.

    The digest of a `NATIVE` one is that of all its bytes.
    """
    roles = dict.fromkeys((file.path for file in part.segments), "full snapshot")
    roles |= dict.fromkeys((file.path for file in part.deltas), "delta")
    for file in part.files:
        yield roles.get(file.path, "operator state"), file
    if part.native is not None:
        for native in part.native.files:
            groups = part.native.key_groups
            yield NATIVE, SegmentFile(native.path, native.bytes, native.sha256, groups, {})


def bytes_of(metadata: CheckpointMetadata) -> int:
    """Return the size of all files that a checkpoint needs."""
    return sum({file.path: file.bytes for part in metadata.parts for file in part.all_files}.values())


def backends_of(metadata: CheckpointMetadata) -> list[str]:
    """Return the backends, with their versions, that wrote a checkpoint."""
    return sorted({f"{part.backend} {part.backend_version}" for part in metadata.parts})


def deltas_of(metadata: CheckpointMetadata) -> int:
    """Return the length of the longest chain of deltas."""
    return max(len(part.deltas) for part in metadata.parts)


def entries_of(metadata: CheckpointMetadata) -> int:
    """Return how many entries the keyed states have in all."""
    return sum(count for part in metadata.parts for count in part.entries.values())


def _read(operator: StoredOperator, epoch: int | None) -> Checkpoint:
    path = METADATA if epoch is None else metadata_path(epoch)
    fault, problem, metadata = None, "", None
    try:
        if operator.folder is not None and epoch is not None:
            metadata = operator.folder.read_metadata(epoch)
        else:
            metadata = OperatorSnapshot.open(operator.storage).metadata
    except CheckpointError as error:
        fault, problem = fault_of(error)
    files = operator.storage.describe(path.rpartition("/")[0])
    published_ms = next((file.modified_ms for file in files if file.name == METADATA), None)
    return Checkpoint(metadata.epoch if metadata else epoch, path, fault, problem, published_ms, metadata)
