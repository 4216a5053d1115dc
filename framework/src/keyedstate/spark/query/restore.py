"""The driver's part in beginning from a savepoint: what that says of a new operator, and when it may go."""

from __future__ import annotations

from keyedstate.checkpoint import CheckpointMetadata, OperatorFolder, Owner, SavepointRestore
from keyedstate.options import MAX_PARALLELISM, Configuration


def expected_owner(config: Configuration, folder: OperatorFolder) -> Owner | None:
    """Return the owner that a folder which is nobody's will get; see `SavepointRestore.expected_owner`."""
    return SavepointRestore.of(config).expected_owner(folder, config.get(MAX_PARALLELISM))


class ClaimedSavepoint:
    """The savepoint that an operator began from, where its query has claimed it.

    Parameters
    ----------
    config : Configuration
    folder : OperatorFolder
        The operator's.
    """

    def __init__(self, config: Configuration, folder: OperatorFolder) -> None:
        self._restore = SavepointRestore.of(config)
        self._folder = folder
        self._is_settled = False

    def release(self, completed: CheckpointMetadata) -> None:
        """Delete it where a checkpoint shows that nothing needs it; to be called with each one.

        Raises
        ------
        CheckpointError
            Where it cannot be deleted; the next call tries again.
        """
        self._is_settled = self._is_settled or self._restore.release(self._folder, completed)
