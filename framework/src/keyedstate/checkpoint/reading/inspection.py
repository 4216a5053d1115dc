"""Verifies every byte of stored state, and reports damage and orphaned files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from keyedstate.checkpoint.format.manifest import AttemptManifest, owner_path
from keyedstate.checkpoint.format.segment import SegmentHandle
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.protocol.leases import leased_data_files
from keyedstate.checkpoint.protocol.operator_folder import METADATA, OWNER, data_paths
from keyedstate.checkpoint.reading.survey import (
    NATIVE,
    Checkpoint,
    Fault,
    Survey,
    fault_of,
    files_of,
    survey,
)
from keyedstate.checkpoint.savepoint.location import StoredOperator
from keyedstate.checkpoint.savepoint.savepoint import SPARK, SavepointFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage, StoredFile
from keyedstate.errors import (
    CheckpointError,
    CorruptFileError,
    MissingFileError,
    UnreadableStateError,
)
from keyedstate.keygroups import KeyGroupRange

#: Takes the bytes that were read since it was called last.
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Problem:
    """A file that is damaged, missing or unreadable."""

    #: In the operator's folder.
    path: str
    fault: Fault = field(metadata={"json": "problem"})
    detail: str
    #: Those whose checkpoints need the file, the newest first; empty in a savepoint.
    epochs: tuple[int, ...] = ()
    #: Those whose state is in it.
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """A file to read, and what references it."""

    segment: SegmentFile
    role: str
    #: The files that name it: metadata of checkpoints, manifests of attempts.
    named_by: set[str] = field(default_factory=set)
    epochs: set[int] = field(default_factory=set)
    partitions: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Inspection:
    """The result for one operator's folder."""

    survey: Survey
    #: Those that were to be read, the newest first.
    checkpoints: tuple[Checkpoint, ...]
    problems: tuple[Problem, ...]
    #: Data files that were read, and their size.
    files: int
    bytes: int
    #: Files that nothing names, ``name`` being the path; None where metadata that might name them is damaged.
    orphans: tuple[StoredFile, ...] | None
    #: The metadata of checkpoints that clean-up has deleted before all of their files were read.
    deleted: frozenset[str]

    def problems_of(self, checkpoint: Checkpoint) -> list[Problem]:
        """Return the problems of one checkpoint."""
        return [
            problem
            for problem in self.problems
            if checkpoint.epoch in problem.epochs or problem.path == checkpoint.path
        ]

    @property
    def newest_whole(self) -> Checkpoint | None:
        """The newest checkpoint without any problem; None where every one has a problem."""
        known = (one for one in self.checkpoints if one.metadata is not None)
        return next(
            (one for one in known if one.path not in self.deleted and not self.problems_of(one)), None
        )


class Inspector:
    """Reads the files of some checkpoints of one operator.

    The `candidates` are the data files that existed before the survey.  Those that still exist at the end,
    unreferenced, are orphans.
    """

    def __init__(
        self, found: Survey, checkpoints: Sequence[Checkpoint], candidates: Sequence[StoredFile]
    ) -> None:
        self._survey = found
        self._storage = found.operator.storage
        self._checkpoints = tuple(checkpoints)
        self._candidates = candidates
        self._problems: list[Problem] = []
        self._wanted: dict[tuple[str, str], Wanted] = {}
        self._deleted: set[str] = set()
        self._collect()

    @property
    def bytes(self) -> int:
        """The size of what `run` will read."""
        return sum(wanted.segment.bytes for wanted in self._wanted.values())

    def run(self, advance: Advance) -> Inspection:
        """Read everything."""
        unnamed = _unnamed(self._survey.operator, self._candidates)
        for wanted in self._wanted.values():
            problem = self._problem_of(wanted, advance)
            if problem is not None:
                self._problems.append(problem)
        if unnamed:
            # Once more: clean-up deletes metadata first, and may have been between that and the data.
            unnamed = _unnamed(self._survey.operator, unnamed)
        return Inspection(
            self._survey,
            self._checkpoints,
            tuple(self._problems),
            len(self._wanted),
            self.bytes,
            None if unnamed is None else tuple(unnamed),
            frozenset(self._deleted),
        )

    def _collect(self) -> None:
        if self._survey.owner_problem:
            fault = Fault.DAMAGED if self._storage.exists(OWNER) else Fault.MISSING
            self._problems.append(Problem(OWNER, fault, self._survey.owner_problem))
        for checkpoint in self._checkpoints:
            if checkpoint.fault is not None:
                epochs = () if checkpoint.epoch is None else (checkpoint.epoch,)
                self._problems.append(Problem(checkpoint.path, checkpoint.fault, checkpoint.problem, epochs))
            elif checkpoint.metadata is not None:
                for part in checkpoint.metadata.parts:
                    self._want(part, checkpoint.path)
        for epoch in self._survey.unpublished:
            for attempt in epoch.attempts:
                if attempt.finished and not epoch.is_left_over:
                    self._want_attempt(attempt.path, epoch.epoch)

    def _want_attempt(self, path: str, epoch: int) -> None:
        assert self._survey.operator.folder is not None, "attempts are those of an operator's folder"
        try:
            self._want(self._survey.operator.folder.read_manifest(path), path)
        except MissingFileError:
            # Clean-up has deleted it since it was listed.
            return
        except CheckpointError as error:
            self._problems.append(Problem(path, *fault_of(error), (epoch,)))

    def _want(self, part: AttemptManifest, named_by: str) -> None:
        for role, segment in files_of(part):
            key = segment.path, segment.digest
            wanted = self._wanted.setdefault(key, Wanted(segment, role))
            wanted.named_by.add(named_by)
            wanted.epochs.add(part.identity.epoch)
            wanted.partitions.add(part.identity.partition)
        counted = dict.fromkeys(part.entries, 0)
        for segment in part.segments:
            for state, count in segment.entries.items():
                counted[state] = counted.get(state, 0) + count
        # A full snapshot may leave out what is expired.
        differs = any(
            count > part.entries.get(state, 0) if state in part.ttl_ms else count != part.entries.get(state)
            for state, count in counted.items()
        )
        if part.segments and not part.deltas and differs:
            detail = (
                f"partition {part.identity.partition} claims other numbers of entries than its files have"
            )
            epochs, partitions = (part.identity.epoch,), (part.identity.partition,)
            self._problems.append(Problem(named_by, Fault.DAMAGED, detail, epochs, partitions))

    def _problem_of(self, wanted: Wanted, advance: Advance) -> Problem | None:
        faults = list(_faults_of(self._storage, wanted, advance))
        missing = [found for found in faults if found[0] is Fault.MISSING]
        if missing:
            gone = {path for path in wanted.named_by if not self._storage.exists(path)}
            self._deleted |= gone
            if gone == wanted.named_by:
                # Clean-up has deleted it together with all that named it.
                return None
            faults = missing[:1]
        if not faults:
            return None
        fault, detail = faults[0]
        if len(faults) > 1:
            detail += f"; and {len(faults) - 1} more"
        epochs = tuple(sorted(wanted.epochs, reverse=True))
        return Problem(wanted.segment.path, fault, detail, epochs, tuple(sorted(wanted.partitions)))


