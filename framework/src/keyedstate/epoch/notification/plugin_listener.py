"""A listener to an operator's checkpoints that notifies plugins."""

from __future__ import annotations

from keyedstate.checkpoint.format.manifest import CheckpointMetadata, FailureReason
from keyedstate.checkpoint.protocol.coordinator import CheckpointListener
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.savepoint.restore import SavepointRestore
from keyedstate.checkpoint.storage.process_plugins import registry_of
from keyedstate.options import Configuration


class PluginListener(CheckpointListener):
    """Notifies plugins of an operator's checkpoints, and releases a claimed savepoint."""

    def __init__(self, folder: OperatorFolder, config: Configuration) -> None:
        self._folder = folder
        self._plugins = registry_of(config)
        self._restore = SavepointRestore.of(config)
        self._is_released = False

    def completed(self, metadata: CheckpointMetadata) -> None:
        """Notify plugins that a checkpoint exists; delete a claimed savepoint that is not needed any more."""
        self._plugins.notify(
            "keyedstate_checkpoint_completed",
            uid=metadata.uid,
            epoch=metadata.epoch,
            location=self._folder.storage.uri,
            data_files=metadata.data_files,
        )
        self._is_released = self._is_released or self._restore.release(self._folder, metadata)

    def aborted(self, epoch: int, reason: FailureReason) -> None:
        """Notify plugins that an epoch has no checkpoint."""
        uid = self._folder.uid
        self._plugins.notify("keyedstate_checkpoint_aborted", uid=uid, epoch=epoch, reason=reason.value)

    def subsumed(self, epoch: int) -> None:
        """Notify plugins that a checkpoint was deleted."""
        self._plugins.notify("keyedstate_checkpoint_subsumed", uid=self._folder.uid, epoch=epoch)
