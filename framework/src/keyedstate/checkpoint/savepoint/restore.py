"""How a new query begins from a savepoint: its epoch 0 does, and no other one.

The owner file of each operator names the savepoint from the first task on.  So epoch 0 begins from it again
where Spark runs it again, and goes on being refused where the option names another one by then.  From epoch 1
on there is a checkpoint of epoch 0, which is whole: the savepoint is not read any more and no file of the
query's own refers to it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from keyedstate.checkpoint.format.manifest import CheckpointMetadata, Owner, SavepointOrigin, TaskIdentity
from keyedstate.checkpoint.protocol.operator_folder import METADATA, OperatorFolder
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
    """What the options ``restore.*`` say."""

    #: None where the query does not begin from a savepoint, or does not say so any more.
    uri: str | None
    #: Whether the savepoint becomes the query's own.
    claims: bool
    allow_unclaimed: bool
    allow_new: bool
    #: With what storages are opened.
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
        """Return the owner that a folder which is nobody's will get by the savepoint, but for its query.

        What epoch 0 would refuse is refused here; whether the query is at its epoch 0, nobody knows yet.

        Parameters
        ----------
        max_parallelism : int or None
            The option, where it is set.

        Returns
        -------
        Owner or None
            None where nothing is restored.

        Raises
        ------
        NotASavepointError, NewOperatorError, MaxParallelismChangedError
        CheckpointError
            Where a file, which is named, cannot be read.
        """
        if self.uri is None or folder.may_start_empty():
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
        """Return what the owner file of a new folder says of the savepoint; raises as `restore_point`."""
        if self.uri is None or identity.epoch != 0:
            return None
        savepoint = self._open(self.uri)
        self._refuse_new(savepoint, identity.uid)
        _stored(savepoint, identity)
        return SavepointOrigin(savepoint.location, savepoint.id, savepoint.operators, self.claims)

    def beginning(
        self,
        directory: CheckpointStorage,
        folder: OperatorFolder,
        owner: Owner,
        identity: TaskIdentity,
        restored: CheckpointMetadata | None,
    ) -> OperatorSnapshot | None:
        """Return what an epoch begins from, or None where it begins without state.

        Parameters
        ----------
        directory : CheckpointStorage
            The folder with the folders of all operators.
        owner : Owner
            As `claim` returned it.
        restored : CheckpointMetadata or None
            What `find_restore_point` returned.

        Raises
        ------
        UnclaimedStateError
            As `refuse_unclaimed`.
        CheckpointError
            As `restore_point`.
        """
        if restored is None:
            return self.restore_point(owner, identity)
        self.refuse_unclaimed(directory, owner, restored, identity)
        return OperatorSnapshot(folder.storage, restored, f"chk-{restored.epoch}/{METADATA}")

    def restore_point(self, owner: Owner, identity: TaskIdentity) -> OperatorSnapshot | None:
        """Return what an epoch begins from that has no checkpoint before it, or None.

        Raises
        ------
        RestoreChangedError
            Where epoch 0 runs again, and the option does not name what it began from.
        NotASavepointError
        NewOperatorError
            Where the savepoint does not have the operator, and that is not allowed.
        MaxParallelismChangedError
        CheckpointError
            Where a file, which is named, cannot be read.
        """
        if identity.epoch != 0:
            return None
        if owner.savepoint is None:
            if self.uri is not None:
                raise RestoreChangedError(identity.uid, None, self.uri)
            return None
        savepoint = self._open(self.uri or owner.savepoint.location)
        if savepoint.id != owner.savepoint.id:
            raise RestoreChangedError(identity.uid, owner.savepoint.location, savepoint.location)
        return _stored(savepoint, identity)

    def refuse_unclaimed(
        self, directory: CheckpointStorage, owner: Owner, restored: CheckpointMetadata, identity: TaskIdentity
    ) -> None:
        """Refuse to go on behind epoch 0 where the savepoint has an operator that the query does not have.

        An operator of the query has a folder once epoch 0 is done, and nothing before tells which operators a
        query has.  Epoch 0 is committed then, but its state is all there: nothing is lost where the query is
        stopped here.
        Raises `UnclaimedStateError`.

        Parameters
        ----------
        directory : CheckpointStorage
            The folder with the folders of all operators.
        restored : CheckpointMetadata
            The checkpoint that the epoch begins from.
        """
        if owner.savepoint is None or self.allow_unclaimed or restored.epoch != 0:
            return
        unclaimed = []
        for uid in owner.savepoint.operators:
            if uid != identity.uid:
                other = OperatorFolder(directory, uid).read_owner()
                if other is None or other.query_id != identity.query_id:
                    unclaimed.append(uid)
        if unclaimed:
            raise UnclaimedStateError(owner.savepoint.location, unclaimed)

    def release(self, folder: OperatorFolder, completed: CheckpointMetadata) -> bool:
        """Delete the savepoint where it is the query's own and a checkpoint shows that nothing needs it.

        A checkpoint of a later epoch does: Spark has committed epoch 0 then, so that does not run again.

        Returns
        -------
        bool
            Whether nothing is left to be done.

        Raises
        ------
        CheckpointError
            Where it cannot be deleted; to be called again with the next checkpoint.
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


def _stored(savepoint: SavepointFolder, identity: TaskIdentity) -> OperatorSnapshot | None:
    if identity.uid not in savepoint.operators:
        return None
    metadata = savepoint.metadata(identity.uid)
    if metadata.max_parallelism != identity.max_parallelism:
        raise MaxParallelismChangedError(metadata.max_parallelism, identity.max_parallelism)
    return OperatorSnapshot(savepoint.storage(identity.uid), metadata, METADATA)
