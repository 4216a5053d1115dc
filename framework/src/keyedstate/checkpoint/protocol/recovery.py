"""The task's side: which run may use a folder, and which checkpoint an epoch begins from.

Spark's commit log orders everything: a run begins epoch N + 1 only after Spark has committed epoch N, and an
epoch has the same rows in every run.  So a checkpoint of epoch N, of whichever run, holds each row of the
epochs up to N once.  ``docs/explanation/epoch-protocol.md`` has the reasons for these invariants, and
``protocol/test_protocol_model.py`` of the tests checks them over interleavings of drivers, tasks, clean-ups:

P1. An epoch begins from the newest checkpoint of an epoch *before* it.  Only the number of the epoch decides,
    not the order in which runs entered the owner file.
P2. A run that is new to a folder enters it only where no checkpoint and no attempt is of a later epoch than
    its own.  Where one is, another run has overtaken it: Spark has committed this epoch already, and this
    run's commit will fail.  Where Spark's checkpoint location was set back instead, the user says so by a
    file (`keyedstate.checkpoint.protocol.operator_folder.SET_BACK`).
P3. Only the run that entered last publishes, and only its tasks finish attempts.  Where the storage has locks
    a run enters, publishes and finishes an attempt under one.
P4. An epoch that ran and has no checkpoint is published by the tasks of a later epoch.  It is published from
    the attempts of the run that continued to a later epoch, since that run's output was committed; where no
    run is known to have done so, from those of the newest run that finished all partitions.
P5. Attempts of the epoch of the newest checkpoint replace it where they are of a newer run, by the same
    choice.
P6. An epoch of which the chosen run has not exactly one finished attempt for each partition is an error: the
    result was evaluated only in part, or it is unknown which attempt's output Spark took.
P7. An epoch without any attempt was never evaluated (a ``foreachBatch`` function that ignored the batch).
    Where such epochs end a run, the next run may also have been one without the operator; for an operator of
    a streaming plan that is an error.
P8. Clean-up deletes attempts of an epoch when a checkpoint of it or of a later one exists, and before that
    those of superseded runs which can no longer finish (`keyedstate.checkpoint.protocol.retention`).
P9. An attempt of a run that its process knows to have entered the folder may write its marker before it reads
    the owner file.  That is as if it had read the file earlier: a newer run may always enter in between.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableSet, Sequence
from dataclasses import replace
from typing import TypeVar

from keyedstate.backend import StateMeta
from keyedstate.checkpoint.format.delta import ChainHandle
from keyedstate.checkpoint.format.manifest import (
    AttemptManifest,
    CheckpointMetadata,
    Owner,
    SavepointOrigin,
    TaskIdentity,
)
from keyedstate.checkpoint.format.native_files import StoredNativeHandle
from keyedstate.checkpoint.format.segment import SegmentHandle
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.protocol.operator_folder import (
    CONTINUE_AT,
    OWNER,
    SET_BACK,
    START_EMPTY,
    AttemptFile,
    OperatorFolder,
)
from keyedstate.checkpoint.protocol.owner import check_writer, exclusive
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import (
    CheckpointError,
    IncompleteEpochError,
    KeyedStateError,
    MaxParallelismChangedError,
    MissedEpochsError,
    MissingCheckpointError,
    MissingStateFolderError,
    OvertakenRunError,
    StateFolderOwnedError,
    SupersededRunError,
)
from keyedstate.keygroups import KeyGroupRange

M = TypeVar("M")
#: Runs that an owner file remembers; a zombie of an older one would have survived so many restarts.
REMEMBERED_RUNS = 100
_SHOWN_PARTITIONS = 8

#: What reads the files of a part of a checkpoint.
FilesHandle = SegmentHandle | ChainHandle | StoredNativeHandle


def claim(
    folder: OperatorFolder,
    identity: TaskIdentity,
    origin: Callable[[TaskIdentity], SavepointOrigin | None] = lambda identity: None,
) -> Owner:
    """Check that a folder belongs to this query, or claim a new one; every task calls it first.

    A query that is past its first epoch and finds no folder is refused.  Either the operator was added to a
    running query, or its folder was deleted: to begin without state would silently lose the state.  The error
    names the empty file by which a user allows it.

    Of two queries that claim a new folder at the same time one is refused; of two runs of a query the later
    one may write (`keyedstate.checkpoint.protocol.owner`).  The savepoint that a new folder begins from is
    what `origin` returns, whose errors are passed on.

    Raises
    ------
    StateFolderOwnedError
        Where the state is another query's or, on a file system that ignores case, another operator's.
    MaxParallelismChangedError
        Where the state has another number of key groups.
    SupersededRunError
        Where a newer run of the query has begun.
    OvertakenRunError
        Where another run has processed later epochs (P2).
    MissingStateFolderError
        Where there is no folder and the epoch is not the query's first.
    MissingCheckpointError
        Where there is state and only the owner file is missing.
    """
    owner = folder.read_owner()
    if owner is None:
        problem = _why_not_new(folder, identity)
        # Another task may have entered the run since, and then there is no problem.
        if problem is not None and folder.read_owner() is None:
            raise problem
    if owner is None or identity.run_id not in owner.runs:
        with exclusive(folder):
            owner = _entered(folder, identity, origin)
    _check_may_begin(folder, identity, owner)
    return owner


def _check_may_begin(folder: OperatorFolder, identity: TaskIdentity, owner: Owner) -> None:
    _check_owner(folder, identity, owner)
    newer = owner.superseded_by(identity.run_id)
    if newer is not None:
        raise SupersededRunError(folder.location, identity.run_id, newer)


def begin_attempt(
    folder: OperatorFolder,
    identity: TaskIdentity,
    mark: Callable[[], M],
    entered: MutableSet[tuple[str, str]],
    origin: Callable[[TaskIdentity], SavepointOrigin | None] = lambda identity: None,
    *,
    each_epoch: bool = False,
) -> tuple[Owner, M, CheckpointMetadata | None]:
    """Claim the folder, write the started marker by `mark`, and find the restore point.

    Returns and raises as these. `entered` has folders' URIs, each with a run that has entered it (P9).
    """
    run = folder.storage.uri, identity.run_id
    owner: Owner | None = None
    if run in entered and not folder.storage.is_local:
        marking = folder.storage.begin(mark)
        continuing = folder.storage.begin(lambda: _continued(folder, identity))
        owner = _still_owner(folder, identity, marking)
    if owner is None:
        owner = claim(folder, identity, origin)
        entered.add(run)
        marking = folder.storage.begin(mark)
        continuing = folder.storage.begin(lambda: _continued(folder, identity))
    marked, restore_point = marking(), continuing()
    if restore_point is None:
        restore_point = find_restore_point(folder, identity, each_epoch=each_epoch, owner=owner)
    return owner, marked, restore_point


def _still_owner(folder: OperatorFolder, identity: TaskIdentity, marking: Callable[[], M]) -> Owner | None:
    """Return the owner of a folder. Where the run may not begin, delete its marker; None if it is new."""
    owner = folder.read_owner()
    with contextlib.ExitStack() as refused:
        refused.callback(_delete_marker, folder, identity, marking)
        if owner is None or identity.run_id not in owner.runs:
            return None
        _check_may_begin(folder, identity, owner)
        refused.pop_all()
    return owner


def _delete_marker(folder: OperatorFolder, identity: TaskIdentity, marking: Callable[[], object]) -> None:
    # It may be there whatever its request has raised, and why the run may not begin is the error to raise.
    with contextlib.suppress(KeyedStateError):
        try:
            marking()
        finally:
            folder.delete_started(identity)


def _continued(folder: OperatorFolder, identity: TaskIdentity) -> CheckpointMetadata | None:
    """Return the checkpoint of the epoch before, if this run has published it.

    Then it is the restore point: no attempt before this epoch may replace a checkpoint of this run (P5).
    """
    metadata = folder.read_metadata(identity.epoch - 1) if identity.epoch else None
    if metadata is None or metadata.run_id != identity.run_id:
        return None
    _check_owner(folder, identity, metadata)
    return metadata


def drain(folder: OperatorFolder, run_id: str) -> None:
    """Record that the input of a run has ended: epochs that begin from now on fire all event-time timers."""
    with exclusive(folder):
        owner = folder.read_owner()
        if owner is not None and owner.runs and owner.runs[-1] == run_id:
            folder.write_owner(replace(owner, drained_run=run_id))


def _entered(
    folder: OperatorFolder,
    identity: TaskIdentity,
    origin: Callable[[TaskIdentity], SavepointOrigin | None],
) -> Owner:
    """Return the owner file after this run has entered it."""
    owner = folder.read_owner()
    if owner is None:
        owner = _new_owner(identity, identity.epoch, (identity.run_id,))
        owner = replace(owner, savepoint=origin(identity))
    else:
        _check_owner(folder, identity, owner)
        if identity.run_id in owner.runs:
            return owner
        _check_not_overtaken(folder, identity, owner)
        owner = replace(owner, runs=(*owner.runs, identity.run_id)[-REMEMBERED_RUNS:])
    folder.write_owner(owner)
    # Without a lock, the last write decides.
    return folder.read_owner() or owner


def _check_not_overtaken(folder: OperatorFolder, identity: TaskIdentity, owner: Owner) -> None:
    """Refuse a run whose epoch another run has passed, unless the user has set the query back (P2)."""
    consent = f"{SET_BACK}{identity.epoch}"
    if folder.storage.exists(consent):
        # Also where nothing is later: a consent that stayed would count for a run that is overtaken.
        _set_back(folder, identity, owner)
        return
    later = {epoch for epoch in folder.checkpoints() if epoch > identity.epoch}
    later |= {epoch for epoch in folder.attempt_epochs() if epoch > identity.epoch and folder.attempts(epoch)}
    if later:
        location = folder.storage.location(consent)
        raise OvertakenRunError(
            folder.location, identity.uid, identity.run_id, identity.epoch, max(later), location
        )


def _set_back(folder: OperatorFolder, identity: TaskIdentity, owner: Owner) -> None:
    """Delete this epoch and all later ones: their batches may have other rows now.

    The consent is deleted last, so that an interrupted deletion is repeated, and before the run enters, so
    that it counts once.
    """
    if identity.epoch > owner.first_epoch and _newest(folder, identity) is None:
        raise _no_checkpoint(folder, identity, folder.checkpoints())
    for epoch in reversed(folder.checkpoints()):
        if epoch >= identity.epoch:
            folder.delete_checkpoint(epoch)
    for epoch in reversed(folder.attempt_epochs()):
        if epoch >= identity.epoch:
            folder.delete_attempts(epoch)
    folder.storage.delete_file(f"{SET_BACK}{identity.epoch}")


def find_restore_point(
    folder: OperatorFolder, identity: TaskIdentity, *, each_epoch: bool = False, owner: Owner | None = None
) -> CheckpointMetadata | None:
    """Return the checkpoint that an epoch begins from, or None where it begins without state.

    To be called after `claim`.  Publishes the checkpoint of an earlier epoch that its driver did not publish.

    Parameters
    ----------
    each_epoch : bool, default False
        Whether the operator is part of a streaming plan, which Spark evaluates in each epoch of a run.
    owner : Owner, optional
        What `claim` returned; else it is read again.

    Raises
    ------
    IncompleteEpochError
        Where an earlier epoch ran, and its checkpoint cannot be made.
    SupersededRunError
        Where a newer run of the query has begun before that checkpoint was published.
    MissingCheckpointError
        Where a checkpoint must exist and does not.
    MissedEpochsError
        Where the query has continued without the operator.
    StateFolderOwnedError, MaxParallelismChangedError
        Where a checkpoint is another query's or has another number of key groups.
    CorruptFileError, FormatVersionError, StorageError
        Where a file, which is named, cannot be read.
    """
    owner = owner or folder.read_owner() or _new_owner(identity, 0, ())
    newest, attempts = _look(folder, identity)
    for epoch in attempts:
        newest = _completed(folder, identity, owner, epoch, attempts, newest)
    if newest is None and identity.epoch > owner.first_epoch:
        raise _no_checkpoint(folder, identity, folder.checkpoints())
    missed = newest is not None and newest.epoch < identity.epoch - 1 and newest.run_id != identity.run_id
    consent = f"{CONTINUE_AT}{identity.epoch}"
    if each_epoch and newest is not None and missed and not folder.storage.exists(consent):
        location = folder.storage.location(consent)
        raise MissedEpochsError(folder.location, identity.uid, identity.epoch, newest.epoch, location)
    return newest


def _no_checkpoint(
    folder: OperatorFolder, identity: TaskIdentity, published: Sequence[int]
) -> MissingCheckpointError:
    later = [f"chk-{epoch}" for epoch in published if epoch >= identity.epoch]
    found = f"there are only {', '.join(later)}" if later else "it has neither a checkpoint nor an attempt"
    return MissingCheckpointError(folder.location, identity.uid, identity.epoch, found)


def handles_for(
    metadata: CheckpointMetadata, storage: CheckpointStorage, key_groups: KeyGroupRange
) -> list[FilesHandle]:
    """Open the files of a checkpoint that have entries of some key groups; the handles read only these.

    The storage is the operator's own folder.  Raises a `CheckpointError` where a file, which is named, cannot
    be read; no handle stays open.
    """
    handles: list[FilesHandle] = []
    with contextlib.ExitStack() as opened:

        def open_segment(file: SegmentFile, wanted: KeyGroupRange | None) -> SegmentHandle:
            return opened.enter_context(contextlib.closing(SegmentHandle.open(storage, file, wanted)))

        for part in metadata.parts:
            native = part.native
            if native is not None and native.key_groups.intersection(key_groups):
                states = [StateMeta.from_json(dict(state)) for state in part.states]
                handles.append(
                    StoredNativeHandle(storage, native, states, part.deltas, part.entries, key_groups)
                )
            for segment in part.segments:
                if not segment.key_groups.intersection(key_groups):
                    continue
                # All of a delta is read: it has one stream for all key groups.
                files = [(segment, key_groups), *((delta, None) for delta in part.deltas)]
                full, *deltas = storage.for_each(lambda each: open_segment(*each), files)
                if deltas:
                    states = [StateMeta.from_json(dict(state)) for state in part.states]
                    handles.append(ChainHandle(full, deltas, states))
                else:
                    handles.append(full)
        opened.pop_all()
    return handles


@contextlib.contextmanager
def opened_handles(
    metadata: CheckpointMetadata, storage: CheckpointStorage, key_groups: KeyGroupRange
) -> Iterator[list[FilesHandle]]:
    """Give what `handles_for` returns, and close it at the end."""
    handles = handles_for(metadata, storage, key_groups)
    try:
        yield handles
    finally:
        for handle in handles:
            handle.close()


def _new_owner(identity: TaskIdentity, first_epoch: int, runs: tuple[str, ...]) -> Owner:
    return Owner(identity.query_id, identity.uid, identity.max_parallelism, first_epoch, runs)


def _why_not_new(folder: OperatorFolder, identity: TaskIdentity) -> CheckpointError | None:
    if folder.has_state():
        found = f"its file {OWNER} is gone, so it is unknown whose state the rest is"
        return MissingCheckpointError(folder.location, identity.uid, identity.epoch, found)
    if identity.epoch > 0 and not folder.storage.exists(START_EMPTY):
        consent = folder.storage.location(START_EMPTY)
        siblings = folder.siblings(identity.query_id)
        return MissingStateFolderError(folder.location, identity.uid, identity.epoch, consent, siblings)
    return None


def _check_owner(folder: OperatorFolder, identity: TaskIdentity, found: Owner | CheckpointMetadata) -> None:
    if found.query_id != identity.query_id:
        raise StateFolderOwnedError(folder.location, f"query {found.query_id}", identity.query_id)
    if found.uid != identity.uid:
        owner = f"the operator {found.uid!r} of this query"
        raise StateFolderOwnedError(folder.location, owner, identity.query_id)
    if found.max_parallelism != identity.max_parallelism:
        raise MaxParallelismChangedError(found.max_parallelism, identity.max_parallelism)


def _newest(folder: OperatorFolder, identity: TaskIdentity) -> CheckpointMetadata | None:
    """Return the newest checkpoint of an epoch before this one (P1)."""
    metadata = folder.newest_before(identity.epoch)
    if metadata is not None:
        _check_owner(folder, identity, metadata)
    return metadata


def _look(
    folder: OperatorFolder, identity: TaskIdentity
) -> tuple[CheckpointMetadata | None, dict[int, list[AttemptFile]]]:
    """Return the newest checkpoint, and the attempts of earlier epochs that it may lack, ascending.

    Clean-up deletes attempts once a later epoch is published, so attempts are listed first: an attempt that
    is deleted then is in a checkpoint that is listed afterwards.  A folder that becomes empty in between is
    listed again.
    """
    before: object = None
    while True:
        epochs = folder.attempt_epochs()
        newest = _newest(folder, identity)
        first = 0
        if newest is not None:
            # Attempts of its own run are in it; other runs may have repeated its epoch.
            first = newest.epoch + (newest.run_id == identity.run_id)
        attempts = {epoch: folder.attempts(epoch) for epoch in epochs if first <= epoch < identity.epoch}
        if all(attempts.values()) or before == (newest, attempts):
            return newest, {epoch: found for epoch, found in attempts.items() if found}
        before = newest, attempts


def _completed(
    folder: OperatorFolder,
    identity: TaskIdentity,
    owner: Owner,
    epoch: int,
    attempts: Mapping[int, Sequence[AttemptFile]],
    newest: CheckpointMetadata | None,
) -> CheckpointMetadata:
    """Return the checkpoint of an epoch that ran; publishes it if it is not the newest one."""
    by_run: defaultdict[str, list[AttemptFile]] = defaultdict(list)
    for attempt in attempts[epoch]:
        by_run[attempt.run_id].append(attempt)
    published = newest if newest is not None and newest.epoch == epoch else None
    went_on = {attempt.run_id for later in attempts if later > epoch for attempt in attempts[later]}
    went_on.add(identity.run_id)
    committed = [run for run in by_run if run in went_on]
    oldest_first = sorted(by_run, key=lambda run: (owner.position(run), run))
    candidates = committed or oldest_first[::-1]
    problems: dict[str, str] = {}
    for run in candidates:
        if published is not None and owner.position(run) <= owner.position(published.run_id):
            return published
        manifests, problem = _finished(folder, by_run[run])
        if not problem:
            return _publish(folder, identity, manifests)
        problems[run] = problem
    if published is not None and not committed:
        return published
    # Another task may have seen less than this one, enough to publish (a zombie finished in between).
    meanwhile = folder.read_metadata(epoch)
    if meanwhile is not None and meanwhile != published:
        return meanwhile
    details = [f"run {run}: {problem}" if len(problems) > 1 else problem for run, problem in problems.items()]
    raise IncompleteEpochError(identity.uid, epoch, "; ".join(details), folder.location)


def _finished(folder: OperatorFolder, attempts: Sequence[AttemptFile]) -> tuple[list[AttemptManifest], str]:
    """Return the manifests of a run's finished attempts at an epoch, and why they make no checkpoint."""
    finished = [attempt.path for attempt in attempts if attempt.finished]
    manifests = list(folder.storage.for_each(folder.read_manifest, finished))
    parallelisms = {manifest.identity.parallelism for manifest in manifests}
    if len(parallelisms) == 1:
        return manifests, _ambiguous_partitions(attempts, parallelisms.pop())
    began = sorted({attempt.partition for attempt in attempts})
    what = "ran with different parallelisms" if parallelisms else "none finished"
    return [], f"attempts of the partitions {_shown(began)} began and {what}"


