"""The task's side: whose state a folder is, and which checkpoint an epoch begins from.

The rules, each of which has a test of its own:

- An epoch begins from the newest checkpoint of an epoch *before* it.  A checkpoint of the same or a later
  epoch exists when Spark runs a batch again that it had not committed; it is never a base.
- Attempts of an epoch between that checkpoint and this one say that the epoch ran and nobody published it
  (the driver's accumulator update failed, or the driver died at the wrong moment).  Spark has committed it
  nevertheless, so it is published now, by whichever task comes first; all would write the same bytes.
- It can be published when its newest run has exactly one finished attempt for each partition.  The newest run
  is the one that Spark committed, for an older one would not have been followed by another.  Where a
  partition has two finished attempts it is unknown which one's output Spark took; where it has none, the
  result was evaluated only in part.  Both are errors: to go on would lose or double what the epoch did.
- Attempts of the epoch of that checkpoint itself, by a newer run than the checkpoint's, count for more than
  it: Spark took the newer run's output.
- An epoch without any attempt was never evaluated (a ``foreachBatch`` function that left the batch alone);
  the state did not change in it.  But where such epochs end a run, the next run may also have been one
  without the operator, which is in the query again now.  For an operator of a streaming plan that is an
  error: to go on silently would lose what those epochs should have done.
- Only the newest run of a query may use a folder.  Each run enters itself in the owner file when its first
  task comes; an older one finds itself superseded.  What its tasks, still running as zombies, write is named
  after them, and nothing looks at attempts of an epoch that has a checkpoint or a newer run.
- Where Spark's own checkpoint was set back to an earlier epoch, checkpoints of later epochs are left over
  from the abandoned future.  A checkpoint of an older run than that of an earlier epoch is one, and no base.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from keyedstate.backend import StateMeta
from keyedstate.checkpoint.delta import ChainHandle
from keyedstate.checkpoint.errors import (
    CheckpointError,
    CorruptManifestError,
    IncompleteEpochError,
    MaxParallelismChangedError,
    MissedEpochsError,
    MissingCheckpointError,
    MissingStateFolderError,
    StateFolderOwnedError,
    SupersededRunError,
)
from keyedstate.checkpoint.folder import CONTINUE_AT, OWNER, START_EMPTY, AttemptFile, OperatorFolder
from keyedstate.checkpoint.manifest import (
    AttemptManifest,
    CheckpointMetadata,
    Owner,
    SavepointOrigin,
    TaskIdentity,
)
from keyedstate.checkpoint.native import StoredNativeHandle
from keyedstate.checkpoint.segment import SegmentFile, SegmentHandle
from keyedstate.checkpoint.storage import CheckpointStorage
from keyedstate.checkpoint.writer import check_writer, exclusive
from keyedstate.keygroups import KeyGroupRange

#: Runs that an owner file remembers; a zombie of an older one would have survived so many restarts.
REMEMBERED_RUNS = 100
_SHOWN_PARTITIONS = 8


def claim(
    folder: OperatorFolder,
    identity: TaskIdentity,
    origin: Callable[[TaskIdentity], SavepointOrigin | None] = lambda identity: None,
) -> Owner:
    """Check that a folder is this query's, and make it so where it is nobody's; every task calls it first.

    A query that is past its first epoch and finds no folder is refused: nothing tells an operator that was
    added to a running query from one whose folder was deleted, and to begin without state would lose the
    state of the latter silently.  The error names the empty file by which a user allows it.

    Parameters
    ----------
    folder : OperatorFolder
    identity : TaskIdentity
    origin : callable, optional
        Gives the savepoint that a folder which is nobody's is to begin from; what it raises is passed on.

    Raises
    ------
    StateFolderOwnedError
        Where the state is another query's or, on a file system that ignores case, another operator's.
    MaxParallelismChangedError
        Where the state has another number of key groups.
    SupersededRunError
        Where a newer run of the query has begun.
    MissingStateFolderError
        Where there is no folder and the epoch is not the query's first.
    MissingCheckpointError
        Where there is state and only the owner file is gone.

    Notes
    -----
    Of two queries that come to a new folder in the same instant one is refused, and of two runs of a query
    the later one may write: see `keyedstate.checkpoint.writer`.
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
    _check_owner(folder, identity, owner)
    newer = owner.superseded_by(identity.run_id)
    if newer is not None:
        raise SupersededRunError(folder.location, identity.run_id, newer)
    return owner


