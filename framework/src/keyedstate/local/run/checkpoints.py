"""The checkpoints of a run: one epoch of every operator, published together."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from keyedstate.checkpoint.format.manifest import CheckpointMetadata, FailureReason
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement, CheckpointCoordinator
from keyedstate.checkpoint.protocol.metrics import metrics_of_checkpoint
from keyedstate.checkpoint.protocol.operator_folder import SET_BACK, OperatorFolder
from keyedstate.epoch.notification.plugin_listener import PluginListener
from keyedstate.epoch.notification.reporters import reporters_of
from keyedstate.errors import DuplicateUidError, OvertakenRunError, StateFolderOwnedError
from keyedstate.local.run.elements import Restored
from keyedstate.local.run.operator_task import RunIdentity
from keyedstate.local.run.plan import OperatorPlan
from keyedstate.options import CHECKPOINT_RETAINED, CHECKPOINT_TIMEOUT, Configuration
from keyedstate.state.clock import system_clock

#: Distinguishes folders of local runs from those of Spark's queries, whose ids are UUIDs.
_QUERY = "local-"


class Checkpoints:
    """Publishes the checkpoints of all operators of a run, which all keep state.

    All operators finish their attempts before the first checkpoint is published. So a run that is killed in
    between leaves complete attempts, from which the next run publishes the rest.

    Raises `DuplicateUidError`, and `StateFolderOwnedError` where a folder is that of a query on Spark.
    """

    def __init__(self, plans: Sequence[OperatorPlan]) -> None:
        self._folders = {folder.uid: folder for plan in plans if (folder := plan.folder) is not None}
        if len(self._folders) < len(plans):
            uids = [plan.folder.uid for plan in plans if plan.folder is not None]
            raise DuplicateUidError(next(uid for uid in uids if uids.count(uid) > 1))
        self.identity = RunIdentity(_query_id(list(self._folders.values())), uuid.uuid4().hex)
        published = [epoch for folder in self._folders.values() for epoch in folder.checkpoints()]
        self.epoch = max(published, default=-1) + 1
        self._listeners: list[_Listener] = []
        self._coordinators: dict[str, CheckpointCoordinator] = {}
        for plan in plans:
            if (folder := plan.folder) is not None:
                listener = _Listener(folder, plan.config)
                self._listeners.append(listener)
                self._coordinators[folder.uid] = CheckpointCoordinator(
                    folder, listener, plan.config[CHECKPOINT_RETAINED], plan.config[CHECKPOINT_TIMEOUT]
                )

    def begun(self, restored: CheckpointMetadata | None) -> Restored:
        """Return how the run begins, after its tasks have claimed the folders and restored the state.

        Raises `OvertakenRunError` where another run published the first epoch of this one before they did.
        From now on none can.
        """
        runs: list[str] = []
        for folder in self._folders.values():
            newest = max(folder.checkpoints(), default=-1)
            if newest >= self.epoch:
                consent = folder.storage.location(f"{SET_BACK}{self.epoch}")
                run_id, epoch = self.identity.run_id, self.epoch
                raise OvertakenRunError(folder.location, folder.uid, run_id, epoch, newest, consent)
            owner = folder.read_owner()
            if owner is not None and self.identity.run_id in owner.runs:
                runs += owner.runs[: owner.runs.index(self.identity.run_id)]
        if restored is None or restored.query_id != self.identity.query_id:
            # A savepoint is another query's: no sink of this one has its rows.
            return Restored(None, None, self.identity.run_id, tuple(runs))
        return Restored(restored.epoch, restored.run_id, self.identity.run_id, tuple(runs))

    def publish(self, finished: Sequence[Acknowledgement]) -> None:
        """Publish the checkpoint of the epoch from the attempts of all tasks of all operators.

        Raises `CheckpointError`.
        """
        for acknowledgement in finished:
            self._coordinators[acknowledgement.identity.uid].acknowledge(acknowledgement)
        self.epoch += 1

    def expire(self) -> None:
        """Notify plugins that the epoch has no checkpoint, since its tasks have taken too long."""
        for listener in self._listeners:
            listener.aborted(self.epoch, FailureReason.EXPIRED)

    def drain(self) -> None:
        """Wait for clean-up and plugins that are notified."""
        for coordinator in self._coordinators.values():
            coordinator.drain()


def _query_id(folders: Sequence[OperatorFolder]) -> str:
    """Return the id under which earlier runs have claimed the folders, or a new one."""
    owners = [(folder, owner) for folder in folders if (owner := folder.read_owner()) is not None]
    found = owners[0][1].query_id if owners else f"{_QUERY}{uuid.uuid4()}"
    for folder, owner in owners:
        if not owner.query_id.startswith(_QUERY) or owner.query_id != found:
            raise StateFolderOwnedError(folder.location, f"query {owner.query_id}", "this run")
    return found


class _Listener(PluginListener):
    """Notifies plugins of an operator's checkpoints, reports metrics, and releases a claimed savepoint."""

    def __init__(self, folder: OperatorFolder, config: Configuration) -> None:
        super().__init__(folder, config)
        self._reporters = reporters_of(config)
        #: The time of publication, and how long it took, of epochs that are not reported yet.
        self._publications: dict[int, tuple[int, float]] = {}

    def published(self, metadata: CheckpointMetadata, publish_ms: float) -> None:
        self._publications[metadata.epoch] = system_clock(), publish_ms

    def completed(self, metadata: CheckpointMetadata) -> None:
        try:
            super().completed(metadata)
        finally:
            time_ms, publish_ms = self._publications.pop(metadata.epoch, (system_clock(), None))
            if self._reporters:
                metrics = metrics_of_checkpoint(metadata, time_ms, publish_ms)
                for reporter in self._reporters:
                    reporter.report(metrics)
