"""Errors about checkpoints: what is stored, where it is stored, and which epochs are complete."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence

from keyedstate.errors.base import KeyedStateError, did_you_mean


class CheckpointError(KeyedStateError):
    """Base class of errors about checkpoints."""


# -- stored bytes ----------------------------------------------------------------------------------


class CorruptFileError(CheckpointError):
    """A segment file, manifest or other file of a checkpoint whose bytes are not those that were written."""

    path: str  # The file, with its storage
    what: str  # What does not fit
    message = (
        "the file {path} is damaged: {what}. None of it was used. Put the file back from a copy, or start "
        "the query from an older copy of its checkpoints."
    )


class FormatVersionError(CheckpointError):
    """A file that a newer keyedstate wrote."""

    path: str
    version: int
    supported: int
    message = (
        "the file {path} has the format version {version}, and this keyedstate reads versions up to "
        "{supported}. Upgrade keyedstate on the driver and on every executor."
    )


# -- storage ---------------------------------------------------------------------------------------


class StorageError(CheckpointError):
    """An operation that the file system refused."""

    uri: str  # What was to be read or changed; passwords in it are hidden
    operation: str  # What was to be done with it: ``read``, ``write``, ``list``, ``delete``, ``open``
    reason: str  # The file system's message
    #: A transient error within a large file: how many bytes arrived is unknown, so the request was not sent
    #: again, and the writer may write the file again from its start.
    restartable: bool = False
    message = (
        "cannot {operation} {uri}: {reason}. Check that the storage exists and has room, and that the driver "
        "and every executor may use it."
    )


class MissingFileError(StorageError):
    """A file that should exist and does not."""

    reason: str = "the file does not exist"


class UnknownSchemeError(StorageError):
    """A URI whose scheme no file system answers to."""

    operation: str = "open"
    reason: str = ""
    scheme: str = ""
    known: Sequence[str] = ()  # The schemes of pyarrow's file systems
    unusable: Sequence[str] = ()  # Why a plugin, which might have the scheme, could not be asked

    def _message(self) -> str:
        passed_over = f" Not asked: {'; '.join(self.unusable)}" if self.unusable else ""
        self.reason = (
            f"no file system has the scheme {self.scheme!r}.{did_you_mean(self.scheme, self.known)} Known "
            f"schemes: {', '.join(self.known)}, and those of plugins, which are installed or named in the "
            f"option 'plugins.modules'; a path without a scheme is a local folder.{passed_over}"
        ).rstrip(".")
        return super()._message()


class UnsafeNameError(CheckpointError):
    """A name or a path that cannot be part of a file's path, such as one with ``..`` in it."""

    what: str  # ``path below <folder>``, ``uid of an operator``
    name: str
    allowed: str

    message = "the {what} {name:repr} cannot be part of a file's path. Give {allowed}."


# -- writing a snapshot ----------------------------------------------------------------------------


class SnapshotOrderError(CheckpointError):
    """A backend that called the sink of a snapshot in a way that its contract does not allow."""

    path: str
    what: str
    message = (
        "the snapshot {path} was written in a wrong order: {what}. Correct the backend's snapshot: each "
        "state is begun once, and its key groups follow in ascending order, each once."
    )


class UnreadableStateError(CheckpointError):
    """A state in a file whose types are not known here, or not in the version that the file has."""

    path: str  # The file, with its storage
    state: str
    reason: str
    message = (
        "the state {state!r} in the file {path} cannot be read, and none of the file was used: {reason}."
    )


class UnwritableEntryError(CheckpointError):
    """An entry that the serializers of its state cannot write."""

    state: str
    key_group: int
    key: object  # The key as a short text
    column: str  # Which part of the entry: ``namespace``, ``key`` or ``value``
    reason: str
    message = (
        "the {column} of the key {key} in key group {key_group} of the state {state!r} cannot be written: "
        "{reason}. Give the state values of the type that it declares."
    )

    def __post_init__(self) -> None:
        self.key = reprlib.repr(self.key)
        super().__post_init__()


# -- whose state, and which ------------------------------------------------------------------------


class StateFolderOwnedError(CheckpointError):
    """A state folder that belongs to another query."""

    folder: str
    owner: str
    query_id: str
    message = (
        "the state folder {folder} belongs to {owner}, and this is query {query_id}. Give the operator "
        "another uid, or set another folder with the option 'checkpoint.dir', or delete the folder if its "
        "state is not needed any more. A query with a new Spark checkpoint location is a new query."
    )


class SupersededRunError(CheckpointError):
    """A run of a query that continues although a newer run of the same query has begun."""

    folder: str
    run_id: str
    newer_run_id: str
    message = (
        "run {run_id} may not use the state in {folder} any more: run {newer_run_id} of the same query has "
        "begun since. Run only one of them; if you stopped this one, there is nothing to do."
    )