def drain(folder: OperatorFolder, run_id: str) -> None:
    """Say that the input of a run is over: epochs that begin from now on fire all event-time timers."""
    with exclusive(folder):
        owner = folder.read_owner()
        if owner is not None and owner.runs and owner.runs[-1] == run_id:
            folder.write_owner(replace(owner, drained_run=run_id))


def _entered(
    folder: OperatorFolder,
    identity: TaskIdentity,
    origin: Callable[[TaskIdentity], SavepointOrigin | None],
) -> Owner:
    """Return the owner file with this run in it."""
    owner = folder.read_owner()
    if owner is None:
        owner = _new_owner(identity, identity.epoch, (identity.run_id,))
        owner = replace(owner, savepoint=origin(identity))
    else:
        _check_owner(folder, identity, owner)
        if identity.run_id in owner.runs:
            return owner
        owner = replace(owner, runs=(*owner.runs, identity.run_id)[-REMEMBERED_RUNS:])
    folder.write_owner(owner)
    # Where there is no lock, the last write decides who it is.
    return folder.read_owner() or owner


def _check_owner(folder: OperatorFolder, identity: TaskIdentity, owner: Owner) -> None:
    _check_query(folder, identity, owner.query_id, owner.uid)
    if owner.max_parallelism != identity.max_parallelism:
        raise MaxParallelismChangedError(owner.max_parallelism, identity.max_parallelism)


def find_restore_point(
    folder: OperatorFolder, identity: TaskIdentity, *, each_epoch: bool = False, owner: Owner | None = None
) -> CheckpointMetadata | None:
    """Return the checkpoint that an epoch begins from, or None where it begins without state.

    To be called after `claim`.  Publishes the checkpoint of an epoch before where that was left undone.

    Parameters
    ----------
    folder : OperatorFolder
    identity : TaskIdentity
    each_epoch : bool, default False
        Whether the operator is part of a streaming plan, which Spark evaluates in each epoch of a run.
    owner : Owner, optional
        What `claim` returned; else it is read again.

    Raises
    ------
    IncompleteEpochError
        Where an epoch before this one ran, and its checkpoint cannot be made.
    SupersededRunError
        Where a newer run of the query has begun before that checkpoint was published.
    MissingCheckpointError
        Where there must have been a checkpoint and there is none.
    MissedEpochsError
        Where the query has gone on without the operator.
    StateFolderOwnedError, MaxParallelismChangedError
        Where a checkpoint is another query's or has another number of key groups.
    CorruptManifestError, FormatVersionError, StorageError
        Where a file, which is named, cannot be read.
    """
    owner = owner or folder.read_owner() or _new_owner(identity, 0, ())
    published = folder.checkpoints()
    before = [epoch for epoch in published if epoch < identity.epoch]
    newest = _newest_of_lineage(folder, identity, owner, before)
    for epoch in folder.attempt_epochs():
        if epoch < identity.epoch and (newest is None or _may_follow(folder, identity, owner, epoch, newest)):
            newest = _complete(folder, identity, owner, epoch, newest) or newest
    if newest is None and identity.epoch > owner.first_epoch:
        later = [f"chk-{epoch}" for epoch in published if epoch >= identity.epoch]
        found = (
            f"there are only {', '.join(later)}" if later else "neither a checkpoint nor an attempt is there"
        )
        raise MissingCheckpointError(folder.location, identity.uid, identity.epoch, found)
    if each_epoch and newest is not None:
        _refuse_missed_epochs(folder, identity, newest)
    return newest


