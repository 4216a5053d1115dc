"""The driver's side: collects the acknowledgements of an epoch, publishes its checkpoint, cleans up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from keyedstate.checkpoint import retention
from keyedstate.checkpoint.errors import CorruptManifestError, MissingFileError, SupersededRunError
from keyedstate.checkpoint.folder import OperatorFolder
from keyedstate.checkpoint.manifest import AttemptManifest, CheckpointMetadata, Owner, TaskIdentity
from keyedstate.config import CHECKPOINT_RETAINED
from keyedstate.errors import InvalidOptionError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Acknowledgement:
    """The word of one task that its attempt has finished; small, since it travels through an accumulator.

    Attributes
    ----------
    identity : TaskIdentity
    manifest : str
        What `OperatorFolder.write_manifest` returned.
    """

    identity: TaskIdentity
    manifest: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON face."""
        return {"identity": self.identity.to_json(), "manifest": self.manifest}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Acknowledgement:
        """Rebuild from the JSON face; KeyError where a field is missing."""
        return cls(TaskIdentity.from_json(document["identity"]), document["manifest"])


class CheckpointCoordinator:
    """Makes the checkpoints of one operator out of what its tasks acknowledge.

    Parameters
    ----------
    folder : OperatorFolder
    on_completed : callable, optional
        Called with every checkpoint after its publication, in the thread of the last acknowledgement; with
        the same epoch again where a partition of it ran again.
    retained : int
        Completed checkpoints to keep, at least 2: Spark may run the newest epoch again, from the one before.

    Raises
    ------
    InvalidOptionError
        Where `retained` is below 2.

    Notes
    -----
    Nothing here is needed for correctness after a crash: what was not published is published by the tasks of
    the next epoch, from the same manifests.
    """

    def __init__(
        self,
        folder: OperatorFolder,
        on_completed: Callable[[CheckpointMetadata], None] | None = None,
        retained: int = 2,
    ) -> None:
        try:
            self._retained = CHECKPOINT_RETAINED.parse(retained)
        except ValueError:
            expected = CHECKPOINT_RETAINED.expected
            raise InvalidOptionError(CHECKPOINT_RETAINED.name, retained, expected, "call") from None
        self._folder = folder
        self._on_completed = on_completed
        # Reentrant, so that on_completed may look at what it was given through this object.
        self._lock = threading.RLock()
        # The epoch that is under way: (run id, epoch), and its last acknowledgement by partition.
        self._current: tuple[str, int] | None = None
        self._acknowledged: dict[int, Acknowledgement] = {}
        # Manifests of the current epoch by path; a manifest never changes once it is written.
        self._manifests: dict[str, AttemptManifest] = {}

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Take the word of a task; the last one that is missing publishes the epoch's checkpoint.

        A partition may acknowledge again, because Spark ran it again, and then its last attempt counts: an
        epoch that was published already is published anew.  What comes late from an epoch that the query has
        left is passed over.

        Raises
        ------
        SupersededRunError
            Where a newer run of the query has begun; nothing was published.
        CheckpointError
            Where the manifests cannot be read or the checkpoint not be written; the tasks of the next epoch
            will publish it.
        """
        identity = acknowledgement.identity
        if identity.uid != self._folder.uid:
            raise ValueError(
                f"the coordinator of {self._folder.uid!r} got an acknowledgement of {identity.uid!r}"
            )
        with self._lock:
            if not self._enter(identity):
                return
            self._acknowledged[identity.partition] = acknowledgement
            if len(self._acknowledged) < identity.parallelism:
                return
            metadata = self._publish()
            self._clean(lambda: retention.prune(self._folder, metadata.epoch, self._retained))
            if self._on_completed is not None:
                self._on_completed(metadata)

    def _enter(self, identity: TaskIdentity) -> bool:
        """Make the epoch of an acknowledgement the current one; False where it is one of the past."""
        run_id, epoch = identity.run_id, identity.epoch
        if (run_id, epoch) == self._current:
            return True
        if self._current is not None and self._current[0] == run_id and epoch < self._current[1]:
            _log.warning(
                "passing over a late acknowledgement of partition %d, epoch %d of %r: epoch %d is under way",
                identity.partition,
                epoch,
                identity.uid,
                self._current[1],
            )
            return False
        # Before anything is forgotten: a zombie run must not disturb the epoch of its successor.
        owner = self._check_run(run_id)
        if owner is not None and (self._current is None or self._current[0] != run_id):
            self._clean(lambda: retention.drop_superseded_attempts(self._folder, epoch, run_id, owner))
        self._current = (run_id, epoch)
        self._acknowledged.clear()
        self._manifests.clear()
        return True

    def _publish(self) -> CheckpointMetadata:
        acknowledged = list(self._acknowledged.values())
        unread = [word for word in acknowledged if word.manifest not in self._manifests]
        try:
            read = self._folder.storage.for_each(
                lambda word: self._folder.read_manifest(word.manifest), unread
            )
        except MissingFileError:
            # The usual reason is that a newer run has begun and cleared the attempts of this one away.
            self._check_run(acknowledged[0].identity.run_id)
            raise
        for word, manifest in zip(unread, read, strict=True):
            if manifest.identity != word.identity:
                location = self._folder.storage.location(word.manifest)
                raise CorruptManifestError(
                    location, "it is that of another attempt than the acknowledged one"
                )
            self._manifests[word.manifest] = manifest
        metadata = CheckpointMetadata.of([self._manifests[word.manifest] for word in acknowledged])
        # As late as possible: a driver that was asleep must not overwrite what its successor has published.
        self._check_run(metadata.run_id)
        self._folder.write_metadata(metadata)
        return metadata

    def _check_run(self, run_id: str) -> Owner | None:
        owner = self._folder.read_owner()
        newer = None if owner is None else owner.superseded_by(run_id)
        if newer is not None:
            raise SupersededRunError(self._folder.location, run_id, newer)
        return owner

    def _clean(self, action: Callable[[], None]) -> None:
        # A failed clean-up costs room and nothing else, and the next one finds what it left.
        try:
            action()
        except Exception:
            _log.warning("cannot clean up the state folder %s", self._folder.location, exc_info=True)
