"""Errors about checkpoints: what is stored, where it is stored, and which epochs are complete."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence

from keyedstate.errors.kernel import KeyedStateError, choose_among, did_you_mean


class CheckpointError(KeyedStateError):
    """Base class of errors about checkpoints."""


# -- stored bytes ----------------------------------------------------------------------------------


class CorruptSegmentError(CheckpointError):
    """A segment file whose bytes are not those that were written.

    Attributes
    ----------
    path : str
        The file, with its storage.
    what : str
        What does not fit.
    """

    def __init__(self, path: str, what: str) -> None:
        self.path = path
        self.what = what
        super().__init__(
            f"the segment file {path} is damaged: {what}. Nothing of it was used. Put the file back from a "
            "copy, or start the query from an older copy of its checkpoints."
        )


class CorruptManifestError(CheckpointError):
    """A manifest, checkpoint metadata or owner file whose bytes are not those that were written."""

    def __init__(self, path: str, what: str) -> None:
        self.path = path
        self.what = what
        super().__init__(
            f"the file {path} is damaged: {what}. Nothing of it was used. Put the file back from a copy, or "
            "start the query from an older copy of its checkpoints."
        )


class FormatVersionError(CheckpointError):
    """A file that a newer keyedstate wrote."""

    def __init__(self, path: str, version: int, supported: int) -> None:
        self.path = path
        self.version = version
        self.supported = supported
        super().__init__(
            f"the file {path} has the format version {version}, and this keyedstate reads versions up to "
            f"{supported}. Upgrade keyedstate on the driver and on every executor."
        )


# -- storage ---------------------------------------------------------------------------------------


class StorageError(CheckpointError):
    """An operation that the file system refused.

    Attributes
    ----------
    uri : str
        What was to be read or changed; passwords in it are hidden.
    operation : str
        What was to be done with it: ``read``, ``write``, ``list``, ``delete``, ``open``.
    reason : str
        The file system's own words.
    begin_anew : bool
        Whether it was a transient error in the midst of a large file, of which it is unknown how much has
        arrived: nothing was tried again, and whoever writes the file may begin it anew.
    """

    def __init__(self, uri: str, operation: str, reason: str, *, begin_anew: bool = False) -> None:
        self.uri = uri
        self.operation = operation
        self.reason = reason
        self.begin_anew = begin_anew
        super().__init__(
            f"cannot {operation} {uri}: {reason}. Check that the storage is there, has room and may be used "
            "by the driver and by every executor."
        )


class MissingFileError(StorageError):
    """A file that should be there and is not."""

    def __init__(self, uri: str, operation: str) -> None:
        super().__init__(uri, operation, "there is no such file")


class UnknownSchemeError(StorageError):
    """A URI whose scheme no file system answers to.

    Attributes
    ----------
    scheme : str
    known : tuple of str
        The schemes of pyarrow's file systems.
    unusable : tuple of str
        Why a plugin, which might have the scheme, could not be asked.
    """

    def __init__(self, uri: str, scheme: str, known: Sequence[str], unusable: Sequence[str] = ()) -> None:
        self.scheme = scheme
        self.known = tuple(known)
        self.unusable = tuple(unusable)
        hint = did_you_mean(scheme, known)
        passed_over = f" Not asked: {'; '.join(unusable)}" if unusable else ""
        super().__init__(
            uri,
            "open",
            f"no file system has the scheme {scheme!r}.{hint} Known schemes: {', '.join(known)}, and those "
            "of plugins, which are installed or named in the option 'plugins.modules'; a path without a "
            f"scheme is a local folder.{passed_over}".rstrip("."),
        )


class DuplicateSchemeError(StorageError):
    """A URI that several plugins open.

    Attributes
    ----------
    scheme : str
    providers : tuple of str
        The plugins, each ``distribution version``.
    """

    def __init__(self, uri: str, scheme: str, providers: Sequence[str]) -> None:
        self.scheme = scheme
        self.providers = tuple(providers)
        super().__init__(
            uri,
            "open",
            f"the scheme {scheme!r} is served by {' and by '.join(providers)}. {choose_among(providers)}",
        )


class UnsafePathError(CheckpointError):
    """A path that is not a plain relative one, such as one with ``..`` in it."""

    def __init__(self, path: str, root: str) -> None:
        self.path = path
        self.root = root
        super().__init__(
            f"the path {path!r} may not be used below {root}: give a relative path of plain names, without "
            "'.', '..' and empty parts."
        )


class UnsafeNameError(CheckpointError):
    """A name that becomes part of a file name and cannot be one."""

    def __init__(self, what: str, name: str, allowed: str) -> None:
        self.what = what
        self.name = name
        super().__init__(
            f"the {what} {reprlib.repr(name)} becomes part of a file name and cannot be one. "
            f"Use {allowed} only, and 1 to 200 of them."
        )


# -- writing a snapshot ----------------------------------------------------------------------------


class SnapshotOrderError(CheckpointError):
    """A backend that called the sink of a snapshot in a way that its contract does not allow."""

    def __init__(self, path: str, what: str) -> None:
        self.path = path
        self.what = what
        super().__init__(
            f"the snapshot into {path} was written in a wrong order: {what}. Correct the backend's snapshot: "
            "each state is begun once, and its key groups follow in ascending order, each once."
        )


class UnreadableStateError(CheckpointError):
    """A state in a file whose types are not known here, or not in the version that the file has.

    Attributes
    ----------
    path : str
        The file, with its storage.
    state : str
    reason : str
    """

    def __init__(self, path: str, state: str, reason: str) -> None:
        self.path = path
        self.state = state
        self.reason = reason
        super().__init__(
            f"the state {state!r} in the file {path} cannot be read, and nothing of the file was used: "
            f"{reason}."
        )


class UnwritableEntryError(CheckpointError):
    """An entry that the serializers of its state cannot write.

    Attributes
    ----------
    state : str
    key_group : int
    key : str
        The key as a short text.
    column : str
        Which part of the entry: ``namespace``, ``key`` or ``value``.
    reason : str
    """

    def __init__(self, state: str, key_group: int, key: object, column: str, reason: str) -> None:
        self.state = state
        self.key_group = key_group
        self.key = reprlib.repr(key)
        self.column = column
        self.reason = reason
        super().__init__(
            f"the {column} of the key {self.key} in key group {key_group} of the state {state!r} cannot be "
            f"written: {reason.rstrip('.')}. Give the state values of the type that it declares."
        )


# -- whose state, and which ------------------------------------------------------------------------


class StateFolderOwnedError(CheckpointError):
    """A state folder that belongs to another query."""

    def __init__(self, folder: str, owner: str, query_id: str) -> None:
        self.folder = folder
        self.owner = owner
        self.query_id = query_id
        super().__init__(
            f"the state folder {folder} belongs to {owner}, and this is query {query_id}. Give the operator "
            "another uid, or set another folder with the option 'checkpoint.dir', or delete the folder if "
            "its state is not needed any more. A query with a new Spark checkpoint location is a new query."
        )


class SupersededRunError(CheckpointError):
    """A run of a query that went on although a newer run of the same query has begun."""

    def __init__(self, folder: str, run_id: str, newer_run_id: str) -> None:
        self.folder = folder
        self.run_id = run_id
        self.newer_run_id = newer_run_id
        super().__init__(
            f"run {run_id} may not use the state in {folder} any more: run {newer_run_id} of the same query "
            "has begun since. Let only one of them live; where this one was meant to end, all is well."
        )


class OvertakenRunError(CheckpointError):
    """A run that begins an epoch which another run of the query has left behind.

    Attributes
    ----------
    folder, uid, run_id : str
    epoch : int
        The epoch that wants to begin.
    later : int
        The newest epoch that has a checkpoint or an attempt.
    """

    def __init__(self, folder: str, uid: str, run_id: str, epoch: int, later: int, consent: str) -> None:
        self.folder = folder
        self.uid = uid
        self.run_id = run_id
        self.epoch = epoch
        self.later = later
        super().__init__(
            f"Run {run_id} begins epoch {epoch} of the operator {uid!r}, and {folder} already has epoch "
            f"{later}: another run of the query processed epoch {epoch} while this run was delayed. Nothing "
            "is lost and nothing was changed: start the query again, and it resumes from the newest "
            f"checkpoint. Only if you set Spark's checkpoint location back to epoch {epoch}, or it lost its "
            f"newest commits in a power failure, create the empty file {consent}: the next start then "
            f"deletes the checkpoints from epoch {epoch} on."
        )


class MaxParallelismChangedError(CheckpointError):
    """Existing state has another number of key groups than is asked for."""

    def __init__(self, stored: int, given: int) -> None:
        self.stored = stored
        self.given = given
        super().__init__(
            f"the stored state has the max parallelism {stored}, and {given} is asked for; the first epoch "
            f"fixes it. Set the option 'max-parallelism' to {stored}, or start without state under a new uid."
        )


class MissingStateFolderError(CheckpointError):
    """A query that is past its first epoch, and whose operator has no state folder.

    Attributes
    ----------
    folder, uid : str
    epoch : int
        The epoch that wants to begin.
    siblings : tuple of str
        The uids under which the query has state.
    """

    def __init__(self, folder: str, uid: str, epoch: int, consent: str, siblings: Sequence[str] = ()) -> None:
        self.folder = folder
        self.uid = uid
        self.epoch = epoch
        self.siblings = tuple(siblings)
        renamed = ""
        if siblings:
            names = " or ".join(map(repr, siblings))
            renamed = (
                f" The query has state under the uid {names}: was the uid renamed from {names}? Then give "
                "the operator that uid again."
            )
        super().__init__(
            f"epoch {epoch} of the operator {uid!r} finds no state folder {folder}: the state of the epochs "
            f"before is gone or never was.{renamed} Otherwise put the folder back, or correct the option "
            "'checkpoint.dir'. Only where the operator is new in this running query, create the empty file "
            f"{consent!r}, and it begins without state."
        )


class MissingCheckpointError(CheckpointError):
    """State that is recorded to exist and has no checkpoint to come back from.

    Attributes
    ----------
    folder, uid : str
    epoch : int
        The epoch that wants to begin.
    found : str
        What is there instead.
    """

    def __init__(self, folder: str, uid: str, epoch: int, found: str) -> None:
        self.folder = folder
        self.uid = uid
        self.epoch = epoch
        self.found = found
        super().__init__(
            f"epoch {epoch} of the operator {uid!r} needs a checkpoint of an epoch before it, and {folder} "
            f"has none: {found}. Put the deleted files back. To start without state, give the query another "
            "folder with the option 'checkpoint.dir' and a new Spark checkpoint location."
        )


class MissedEpochsError(CheckpointError):
    """An operator whose query went on without it, and that is in the query again.

    Attributes
    ----------
    folder, uid : str
    epoch : int
        The epoch that wants to begin.
    newest : int
        The epoch of the newest checkpoint.
    """

    def __init__(self, folder: str, uid: str, epoch: int, newest: int, consent: str) -> None:
        self.folder = folder
        self.uid = uid
        self.epoch = epoch
        self.newest = newest
        super().__init__(
            f"epoch {epoch} of the operator {uid!r} finds the state of epoch {newest} in {folder}, and an "
            f"earlier run of the query ended in between: the epochs {newest + 1} to {epoch - 1} ran without "
            "this operator, or nothing evaluated it in them. The state is whole. To continue from it without "
            f"those epochs, create the empty file {consent!r}."
        )


class CheckpointGoneError(MissingCheckpointError):
    """A checkpoint that somebody wants to read and that is not there, or not any more.

    Attributes
    ----------
    folder, uid : str
    epoch : int
        The epoch whose checkpoint is wanted.
    found : str
        Which checkpoints are there instead.
    """

    def __init__(self, folder: str, uid: str, epoch: int, found: str) -> None:
        super().__init__(folder, uid, epoch, found)
        CheckpointError.__init__(
            self,
            f"the operator {uid!r} has no checkpoint of epoch {epoch} in {folder}: {found}. A running query "
            "deletes old checkpoints: read a newer one, or let it keep more with the option "
            "'checkpoint.retained'.",
        )


class IncompleteEpochError(CheckpointError):
    """An epoch that ran only in part, or so that it is unclear which of its results counts.

    Attributes
    ----------
    uid : str
    epoch : int
    details : str
        Which partitions have which attempts.
    folder : str
        The operator's folder; empty where it is not known.
    """

    def __init__(self, uid: str, epoch: int, details: str, folder: str = "") -> None:
        self.uid = uid
        self.epoch = epoch
        self.details = details
        self.folder = folder
        attempts = f"{folder or '<checkpoint.dir>/' + uid}/attempts/epoch-{epoch}"
        super().__init__(
            f"what epoch {epoch} of the operator {uid!r} did to the state is lost, since it has no "
            f"checkpoint, and none can be made: {details}. A keyed result must be evaluated to its end in "
            "every micro-batch: no limit, take, first or isEmpty on it; cache it before you look at parts of "
            "it. To continue without what this epoch did to the state, delete the folder "
            f"{attempts!r}."
        )