def _publish(
    folder: OperatorFolder, identity: TaskIdentity, manifests: Sequence[AttemptManifest]
) -> CheckpointMetadata:
    metadata = CheckpointMetadata.of(manifests)
    _check_owner(folder, identity, metadata)
    with exclusive(folder):
        check_writer(folder, identity.query_id, identity.run_id)
        folder.write_metadata(metadata)
    return metadata


def _ambiguous_partitions(attempts: Sequence[AttemptFile], parallelism: int) -> str:
    """Describe the partitions that do not have exactly one finished attempt; empty where all have."""
    finished: defaultdict[int, list[int]] = defaultdict(list)
    started: defaultdict[int, set[str]] = defaultdict(set)
    for attempt in attempts:
        started[attempt.partition].add(attempt.nonce)
        if attempt.finished:
            finished[attempt.partition].append(attempt.attempt)
    problems = []
    for partition in range(parallelism):
        if len(finished[partition]) > 1:
            numbers = " and ".join(map(str, sorted(finished[partition])))
            problems.append(f"partition {partition} has several finished attempts (task attempts {numbers})")
        elif not finished[partition]:
            count = len(started[partition])
            began = f"{count} began" if count else "none began"
            problems.append(f"partition {partition} has no finished attempt ({began})")
    return f"of {parallelism} partitions, {_shown(problems)}" if problems else ""


def _shown(items: Sequence[object]) -> str:
    rest = len(items) - _SHOWN_PARTITIONS
    listed = ", ".join(map(str, items[:_SHOWN_PARTITIONS]))
    return f"{listed} and {rest} more" if rest > 0 else listed