def _refuse_missed_epochs(folder: OperatorFolder, identity: TaskIdentity, newest: CheckpointMetadata) -> None:
    if newest.run_id == identity.run_id or newest.epoch >= identity.epoch - 1:
        return
    if not folder.may_continue_at(identity.epoch):
        consent = folder.storage.location(f"{CONTINUE_AT}{identity.epoch}")
        raise MissedEpochsError(folder.location, identity.uid, identity.epoch, newest.epoch, consent)


def handles_for(
    metadata: CheckpointMetadata, storage: CheckpointStorage, key_groups: KeyGroupRange
) -> list[SegmentHandle | ChainHandle | StoredNativeHandle]:
    """Open the segments of a checkpoint that hold any of some key groups.

    Parameters
    ----------
    metadata : CheckpointMetadata
    storage : CheckpointStorage
        The operator's own folder, `OperatorFolder.storage`.
    key_groups : KeyGroupRange
        What is wanted; the handles read nothing beyond.

    Raises
    ------
    CorruptSegmentError, FormatVersionError, MissingFileError, StorageError
        Where a file, which is named, cannot be read; no handle stays open.
    """
    handles: list[SegmentHandle | ChainHandle | StoredNativeHandle] = []
    try:
        for part in metadata.parts:
            if part.native is not None and part.native.key_groups.intersection(key_groups):
                states = [StateMeta.from_json(dict(state)) for state in part.states]
                handles.append(
                    StoredNativeHandle(storage, part.native, states, part.deltas, part.entries, key_groups)
                )
            for segment in part.segments:
                if segment.key_groups.intersection(key_groups):
                    handles.append(_open_chain(storage, segment, part, key_groups))
    except BaseException:
        for handle in handles:
            handle.close()
        raise
    return handles


def _open_chain(
    storage: CheckpointStorage, base: SegmentFile, part: AttemptManifest, key_groups: KeyGroupRange
) -> SegmentHandle | ChainHandle:
    opened = [SegmentHandle.open(storage, base, key_groups)]
    try:
        if not part.deltas:
            return opened[0]
        # Key groups of one stream only: a delta has no order by key group.
        for delta in part.deltas:
            opened.append(SegmentHandle.open(storage, delta))
        return ChainHandle(opened[0], opened[1:], [StateMeta.from_json(dict(state)) for state in part.states])
    except BaseException:
        for handle in opened:
            handle.close()
        raise


def _new_owner(identity: TaskIdentity, first_epoch: int, runs: tuple[str, ...]) -> Owner:
    return Owner(identity.query_id, identity.uid, identity.max_parallelism, first_epoch, runs)


def _why_not_new(folder: OperatorFolder, identity: TaskIdentity) -> CheckpointError | None:
    if folder.holds_state():
        return _missing_owner(folder, identity)
    if identity.epoch > 0 and not folder.may_start_empty():
        consent = folder.storage.location(START_EMPTY)
        return MissingStateFolderError(folder.location, identity.uid, identity.epoch, consent)
    return None


def _missing_owner(folder: OperatorFolder, identity: TaskIdentity) -> MissingCheckpointError:
    found = f"its file {OWNER} is gone, so it is unknown whose state the rest is"
    return MissingCheckpointError(folder.location, identity.uid, identity.epoch, found)


def _check_query(folder: OperatorFolder, identity: TaskIdentity, query_id: str, uid: str) -> None:
    if query_id != identity.query_id:
        raise StateFolderOwnedError(folder.location, f"query {query_id}", identity.query_id)
    if uid != identity.uid:
        raise StateFolderOwnedError(folder.location, f"the operator {uid!r} of this query", identity.query_id)


