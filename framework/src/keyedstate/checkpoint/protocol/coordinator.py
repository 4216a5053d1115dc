"""The driver's side: collects the acknowledgements of an epoch, publishes its checkpoint, and cleans up.

Spark waits while the driver handles the end of a task.  The checkpoint must exist before Spark's own commit,
so it is published at once; everything else happens in the background.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from keyedstate.checkpoint.format.json_converter import from_json, to_json
from keyedstate.checkpoint.format.manifest import (
    AttemptManifest,
    CheckpointMetadata,
    FailureReason,
    TaskIdentity,
)
from keyedstate.checkpoint.protocol import retention
from keyedstate.checkpoint.protocol.background import Background
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.owner import check_writer, exclusive
from keyedstate.errors import (
    CorruptFileError,
    MissingFileError,
    StateFolderOwnedError,
    StorageError,
    SupersededRunError,
)
from keyedstate.options import CHECKPOINT_RETAINED, CHECKPOINT_TIMEOUT, Configuration

_log = logging.getLogger(__name__)

#: The driver reads a manifest whose JSON is longer: those of all tasks are in its memory at once.
CARRIED_BYTES = 1 << 16


@dataclass(frozen=True)
class Acknowledgement:
    """The message of a task that its attempt has finished; small, since it travels through an accumulator."""

    identity: TaskIdentity
    #: The path that `write_attempt` returned.
    manifest: str
    #: The manifest in JSON; None where it is longer than `CARRIED_BYTES`, and has to be read.
    content: str | None = None

    @classmethod
    def of(cls, path: str, manifest: AttemptManifest) -> Acknowledgement:
        """Return that of a manifest that was written to a path."""
        content = json.dumps(to_json(manifest))
        return cls(manifest.identity, path, content if len(content) <= CARRIED_BYTES else None)


class CheckpointListener:
    """Is notified of the checkpoints of one operator, in order; in the background, except for `published`.

    The methods do nothing by default.  An error that one raises is logged and ignored.
    """

    def published(self, metadata: CheckpointMetadata, publish_ms: float) -> None:
        """A checkpoint was published; called at once, while Spark waits."""

    def completed(self, metadata: CheckpointMetadata) -> None:
        """A checkpoint was published; called again where a partition of its epoch ran again."""

    def aborted(self, epoch: int, reason: FailureReason) -> None:
        """An epoch has no checkpoint; tasks of the next epoch may still complete it."""

    def subsumed(self, epoch: int) -> None:
        """A checkpoint was deleted, since enough newer ones exist."""


@dataclass
class _Pending:
    """The current epoch."""

    #: Of the task that acknowledged first.
    identity: TaskIdentity
    #: Runs until the epoch is published.
    timer: threading.Timer
    #: The last one of each partition.
    acknowledged: dict[int, Acknowledgement] = field(default_factory=dict)
    #: By path; a manifest never changes after it is written.
    manifests: dict[str, AttemptManifest] = field(default_factory=dict)
    #: Whether it was published, and whether the listener was notified that it was not.
    published: bool = False
    aborted: bool = False


class CheckpointCoordinator:
    """Publishes the checkpoints of one operator from the acknowledgements of its tasks.

    Correctness after a crash does not depend on this class: the tasks of the next epoch publish an
    unpublished checkpoint from the same manifests.

    Clean-up and the listener run in a thread of their own.  If it falls behind by some epochs, the next
    publication waits for it, so that files do not pile up (CP-03).  Of several waiting clean-ups only the
    last one runs, since each deletes everything that is obsolete.

    Raises `InvalidOptionError` where `retained` or `timeout_ms` is too small.

    Parameters
    ----------
    retained : int
        Completed checkpoints to keep, at least 2: Spark may run the newest epoch again, from the one before.
    timeout_ms : int
        From the first acknowledgement of an epoch to the last one.  Afterwards the epoch is reported as
        aborted, with the missing partitions.  If they still acknowledge before the next epoch, the checkpoint
        is published, since Spark is about to commit the epoch.
    """

    def __init__(
        self,
        folder: OperatorFolder,
        listener: CheckpointListener | None = None,
        retained: int = 2,
        timeout_ms: int = 600_000,
    ) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._pending: _Pending | None = None
        self._background = Background(f"keyedstate-checkpoints-{folder.uid}")
        # The newest epoch whose clean-up was asked for: an older one that is still waiting is left out.
        self._to_clean: CheckpointMetadata | None = None
        self.configure(listener, retained, timeout_ms)

    def configure(
        self, listener: CheckpointListener | None = None, retained: int = 2, timeout_ms: int = 600_000
    ) -> None:
        """Change the settings, for an operator that is built again over the same folder."""
        given = Configuration({CHECKPOINT_RETAINED.name: retained, CHECKPOINT_TIMEOUT.name: timeout_ms})
        self._retained, self._timeout_ms = given[CHECKPOINT_RETAINED], given[CHECKPOINT_TIMEOUT]
        self._listener = listener or CheckpointListener()

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Take the acknowledgement of a task; the last missing one publishes the epoch's checkpoint.

        Where Spark runs a partition again, its last attempt counts: an epoch that was published is published
        again.  Late acknowledgements of earlier epochs are ignored.

        Raises
        ------
        StateFolderOwnedError, SupersededRunError
            Where another query, or a newer run of this one, may write now; nothing was published.
        CheckpointError
            Where a manifest cannot be read or the checkpoint not be written; the tasks of the next epoch
            publish it.
        """
        identity = acknowledgement.identity
        if identity.uid != self.folder.uid:
            raise ValueError(
                f"the coordinator of {self.folder.uid!r} got an acknowledgement of {identity.uid!r}"
            )
        with self._lock:
            pending = self._enter(identity)
            if pending is None:
                return
            pending.acknowledged[identity.partition] = acknowledgement
            if len(pending.acknowledged) < identity.parallelism:
                return
            began = time.perf_counter()
            try:
                metadata = self._publish(pending)
            except (StateFolderOwnedError, SupersededRunError):
                self._abort(pending, FailureReason.SUPERSEDED_RUN)
                raise
            except StorageError:
                self._abort(pending, FailureReason.IO)
                raise
            except Exception:
                self._abort(pending, FailureReason.FINALIZATION)
                raise
            pending.published = True
            pending.timer.cancel()
            self._to_clean = metadata
        try:
            self._listener.published(metadata, (time.perf_counter() - began) * 1000.0)
        except Exception:
            _log.exception("a listener to the checkpoints of %r raised", identity.uid)
        self._background.submit(lambda: self._completed(metadata))

    def drain(self, timeout: float | None = None) -> bool:
        """Wait for clean-up and listener; False where they are not done after `timeout` seconds."""
        return self._background.drain(timeout)

    # -- at once, under the lock -------------------------------------------------------------------

    def _enter(self, identity: TaskIdentity) -> _Pending | None:
        """Return the epoch of an acknowledgement, possibly a new one; None for an epoch of the past."""
        pending = self._pending
        same_run = pending is not None and pending.identity.run_id == identity.run_id
        if pending is not None and same_run and identity.epoch == pending.identity.epoch:
            return pending
        if pending is not None and same_run and identity.epoch < pending.identity.epoch:
            _log.warning(
                "ignoring a late acknowledgement of partition %d, epoch %d of %r: epoch %d is under way",
                identity.partition,
                identity.epoch,
                identity.uid,
                pending.identity.epoch,
            )
            return None
        if not same_run:
            # Before anything is forgotten: a zombie run must not disturb the epoch of its successor.  What a
            # run forgets of its own earlier epoch disturbs none, and it is checked before it publishes.
            check_writer(self.folder, identity.query_id, identity.run_id)
        if pending is not None and not pending.published:
            pending.timer.cancel()
            self._background.submit(lambda: self._settle(pending, identity.run_id))
        if not same_run:
            self._background.submit(lambda: self._clean(lambda: retention.sweep(self.folder, identity)))
        timer = threading.Timer(self._timeout_ms / 1000.0, lambda: self._expire(entered))
        timer.daemon = True
        entered = _Pending(identity, timer)
        timer.start()
        self._pending = entered
        return entered

    def _publish(self, pending: _Pending) -> CheckpointMetadata:
        acknowledged = list(pending.acknowledged.values())
        unread = [word for word in acknowledged if word.manifest not in pending.manifests]
        try:
            read = self.folder.storage.for_each(self._manifest, unread)
        except MissingFileError:
            # The usual reason is that a newer run has begun and cleared the attempts of this one away.
            check_writer(self.folder, pending.identity.query_id, pending.identity.run_id)
            raise
        for word, manifest in zip(unread, read, strict=True):
            if manifest.identity != word.identity:
                location = self.folder.storage.location(word.manifest)
                raise CorruptFileError(location, "it is that of another attempt than the acknowledged one")
            pending.manifests[word.manifest] = manifest
        metadata = CheckpointMetadata.of([pending.manifests[word.manifest] for word in acknowledged])
        # As late as possible: a driver that was asleep must not overwrite what its successor has published.
        with exclusive(self.folder):
            check_writer(self.folder, metadata.query_id, metadata.run_id)
            self.folder.write_metadata(metadata)
        return metadata

    def _manifest(self, acknowledgement: Acknowledgement) -> AttemptManifest:
        content = acknowledgement.content
        if content is None:
            return self.folder.read_manifest(acknowledgement.manifest)
        return from_json(AttemptManifest, json.loads(content))

    def _abort(self, pending: _Pending, reason: FailureReason) -> None:
        """Notify the listener once that an epoch has no checkpoint."""
        if not pending.aborted and not pending.published:
            pending.aborted = True
            self._background.submit(lambda: self._listener.aborted(pending.identity.epoch, reason))

    # -- in other threads --------------------------------------------------------------------------

    def _expire(self, pending: _Pending) -> None:
        with self._lock:
            if pending is not self._pending or pending.published:
                return
            epoch, parallelism = pending.identity.epoch, pending.identity.parallelism
            missing = sorted(set(range(parallelism)) - set(pending.acknowledged))
            _log.warning(
                "the checkpoint of epoch %d of %r is aborted: after %d ms the partitions %s of %d have not "
                "acknowledged. Should they still finish, it is published.",
                epoch,
                self.folder.uid,
                self._timeout_ms,
                ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else ""),
                parallelism,
            )
            self._abort(pending, FailureReason.EXPIRED)

    def _settle(self, pending: _Pending, next_run: str) -> None:
        """Report an epoch that the driver has not published: the tasks of the next one may have."""
        metadata = self.folder.read_metadata(pending.identity.epoch)
        if metadata is not None and metadata.run_id == pending.identity.run_id:
            self._listener.completed(metadata)
        elif not pending.aborted:
            same_run = pending.identity.run_id == next_run
            reason = FailureReason.SUBSUMED if same_run else FailureReason.SUPERSEDED_RUN
            self._listener.aborted(pending.identity.epoch, reason)

    def _completed(self, metadata: CheckpointMetadata) -> None:
        try:
            self._listener.completed(metadata)
        finally:
            if self._to_clean is metadata:
                self._clean(lambda: self._prune(metadata))

    def _prune(self, metadata: CheckpointMetadata) -> None:
        for epoch in retention.prune(self.folder, metadata, self._retained):
            self._listener.subsumed(epoch)

    def _clean(self, action: Callable[[], None]) -> None:
        # A failed clean-up costs room and nothing else, and the next one finds what it left.
        try:
            action()
        except Exception:
            _log.warning("cannot clean up the state folder %s", self.folder.location, exc_info=True)
