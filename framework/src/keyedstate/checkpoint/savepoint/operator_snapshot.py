"""The snapshot of one operator after one epoch, in a checkpoint or in a savepoint, found by one address.

The data source, the command line and a query that starts from a savepoint read state through it, without the
query's program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from keyedstate.backend import StateMeta
from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.leases import Lease, lease
from keyedstate.checkpoint.protocol.operator_folder import METADATA, OperatorFolder, metadata_path
from keyedstate.checkpoint.savepoint.location import SnapshotLocation
from keyedstate.checkpoint.savepoint.savepoint import SavepointFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage, Location
from keyedstate.errors import (
    CheckpointGoneError,
    KeyedStateError,
    NoSnapshotError,
    UnknownEpochError,
    UnknownOperatorError,
    UnknownStateError,
    UnreadableStateError,
)
from keyedstate.operator_state import OperatorStateMeta

#: How often the newest checkpoint is opened, which a running query may delete meanwhile.
_ATTEMPTS = 5


@dataclass(frozen=True)
class OperatorSnapshot:
    """The state of one operator after one epoch."""

    #: The operator's folder: what the paths of its data files are relative to.
    storage: CheckpointStorage
    metadata: CheckpointMetadata = field(repr=False)
    #: The metadata's own file in that folder: ``chk-7/_metadata``, or ``_metadata`` in a savepoint.
    path: str

    @classmethod
    def open(cls, location: Location, uid: str | None = None, epoch: int | None = None) -> OperatorSnapshot:
        """Find a snapshot; by default the newest one, of the newest run that has one.

        The location is a savepoint, one operator's folder in it, a checkpoint folder (``checkpoint.dir``),
        one operator's folder in that, or one ``chk-<epoch>`` folder of an operator.  The uid is needed where
        there are several operators.

        Raises
        ------
        NoSnapshotError, UnknownOperatorError, UnknownEpochError
            Each names what exists.
        NotASavepointError
            Where a savepoint was not finished, or an operator's folder was taken out of one.
        CorruptFileError, FormatVersionError, StorageError
            Where a file, which is named, cannot be read.
        """
        found = SnapshotLocation.open(CheckpointStorage.at(location), uid)
        if len(found.operators) > 1:
            raise UnknownOperatorError(found.address, None, [operator.uid for operator in found.operators])
        (operator,) = found.operators
        if operator.folder is not None:
            if epoch is not None and found.epoch is not None and epoch != found.epoch:
                raise UnknownEpochError(found.address, epoch, [found.epoch])
            return cls._of_folder(operator.folder, found.epoch if epoch is None else epoch)
        savepoint = found.savepoint or SavepointFolder.open(operator.storage.parent()[0])
        metadata = savepoint.metadata(operator.uid)
        if epoch is not None and epoch != metadata.epoch:
            raise UnknownEpochError(savepoint.location, epoch, [metadata.epoch])
        return cls(operator.storage, metadata, METADATA)

    @classmethod
    def _of_folder(cls, folder: OperatorFolder, epoch: int | None) -> OperatorSnapshot:
        epochs = folder.checkpoints()
        newest_first = reversed(epochs) if epoch is None else (epoch,)
        for metadata in filter(None, map(folder.read_metadata, newest_first)):
            return cls(folder.storage, metadata, metadata_path(metadata.epoch))
        if epochs and epoch is not None:
            raise UnknownEpochError(folder.location, epoch, epochs)
        visible = [name for name in folder.storage.list() if not name.startswith(".")]
        what = f"the operator {folder.uid!r} has no finished checkpoint yet"
        raise NoSnapshotError(folder.location, visible, what)

    @property
    def is_savepoint(self) -> bool:
        """Whether it is part of a savepoint and not a checkpoint."""
        return self.path == METADATA

    @property
    def folder(self) -> OperatorFolder | None:
        """The operator's folder of checkpoints; None for a savepoint, which does not change any more."""
        return None if self.is_savepoint else OperatorFolder(*self.storage.parent())

    @property
    def location(self) -> str:
        """The address, for people: of the checkpoint, or of the operator's folder in a savepoint."""
        return self.storage.location(self.path.rpartition("/")[0])

    def states(self) -> dict[str, StateMeta]:
        """Return the keyed states by name, with serializers that need none of the program's classes.

        A task that did not use a state in its run keeps it with the type that it had before. So the tasks of
        one checkpoint may know a state by two types; this returns the first of them that reads the others.
        Raises `UnreadableStateError` where a type, or its version, is not known here, or no type of a state
        reads its others.
        """
        found: dict[str, list[StateMeta]] = {}
        for part in self.metadata.parts:
            for document in part.states:
                name = str(document.get("name"))
                with self._readable(name):
                    meta = StateMeta.from_json(dict(document))
                    if meta not in found.setdefault(name, []):
                        found[name].append(meta)
        return {name: self._reads_all(name, metas) for name, metas in sorted(found.items())}

    def state(self, name: str) -> StateMeta:
        """Return one keyed state; raises `UnknownStateError` and `UnreadableStateError`."""
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
                with self._readable(name):
                    found.setdefault(name, OperatorStateMeta.from_json(document))
        return dict(sorted(found.items()))

    @contextlib.contextmanager
    def _readable(self, state: str) -> Iterator[None]:
        """Raise what is wrong with a state's description as `UnreadableStateError`."""
        try:
            yield
        except (KeyedStateError, LookupError, TypeError, ValueError) as error:
            raise UnreadableStateError(self.storage.location(self.path), state, str(error)) from error

    def _reads_all(self, name: str, metas: Sequence[StateMeta]) -> StateMeta:
        # The one with the most fields first: another may read it too, and drop some.
        for meta in sorted(metas, key=lambda meta: -_fields(meta.value_serializer.arrow_type)):
            if all(meta.kind is other.kind and _reads(meta, other) for other in metas):
                return meta
        shown = " and ".join(repr(meta.value_serializer) for meta in metas)
        reason = f"its tasks have written it as {shown}, and none of these reads the others"
        raise UnreadableStateError(self.storage.location(self.path), name, f"{reason}. Run its query once.")


def open_with_lease(
    location: Location, uid: str | None, epoch: int | None, seconds: float
) -> tuple[OperatorSnapshot, Lease | None]:
    """Open what `OperatorSnapshot.open` finds, with a lease; a savepoint needs none.

    Raises `CheckpointGoneError` where clean-up deleted the checkpoint that was asked for.
    """
    storage = CheckpointStorage.at(location)
    for remaining in reversed(range(_ATTEMPTS)):
        stored = OperatorSnapshot.open(storage, uid, epoch)
        if stored.folder is None:
            return stored, None
        try:
            taken = lease(stored.folder, stored.metadata.epoch, seconds)
            return replace(stored, metadata=taken.metadata), taken
        except CheckpointGoneError:
            # The query has published a newer one and deleted this one meanwhile.
            if epoch is not None or stored.location == storage.location() or not remaining:
                raise
    raise AssertionError("unreachable")


def _fields(arrow_type: pa.DataType) -> int:
    """Return how many fields a type has, at any depth."""
    inner = [arrow_type.field(number) for number in range(arrow_type.num_fields)]
    return len(inner) + sum(_fields(field.type) for field in inner)


def _reads(meta: StateMeta, other: StateMeta) -> bool:
    verdict = meta.value_serializer.resolve_compatibility(other.value_serializer.snapshot())
    return not verdict.is_incompatible