def _newest_of_lineage(
    folder: OperatorFolder, identity: TaskIdentity, owner: Owner, epochs: Sequence[int]
) -> CheckpointMetadata | None:
    newest: CheckpointMetadata | None = None
    for epoch in sorted(epochs, reverse=True):
        try:
            metadata = folder.read_metadata(epoch)
        except CorruptManifestError:
            if newest is None:
                raise
            # Only asked whether the newer one is of an abandoned future; damage here is no reason to stop.
            continue
        if metadata is None:
            continue
        _check_query(folder, identity, metadata.query_id, metadata.uid)
        if metadata.max_parallelism != identity.max_parallelism:
            raise MaxParallelismChangedError(metadata.max_parallelism, identity.max_parallelism)
        if newest is None or owner.precedes(newest.run_id, metadata.run_id):
            newest = metadata
        if newest.run_id == identity.run_id:
            # No run is newer: the usual case, which reads one file.
            break
    return newest


def _may_follow(
    folder: OperatorFolder, identity: TaskIdentity, owner: Owner, epoch: int, newest: CheckpointMetadata
) -> bool:
    """Return whether the attempts of an epoch may be of more worth than the newest checkpoint."""
    if epoch != newest.epoch or newest.run_id == identity.run_id:
        return epoch > newest.epoch
    # A newer run was at the same epoch, so Spark took that one's output; and either nobody published it, or
    # the older run, which was asleep, wrote its checkpoint over the newer one's.
    return any(owner.precedes(newest.run_id, attempt.run_id) for attempt in folder.attempts(epoch))


def _complete(
    folder: OperatorFolder,
    identity: TaskIdentity,
    owner: Owner,
    epoch: int,
    newest: CheckpointMetadata | None,
) -> CheckpointMetadata | None:
    """Publish an epoch that ran and has no checkpoint; None where only an abandoned future ran it."""
    attempts = [
        attempt
        for attempt in folder.attempts(epoch)
        if newest is None or not owner.precedes(attempt.run_id, newest.run_id)
    ]
    if not attempts:
        return None
    run_id, problem = _newest_run(owner, attempts)
    of_run = [attempt for attempt in attempts if attempt.run_id == run_id]
    finished = [attempt.path for attempt in of_run if attempt.finished]
    manifests = folder.storage.for_each(folder.read_manifest, finished)
    parallelisms = {manifest.identity.parallelism for manifest in manifests}
    if not problem and len(parallelisms) == 1:
        problem = _ambiguous_partitions(of_run, parallelisms.pop())
    elif not problem:
        began = sorted({attempt.partition for attempt in of_run})
        problem = f"attempts of the partitions {_shown(began)} began and " + (
            "ran with different parallelisms" if parallelisms else "none finished"
        )
    if problem:
        # Another task may have seen less than this one, enough to publish (a zombie finished in between).
        published = folder.read_metadata(epoch)
        if published is None or published.run_id != run_id:
            raise IncompleteEpochError(identity.uid, epoch, problem)
        return published
    metadata = CheckpointMetadata.of(manifests)
    _check_query(folder, identity, metadata.query_id, metadata.uid)
    with exclusive(folder):
        check_writer(folder, identity.query_id, identity.run_id)
        folder.write_metadata(metadata)
    return metadata


def _newest_run(owner: Owner, attempts: Sequence[AttemptFile]) -> tuple[str, str]:
    """Return the run that Spark must have committed, and what is wrong where that is unknown."""
    runs = sorted({attempt.run_id for attempt in attempts})
    if len(runs) > 1 and not all(run in owner.runs for run in runs):
        return runs[0], f"the runs {', '.join(runs)} have attempts, and their order is unknown"
    return (max(runs, key=owner.runs.index) if len(runs) > 1 else runs[0]), ""


def _ambiguous_partitions(attempts: Sequence[AttemptFile], parallelism: int) -> str:
    """Return in words which partitions do not have exactly one finished attempt; empty where all have."""
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
