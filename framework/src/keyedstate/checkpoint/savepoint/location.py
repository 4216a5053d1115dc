"""What an address leads to: a folder of operators, one operator, one of its checkpoints, or a savepoint."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from keyedstate.checkpoint.protocol.operator_folder import CHECKPOINT, METADATA, OWNER, OperatorFolder
from keyedstate.checkpoint.savepoint.savepoint import SAVEPOINT, UNFINISHED, SavepointFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import NoSnapshotError, NotASavepointError, UnknownOperatorError, UnsafeNameError

#: What Spark keeps in a query's own checkpoint location.
_SPARKS = {"offsets", "commits", "metadata"}


class LocationKind(str, enum.Enum):
    """What is at an address."""

    FOLDER = "folder of operators"
    OPERATOR = "operator"
    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"


@dataclass(frozen=True)
class StoredOperator:
    """One operator with checkpoints or a savepoint."""

    #: The name of its folder.
    uid: str
    #: The folder.
    storage: CheckpointStorage
    #: None in a savepoint, which has no owner and one checkpoint.
    folder: OperatorFolder | None

    @classmethod
    def of(cls, parent: CheckpointStorage, uid: str) -> StoredOperator:
        """Return an operator of a checkpoint folder."""
        folder = OperatorFolder(parent, uid)
        return cls(uid, folder.storage, folder)


@dataclass(frozen=True)
class SnapshotLocation:
    """An address and the operators there."""

    kind: LocationKind
    #: The address.
    storage: CheckpointStorage
    #: At least one, by uid.
    operators: tuple[StoredOperator, ...]
    #: The one checkpoint at the address; None for all of an operator.
    epoch: int | None = None
    #: The savepoint at the address; None for one operator's folder in it.
    savepoint: SavepointFolder | None = None

    @classmethod
    def open(cls, storage: CheckpointStorage, uid: str | None = None) -> SnapshotLocation:
        """Look at an address, for all operators there or for one; raises `UnknownOperatorError` for another.

        Raises `NoSnapshotError` where there is no state, and as `SavepointFolder.open` where there is a
        savepoint.
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
        names, (parent, name) = storage.list(), storage.parent()
        if SAVEPOINT in names:
            savepoint = SavepointFolder.open(storage)
            inside = [StoredOperator(uid, savepoint.storage(uid), None) for uid in savepoint.operators]
            return cls(LocationKind.SAVEPOINT, storage, tuple(inside), savepoint=savepoint)
        if UNFINISHED in names:
            raise NotASavepointError(storage.location(), names, unfinished=True)
        checkpoint = CHECKPOINT.fullmatch(name)
        if METADATA in names and checkpoint is not None:
            operator = StoredOperator.of(*parent.parent())
            return cls(LocationKind.CHECKPOINT, storage, (operator,), int(checkpoint[1]))
        if METADATA in names:
            return cls(LocationKind.SAVEPOINT, storage, (StoredOperator(name, storage, None),))
        operators = () if _is_operator(names) else operators_in(storage)
        if operators:
            found = tuple(StoredOperator.of(storage, uid) for uid in operators)
            return cls(LocationKind.FOLDER, storage, found)
        # An operator may have lost its owner file, and have no checkpoint yet.
        if _is_operator(names) or "data" in names or "attempts" in names:
            try:
                return cls(LocationKind.OPERATOR, storage, (StoredOperator.of(parent, name),))
            except UnsafeNameError:
                if _is_operator(names):
                    raise
        visible = [name for name in names if not name.startswith(".")]
        raise NoSnapshotError(storage.location(), visible, _guess(visible))

    @property
    def address(self) -> str:
        """The address, for people."""
        return self.storage.location()


def operators_in(storage: CheckpointStorage) -> Sequence[str]:
    """Return the uids of the operators in a checkpoint folder, sorted; none for other folders."""
    files = storage.describe()
    folders = [file.name for file in files if file.is_folder and not file.name.startswith((".", "_"))]
    listed = storage.for_each(storage.list, folders)
    return [name for name, names in zip(folders, listed, strict=True) if _is_operator(names)]


def _is_operator(names: Sequence[str]) -> bool:
    return OWNER in names or METADATA in names or any(map(CHECKPOINT.fullmatch, names))


def _guess(names: Sequence[str]) -> str:
    if len(_SPARKS.intersection(names)) > 1:
        return (
            "it is the checkpoint location of a Spark query, which has its offsets; the state of its "
            "operators is where the option 'checkpoint.dir' says"
        )
    return ""
