"""How a new query begins from a savepoint, in its epoch 0.

The owner file of each operator names the savepoint from the first task on.  So epoch 0 begins from it again
where Spark repeats it, and is refused where the option names another one by then.  From epoch 1 on there is a
complete checkpoint of epoch 0: the query does not read the savepoint any more, and no file of its own refers
to it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from keyedstate.checkpoint.format.manifest import CheckpointMetadata, Owner, SavepointOrigin, TaskIdentity
from keyedstate.checkpoint.protocol.operator_folder import (
    METADATA,
    START_EMPTY,
    OperatorFolder,
    metadata_path,
)
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.checkpoint.savepoint.savepoint import SavepointFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import (
    MaxParallelismChangedError,
    NewOperatorError,
    NotASavepointError,
    RestoreChangedError,
    UnclaimedStateError,
)
from keyedstate.options import (
    RESTORE_ALLOW_NEW,
    RESTORE_ALLOW_UNCLAIMED,
    RESTORE_CLAIM_MODE,
    RESTORE_SAVEPOINT,
    Configuration,
)


@dataclass(frozen=True)
class SavepointRestore:
    """The options ``restore.*``."""

    #: None where the query does not begin from a savepoint, or the option was removed since.
    uri: str | None
    #: Whether the savepoint becomes the query's own.
    claims: bool
    allow_unclaimed: bool
    allow_new: bool
    #: For opening storages.
    config: Configuration

    @classmethod
    def of(cls, config: Configuration) -> SavepointRestore:
        """Read the options."""
        return cls(
            config.get(RESTORE_SAVEPOINT),
            config[RESTORE_CLAIM_MODE] == "claim",
            config[RESTORE_ALLOW_UNCLAIMED],
            config[RESTORE_ALLOW_NEW],
            config,
        )

    def expected_owner(self, folder: OperatorFolder, max_parallelism: int | None) -> Owner | None:
        """Return the owner, without a query, that the savepoint gives to a new folder; None for no restore.

        Refuses what epoch 0 would refuse, as `find_snapshot`; whether the query is at its epoch 0 is not
        known yet.
        """
        if self.uri is None or folder.storage.exists(START_EMPTY):
            return None
        savepoint = self._open(self.uri)
        self._refuse_new(savepoint, folder.uid)
        if folder.uid not in savepoint.operators:
            return None
        stored = savepoint.metadata(folder.uid).max_parallelism
        if max_parallelism not in (None, stored):
            raise MaxParallelismChangedError(stored, max_parallelism or 0)
        return Owner("", folder.uid, stored, 0, ())

    def origin(self, identity: TaskIdentity) -> SavepointOrigin | None:
        """Return the savepoint for the owner file of a new folder; raises as `find_snapshot`."""
        if self.uri is None or identity.epoch != 0:
            return None
        savepoint = self._open(self.uri)
        self._refuse_new(savepoint, identity.uid)
        _snapshot_in(savepoint, identity)
        return SavepointOrigin(savepoint.location, savepoint.id, savepoint.operators, self.claims)

    def find_snapshot(
        self,
        folder: OperatorFolder,
        owner: Owner,
        identity: TaskIdentity,
        restored: CheckpointMetadata | None,
    ) -> OperatorSnapshot | None:
        """Return the snapshot that an epoch begins from, or None where it begins without state.

        Takes the owner of `claim` and the checkpoint of `find_restore_point`.

        Raises
        ------
        UnclaimedStateError
            In epoch 1, where the savepoint has an operator that the query does not have.
        RestoreChangedError
            Where epoch 0 runs again, and the option names another savepoint than it began from.
        NewOperatorError
            Where the savepoint does not have the operator, and that is not allowed.
        NotASavepointError, MaxParallelismChangedError
        CheckpointError
            Where a file, which is named, cannot be read.
        """
        if restored is not None:
            if restored.epoch == 0:
                self._refuse_unclaimed(folder, owner, identity)
            return OperatorSnapshot(folder.storage, restored, metadata_path(restored.epoch))
        if identity.epoch != 0:
            return None
        if owner.savepoint is None:
            if self.uri is not None:
                raise RestoreChangedError(identity.uid, None, self.uri)
            return None
        savepoint = self._open(self.uri or owner.savepoint.location)
        if savepoint.id != owner.savepoint.id:
            raise RestoreChangedError(identity.uid, owner.savepoint.location, savepoint.location)
        return _snapshot_in(savepoint, identity)

    def _refuse_unclaimed(self, folder: OperatorFolder, owner: Owner, identity: TaskIdentity) -> None:
        """Refuse to continue after epoch 0 where the savepoint has an operator that the query does not have.

        Each operator of the query has a folder after epoch 0, and before it nothing tells which operators
        there are.  Epoch 0 is committed then, but its state exists: stopping the query here loses nothing.
        """
        if owner.savepoint is None or self.allow_unclaimed:
            return
        others = [uid for uid in owner.savepoint.operators if uid != identity.uid]
        owners = {uid: folder.sibling(uid).read_owner() for uid in others}
        unclaimed = [uid for uid, other in owners.items() if not other or other.query_id != identity.query_id]
        if unclaimed:
            raise UnclaimedStateError(owner.savepoint.location, unclaimed)

    def release(self, folder: OperatorFolder, completed: CheckpointMetadata) -> bool:
        """Delete a claimed savepoint once no epoch needs it; returns whether nothing is left to be done.

        A checkpoint of a later epoch shows that: Spark has committed epoch 0 then, which does not run again.
        Raises `CheckpointError` where it cannot be deleted; to be called again with the next checkpoint.
        """
        if completed.epoch == 0:
            return False
        owner = folder.read_owner()
        if owner is None or owner.savepoint is None or not owner.savepoint.claimed:
            return True
        with contextlib.suppress(NotASavepointError):
            location = CheckpointStorage.open(self.uri or owner.savepoint.location, self.config)
            SavepointFolder.delete(location, only_id=owner.savepoint.id)
        return True

    def _open(self, location: str) -> SavepointFolder:
        return SavepointFolder.open(CheckpointStorage.open(location, self.config))

    def _refuse_new(self, savepoint: SavepointFolder, uid: str) -> None:
        if uid not in savepoint.operators and not self.allow_new:
            raise NewOperatorError(savepoint.location, uid, savepoint.operators)


def _snapshot_in(savepoint: SavepointFolder, identity: TaskIdentity) -> OperatorSnapshot | None:
    if identity.uid not in savepoint.operators:
        return None
    metadata = savepoint.metadata(identity.uid)
    if metadata.max_parallelism != identity.max_parallelism:
        raise MaxParallelismChangedError(metadata.max_parallelism, identity.max_parallelism)
    return OperatorSnapshot(savepoint.storage(identity.uid), metadata, METADATA)