def problems_of_savepoint(savepoint: SavepointFolder) -> list[Problem]:
    """Verify the files of a savepoint other than the operators' data: metadata, and the files of Spark."""
    readings: dict[str, Callable[[], object]] = {
        f"{uid}/{METADATA}": partial(savepoint.metadata, uid) for uid in savepoint.operators
    }
    for path in savepoint.spark_files():
        readings[f"{SPARK}/{path}"] = partial(savepoint.read_spark_file, path)
    found = []
    for path, reading in readings.items():
        try:
            reading()
        except CheckpointError as error:
            found.append(Problem(path, *fault_of(error)))
    return found


def data_files(storage: CheckpointStorage) -> list[StoredFile]:
    """Return the data files of an operator, and temporary files of killed processes, by their paths."""
    return [
        StoredFile(f"data/{file.name}", False, file.bytes, file.modified_ms)
        for file in storage.describe("data")
        if not file.is_folder
    ]


def _unnamed(operator: StoredOperator, files: Sequence[StoredFile]) -> list[StoredFile] | None:
    """Return the data files that exist and nothing references; None where that cannot be known.

    Each look follows the one that its files come from: a file is listed, then the attempt that writes it,
    then the checkpoint that takes it over, then the lease that outlives the checkpoint.
    """
    folder = operator.folder
    attempts = {} if folder is None else {epoch: folder.attempts(epoch) for epoch in folder.attempt_epochs()}
    found = survey(operator)
    if any(checkpoint.fault for checkpoint in found.checkpoints):
        return None
    known = [checkpoint.metadata for checkpoint in found.checkpoints if checkpoint.metadata is not None]
    used = {path for metadata in known for part in metadata.parts for path in part.kept_files}
    for epoch, of_epoch in attempts.items():
        if found.newest is None or found.newest.epoch is None or epoch >= found.newest.epoch:
            used.update(path for attempt in of_epoch for path in data_paths(attempt.nonce))
    if folder is not None:
        used |= leased_data_files(folder)
    unnamed = [file for file in files if file.name not in used and owner_path(file.name) not in used]
    return [file for file in unnamed if operator.storage.exists(file.name)]


def _faults_of_native(
    storage: CheckpointStorage, file: SegmentFile, advance: Advance
) -> Iterator[tuple[Fault, str]]:
    """Compare a native file with its digest; only its backend could decode it."""
    digest, done = hashlib.sha256(), 0
    try:
        with storage.open_input(file.path) as source:
            for piece in source.pieces():
                digest.update(piece)
                done += len(piece)
                advance(len(piece))
    except CheckpointError as error:
        yield fault_of(error)
        return
    finally:
        advance(file.bytes - done)
    if digest.hexdigest() != file.digest:
        yield Fault.DAMAGED, "it is not the file that was written"


def _faults_of(storage: CheckpointStorage, wanted: Wanted, advance: Advance) -> Iterator[tuple[Fault, str]]:
    """Read one file to its end, and yield its faults."""
    if wanted.role == NATIVE:
        yield from _faults_of_native(storage, wanted.segment, advance)
        return
    segment, left = wanted.segment, wanted.segment.bytes
    entries = sum(segment.entries.values())
    try:
        handle = SegmentHandle.open(storage, segment)
    except CheckpointError as error:
        advance(left)
        yield fault_of(error)
        return
    unreadable: dict[str, UnreadableStateError] = {}
    try:
        for state in segment.entries:
            for group in segment.key_groups:
                try:
                    for batch in handle.entries(state, group):
                        if wanted.role == "delta":
                            _check_groups(handle.location, segment.key_groups, batch.values)
                        done = segment.bytes * len(batch) // max(entries, 1)
                        left -= done
                        advance(done)
                except UnreadableStateError as error:
                    # Its checksum is right; only the values cannot be decoded.
                    unreadable[state] = error
                except CheckpointError as error:
                    yield fault_of(error)
        yield from map(fault_of, unreadable.values())
    finally:
        handle.close()
        advance(left)


def _check_groups(
    location: str, key_groups: KeyGroupRange, values: Collection[tuple[int, bool, object]]
) -> None:
    for group, _, _ in values:
        if group not in key_groups:
            raise CorruptFileError(location, f"a change of key group {group} is in it")
