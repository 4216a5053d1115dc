"""Which stored state a user means: one address, of a savepoint, an operator, a checkpoint or all of them.

Whoever reads stored state without running its query begins here: the data source, the tools of the command
line, a query that starts from a savepoint.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from keyedstate.backend import StateMeta
from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.operator_folder import METADATA, OWNER, OperatorFolder
from keyedstate.checkpoint.savepoint.savepoint import SAVEPOINT, UNFINISHED, SavepointFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage, Location
from keyedstate.errors import (
    KeyedStateError,
    NoSnapshotError,
    UnknownEpochError,
    UnknownOperatorError,
    UnknownStateError,
    UnreadableStateError,
)
from keyedstate.operator_state import OperatorStateMeta

__all__ = [
    "NoSnapshotError",
    "OperatorSnapshot",
    "UnknownEpochError",
    "UnknownOperatorError",
    "UnknownStateError",
    "operators_in",
]

_CHECKPOINT = re.compile(r"chk-(0|[1-9][0-9]*)")


@dataclass(frozen=True)
class OperatorSnapshot:
    """The stored state of one operator after one epoch.

    Attributes
    ----------
    storage : CheckpointStorage
        The operator's folder: what the paths of its data files are relative to.
    path : str
        The metadata's own file in that folder: ``chk-7/_metadata``, or ``_metadata`` in a savepoint.
    """

    storage: CheckpointStorage
    metadata: CheckpointMetadata = field(repr=False)
    path: str

    @classmethod
    def open(
        cls,
        uri: Location,
        uid: str | None = None,
        epoch: int | None = None,
    ) -> OperatorSnapshot:
        """Find stored state.

        Parameters
        ----------
        uri : str, path or CheckpointStorage
            A savepoint, one operator's folder in it, a checkpoint folder (``checkpoint.dir``), one operator's
            folder in that, or one ``chk-<epoch>`` folder of an operator.
        uid : str, optional
            The operator; needed where there are several.
        epoch : int, optional
            The checkpoint; by default the newest one, of the newest run that has one.

        Raises
        ------
        NoSnapshotError, UnknownOperatorError, UnknownEpochError
            Each says what is there.
        NotASavepointError
            Where a savepoint was not finished, or an operator's folder was taken out of one.
        CorruptManifestError, FormatVersionError, StorageError
            Where a file, which is named, cannot be read.
        """
        storage = CheckpointStorage.at(uri)
        names = storage.list()
        name = _last_part(storage)
        if SAVEPOINT in names or UNFINISHED in names:
            return cls._of_a_savepoint(SavepointFolder.open(storage), uid, epoch)
        if not _is_operator(names):
            operators = operators_in(storage)
            if not operators:
                raise NoSnapshotError(storage.location(), _visible(names))
            if (len(operators) > 1) if uid is None else (uid not in operators):
                raise UnknownOperatorError(storage.location(), uid, operators)
            storage = storage.child(uid or operators[0])
            names = storage.list()
        elif METADATA in names and _CHECKPOINT.fullmatch(name):
            return cls._one_of_a_folder(_parent(storage), name, uid, epoch)
        elif METADATA in names:
            return cls._of_a_savepoint(SavepointFolder.open(_parent(storage)), uid or name, epoch)
        return cls._of_a_folder(storage, uid, epoch)

    @classmethod
    def _of_a_savepoint(
        cls, savepoint: SavepointFolder, uid: str | None, epoch: int | None
    ) -> OperatorSnapshot:
        if uid is None and len(savepoint.operators) != 1:
            raise UnknownOperatorError(savepoint.location, None, savepoint.operators)
        uid = uid or savepoint.operators[0]
        metadata = savepoint.metadata(uid)
        if epoch is not None and epoch != metadata.epoch:
            raise UnknownEpochError(savepoint.location, epoch, [metadata.epoch])
        return cls(savepoint.storage(uid), metadata, METADATA)

    @classmethod
    def _one_of_a_folder(
        cls, storage: CheckpointStorage, name: str, uid: str | None, epoch: int | None
    ) -> OperatorSnapshot:
        state = cls._of_a_folder(storage, uid, int(name.partition("-")[2]))
        if epoch is not None and epoch != state.metadata.epoch:
            raise UnknownEpochError(state.location, epoch, [state.metadata.epoch])
        return state

    @classmethod
    def _of_a_folder(cls, storage: CheckpointStorage, uid: str | None, epoch: int | None) -> OperatorSnapshot:
        folder = OperatorFolder(_parent(storage), _last_part(storage))
        if uid is not None and uid != folder.uid:
            raise UnknownOperatorError(storage.location(), uid, [folder.uid])
        epochs = folder.checkpoints()
        metadata = _newest(folder, epochs) if epoch is None else folder.read_metadata(epoch)
        if metadata is None:
            if epochs and epoch is not None:
                raise UnknownEpochError(folder.location, epoch, epochs)
            what = f"the operator {folder.uid!r} has no finished checkpoint yet"
            raise NoSnapshotError(folder.location, _visible(storage.list()), what)
        return cls(storage, metadata, f"chk-{metadata.epoch}/{METADATA}")

    @property
    def is_savepoint(self) -> bool:
        """Whether it is part of a savepoint and not a checkpoint."""
        return self.path == METADATA

    @property
    def folder(self) -> OperatorFolder | None:
        """The operator's folder of checkpoints; None for a savepoint, which is whole and changes no more."""
        return None if self.is_savepoint else OperatorFolder(_parent(self.storage), _last_part(self.storage))

    @property
    def location(self) -> str:
        """The address, for people: of the checkpoint, or of the operator's folder in a savepoint."""
        return self.storage.location(self.path.rpartition("/")[0])

    def states(self) -> dict[str, StateMeta]:
        """Return the keyed states by name, with serializers that need none of the program's classes.

        A task that did not use a state in its run keeps it with the type that it had before, so the tasks
        of one checkpoint may know a state by two types; then this is the first of them that reads the others.

        Raises
        ------
        UnreadableStateError
            Where a type, or its version, is not known here, or no type of a state reads its others.
        """
        found: dict[str, list[StateMeta]] = {}
        for part in self.metadata.parts:
            for document in part.states:
                name = str(document.get("name"))
                with _Unreadable(self.storage.location(self.path), name):
                    meta = StateMeta.from_json(dict(document))
                    if meta not in found.setdefault(name, []):
                        found[name].append(meta)
        return {name: self._reads_all(name, metas) for name, metas in sorted(found.items())}

    def state(self, name: str) -> StateMeta:
        """Return one keyed state.

        Raises
        ------
        UnknownStateError, UnreadableStateError
        """
        states = self.states()
        if name not in states:
            raise UnknownStateError(self.location, name, [*states, *self.operator_states()])
        return states[name]

    def operator_states(self) -> dict[str, OperatorStateMeta]:
        """Return the operator states by name; raises as `states`."""
        found: dict[str, OperatorStateMeta] = {}
        for part in self.metadata.parts:
            for document in part.operator_state.states if part.operator_state else ():
                name = str(document.get("name"))
                with _Unreadable(self.storage.location(self.path), name):
                    found.setdefault(name, OperatorStateMeta.from_json(document))
        return dict(sorted(found.items()))

    def describe(self) -> dict[str, Any]:
        """Return what is stored, as JSON values; types as people write them, sizes in bytes.

        Raises
        ------
        UnreadableStateError
        """
        metadata, parts = self.metadata, self.metadata.parts
        files = {file.path: file.bytes for part in parts for file in part.files}
        return {
            "location": self.location,
            "kind": "savepoint" if self.is_savepoint else "checkpoint",
            "uid": metadata.uid,
            "epoch": metadata.epoch,
            "query_id": metadata.query_id,
            "run_id": metadata.run_id,
            "parallelism": metadata.parallelism,
            "max_parallelism": metadata.max_parallelism,
            "backends": sorted({f"{part.backend} {part.backend_version}" for part in parts}),
            "key_columns": [{"name": name, "type": kind} for name, kind in metadata.key_columns],
            "states": [
                {
                    "name": name,
                    "kind": meta.kind.value,
                    "namespace": repr(meta.namespace_serializer),
                    "value": repr(meta.value_serializer),
                    "entries": sum(part.entries.get(name, 0) for part in parts),
                }
                for name, meta in self.states().items()
            ],
            "operator_states": [
                {
                    "name": name,
                    "kind": meta.kind.value,
                    "key": repr(meta.key_serializer),
                    "value": repr(meta.value_serializer),
                }
                for name, meta in self.operator_states().items()
            ],
            "files": len(files),
            "bytes": sum(files.values()),
            "deltas": max((len(part.deltas) for part in parts), default=0),
        }

    def _reads_all(self, name: str, metas: Sequence[StateMeta]) -> StateMeta:
        # The one with the most fields first: another may read it too, and drop some.
        for meta in sorted(metas, key=lambda meta: -_fields(meta.value_serializer.arrow_type)):
            if all(meta.kind is other.kind and _reads(meta, other) for other in metas):
                return meta
        shown = " and ".join(repr(meta.value_serializer) for meta in metas)
        reason = f"its tasks have written it as {shown}, and none of these reads the others"
        raise UnreadableStateError(self.storage.location(self.path), name, f"{reason}. Run its query once.")