class OvertakenRunError(CheckpointError):
    """A run that begins an epoch which another run of the query has passed."""

    folder: str
    uid: str
    run_id: str
    epoch: int  # The epoch that wants to begin
    later: int  # The newest epoch that has a checkpoint or an attempt
    consent: str
    message = (
        "Run {run_id} begins epoch {epoch} of the operator {uid!r}, and {folder} already has epoch {later}: "
        "another run of the query processed epoch {epoch} while this run was delayed. Nothing is lost and "
        "nothing was changed: start the query again, and it resumes from the newest checkpoint. Only if you "
        "set Spark's checkpoint location back to epoch {epoch}, or it lost its newest commits in a power "
        "failure, create the empty file {consent}: the next start then deletes the checkpoints from epoch "
        "{epoch} on."
    )


class MaxParallelismChangedError(CheckpointError):
    """Existing state has another number of key groups than is asked for."""

    stored: int
    given: int
    message = (
        "the stored state has the max parallelism {stored}, and {given} is asked for; the first epoch fixes "
        "it. Set the option 'max-parallelism' to {stored}, or start without state under a new uid."
    )


class MissingStateFolderError(CheckpointError):
    """A query that is past its first epoch, and whose operator has no state folder."""

    folder: str
    uid: str
    epoch: int  # The epoch that wants to begin
    consent: str
    siblings: Sequence[str] = ()  # The uids under which the query has state
    message = (
        "epoch {epoch} of the operator {uid!r} finds no state folder {folder}: the state of earlier epochs "
        "was deleted or never written.{siblings:? The query has state under the uid {siblings!r: or }: was "
        "the uid renamed from {siblings!r: or }? Then give the operator that uid again.} Otherwise put the "
        "folder back, or correct the option 'checkpoint.dir'. Only if the operator is new in this running "
        "query, create the empty file {consent!r}, and it starts without state."
    )


class MissingCheckpointError(CheckpointError):
    """State that is recorded to exist and has no checkpoint to restore from."""

    folder: str
    uid: str
    epoch: int  # The epoch that wants to begin
    found: str  # What the folder has instead
    message = (
        "epoch {epoch} of the operator {uid!r} needs a checkpoint of an epoch before it, and {folder} has "
        "none: {found}. Put the deleted files back. To start without state, give the query another folder "
        "with the option 'checkpoint.dir' and a new Spark checkpoint location."
    )


class MissedEpochsError(CheckpointError):
    """An operator whose query ran without it for some epochs, and that is in the query again."""

    folder: str
    uid: str
    epoch: int  # The epoch that wants to begin
    newest: int  # The epoch of the newest checkpoint
    consent: str

    def _message(self) -> str:
        return (
            f"epoch {self.epoch} of the operator {self.uid!r} finds the state of epoch {self.newest} in "
            f"{self.folder}, and an earlier run of the query ended in between: the epochs {self.newest + 1} "
            f"to {self.epoch - 1} ran without this operator, or nothing evaluated it in them. The state is "
            f"complete. To continue from it without those epochs, create the empty file {self.consent!r}."
        )


class CheckpointGoneError(MissingCheckpointError):
    """A checkpoint that a reader asks for and that does not exist, or no longer."""

    message = (
        "the operator {uid!r} has no checkpoint of epoch {epoch} in {folder}: {found}. A running query "
        "deletes old checkpoints: read a newer one, or let it keep more with the option "
        "'checkpoint.retained'."
    )


class IncompleteEpochError(CheckpointError):
    """An epoch that ran in part only, or of which it is unclear which attempts count."""

    uid: str
    epoch: int
    details: str  # Which partitions have which attempts
    folder: str = ""  # The operator's folder; empty where it is not known
    message = (
        "what epoch {epoch} of the operator {uid!r} did to the state is lost, since it has no checkpoint, "
        "and none can be made: {details}. A keyed result must be evaluated to its end in every micro-batch: "
        "no limit, take, first or isEmpty on it; cache it before you look at parts of it. To continue "
        "without what this epoch did to the state, delete the folder "
        "'{folder:?{folder}}{folder:|<checkpoint.dir>/{uid}}/attempts/epoch-{epoch}'."
    )


class OvertakenAttemptError(CheckpointError):
    """An attempt at a partition that ends after another one, which ran at the same time."""

    uid: str
    epoch: int
    partition: int
    attempt: int  # Spark's number of the task attempt
    message = (
        "the attempt {attempt} at partition {partition} of the operator {uid!r} ended after another attempt "
        "at it, or after epoch {epoch} was over, so its state is not kept. Nothing is to be done: Spark "
        "ignores this error if it has the output of the other attempt, and runs the task again if not."
    )


class RowsInFlightError(CheckpointError):
    """An unaligned checkpoint of a run without Spark, from which a query on Spark cannot begin."""

    uid: str
    message = (
        "the state of {uid!r} is from an unaligned checkpoint, with rows that only a run without Spark can "
        "process. Run it there until its end or until Ctrl-C: its last checkpoint has no such rows."
    )


class TransferCancelledError(CheckpointError):
    """A transfer that its caller has cancelled; nothing of it is left."""

    source: str
    target: str
    message = (
        "copying files from {source} to {target} was cancelled, and what had been copied was deleted. Start "
        "it again to copy everything."
    )
