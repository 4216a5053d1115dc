"""What a path leads to: a folder of operators, one operator, one of its checkpoints, or a savepoint."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from keyedstate.checkpoint.protocol.operator_folder import METADATA, OperatorFolder
from keyedstate.checkpoint.savepoint.operator_snapshot import operators_in
from keyedstate.checkpoint.savepoint.savepoint import SavepointFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import NoSnapshotError, NotASavepointError, UnknownOperatorError, UnsafeNameError

_SAVEPOINT, _UNFINISHED = "_savepoint", "_unfinished"
_CHECKPOINT = re.compile(r"chk-(0|[1-9][0-9]*)")
#: What Spark keeps in a query's own checkpoint location.
_SPARKS = {"offsets", "commits", "metadata"}


class LocationKind(str, enum.Enum):
    """What is at a path."""

    FOLDER = "folder of operators"
    OPERATOR = "operator"
    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"


@dataclass(frozen=True)
class StoredOperator:
    """One operator whose state is stored.

    Attributes
    ----------
    uid : str
        As its folder is called.
    storage : CheckpointStorage
        The folder.
    folder : OperatorFolder or None
        None in a savepoint, which is nobody's and has one checkpoint.
    """

    uid: str
    storage: CheckpointStorage
    folder: OperatorFolder | None


@dataclass(frozen=True)
class SnapshotLocation:
    """Where stored state lies.

    Attributes
    ----------
    storage : CheckpointStorage
        What was named.
    operators : tuple of StoredOperator
        At least one, by uid.
    epoch : int or None
        Of the one checkpoint that was named; None where all of an operator's are meant.
    savepoint : SavepointFolder or None
        Where a whole savepoint was named, and not one operator's folder in it.
    """

    kind: LocationKind
    storage: CheckpointStorage
    operators: tuple[StoredOperator, ...]
    epoch: int | None = None
    savepoint: SavepointFolder | None = None

    @classmethod
    def open(cls, storage: CheckpointStorage, uid: str | None = None) -> SnapshotLocation:
        """Look at a storage.

        Parameters
        ----------
        uid : str, optional
            The one operator that is meant.

        Raises
        ------
        NoSnapshotError, NotASavepointError
            Where it holds no state, or an unfinished savepoint.
        CorruptManifestError, FormatVersionError
            Where it holds a savepoint whose own file cannot be read.
        UnknownOperatorError
            Where it does not hold that of the operator.
        StorageError
            Where it cannot be read.
        """
        location = cls._open(storage)
        if uid is None:
            return location
        chosen = tuple(operator for operator in location.operators if operator.uid == uid)
        if not chosen:
            known = [operator.uid for operator in location.operators]
            raise UnknownOperatorError(location.address, uid, known)
        return replace(location, operators=chosen)

    @classmethod
    def _open(cls, storage: CheckpointStorage) -> SnapshotLocation:
        names, (above, name) = storage.list(), split(storage)
        if _SAVEPOINT in names:
            savepoint = SavepointFolder.open(storage)
            inside = [StoredOperator(uid, savepoint.storage(uid), None) for uid in savepoint.operators]
            return cls(LocationKind.SAVEPOINT, storage, tuple(inside), savepoint=savepoint)
        if _UNFINISHED in names:
            raise NotASavepointError(storage.location(), names, unfinished=True)
        checkpoint = _CHECKPOINT.fullmatch(name)
        if METADATA in names and checkpoint is not None:
            over, uid = split(above)
            return cls(LocationKind.CHECKPOINT, storage, (_operator(over, uid),), int(checkpoint[1]))
        if METADATA in names:
            return cls(LocationKind.SAVEPOINT, storage, (StoredOperator(name, storage, None),))
        try:
            operator = _operator(above, name)
        except UnsafeNameError:
            operator = None
        if operator is not None and _is_owned(operator):
            return cls(LocationKind.OPERATOR, storage, (operator,))
        operators = [_operator(storage, uid) for uid in operators_in(storage)]
        if operators:
            return cls(LocationKind.FOLDER, storage, tuple(operators))
        visible = [name for name in names if not name.startswith(".")]
        raise NoSnapshotError(storage.location(), visible, _guess(visible))

    @property
    def address(self) -> str:
        """The address, for people."""
        return self.storage.location()


def operator_folder(storage: CheckpointStorage) -> OperatorFolder:
    """Return the folder whose own storage is given."""
    return OperatorFolder(*split(storage))


def _operator(parent: CheckpointStorage, uid: str) -> StoredOperator:
    folder = OperatorFolder(parent, uid)
    return StoredOperator(uid, folder.storage, folder)


def _is_owned(operator: StoredOperator) -> bool:
    return operator.folder is not None and (
        operator.storage.exists("_owner") or operator.folder.holds_state()
    )


def split(storage: CheckpointStorage) -> tuple[CheckpointStorage, str]:
    """Return the folder above and the name in it."""
    address, mark, query = storage.uri.partition("?")
    above = address.rstrip("/").rpartition("/")[0]
    root, _, name = storage.root.rstrip("/").rpartition("/")
    if storage.is_local:
        root, above = root or "/", above or "/"
    return replace(storage, root=root, uri=f"{above}{mark}{query}"), name


def _guess(names: Sequence[str]) -> str:
    if len(_SPARKS.intersection(names)) > 1:
        return (
            "it is the checkpoint location of a Spark query, which has its offsets; the state of its "
            "operators is where the option 'checkpoint.dir' says"
        )
    return ""