def _fields(arrow_type: pa.DataType) -> int:
    """Return how many fields a type has, at any depth."""
    inner = [arrow_type.field(number) for number in range(arrow_type.num_fields)]
    return len(inner) + sum(_fields(field.type) for field in inner)


def operators_in(storage: CheckpointStorage) -> list[str]:
    """Return the uids of the operators in a checkpoint folder, sorted; none for other folders.

    Raises
    ------
    StorageError
    """
    folders = [
        file.name for file in storage.describe() if file.is_folder and not file.name.startswith((".", "_"))
    ]
    listed = storage.for_each(storage.list, folders)
    return [name for name, names in zip(folders, listed, strict=True) if _is_operator(names)]


def _is_operator(names: Sequence[str]) -> bool:
    return OWNER in names or METADATA in names or any(map(_CHECKPOINT.fullmatch, names))


def _newest(folder: OperatorFolder, epochs: Sequence[int]) -> CheckpointMetadata | None:
    """Return the newest checkpoint."""
    found = map(folder.read_metadata, sorted(epochs, reverse=True))
    return next((metadata for metadata in found if metadata is not None), None)


def _reads(meta: StateMeta, other: StateMeta) -> bool:
    verdict = meta.value_serializer.resolve_compatibility(other.value_serializer.snapshot())
    return not verdict.is_incompatible


class _Unreadable:
    """Turns what is wrong with a state's description into `UnreadableStateError`."""

    def __init__(self, path: str, state: str) -> None:
        self._path = path
        self._state = state

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, (KeyedStateError, LookupError, TypeError, ValueError)):
            raise UnreadableStateError(self._path, self._state, str(error)) from error


def _parent(storage: CheckpointStorage) -> CheckpointStorage:
    """Return the storage of the folder above."""
    address, mark, query = storage.uri.partition("?")
    above = address.rstrip("/").rpartition("/")[0] or "/"
    root = storage.root.rstrip("/").rpartition("/")[0] or ("/" if storage.is_local else "")
    return CheckpointStorage(
        storage.filesystem, root, f"{above}{mark}{query}", storage.retry, storage.permissions
    )


def _last_part(storage: CheckpointStorage) -> str:
    return storage.root.rstrip("/").rpartition("/")[2]


def _visible(names: Sequence[str]) -> list[str]:
    return [name for name in names if not name.startswith(".")]
