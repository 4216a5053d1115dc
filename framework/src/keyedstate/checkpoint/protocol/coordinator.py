"""The driver's side: collects the acknowledgements of an epoch, publishes its checkpoint, cleans up.

Spark runs one epoch after the other and waits, while it takes note of the end of a task, for what is done
with the acknowledgement.  So the publication, which must precede Spark's own commit, is done at once, and
everything else in the background: see `CheckpointCoordinator`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.format.snapshot_report import FailureReason
from keyedstate.checkpoint.protocol import retention
from keyedstate.checkpoint.protocol.background import Background
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.owner import check_writer, exclusive
from keyedstate.config import ConfigOption
from keyedstate.errors import (
    CorruptManifestError,
    InvalidOptionError,
    MissingFileError,
    StateFolderOwnedError,
    StorageError,
    SupersededRunError,
)
from keyedstate.options import CHECKPOINT_RETAINED, CHECKPOINT_TIMEOUT

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Acknowledgement:
    """The word of one task that its attempt has finished; small, since it travels through an accumulator.

    Attributes
    ----------
    manifest : str
        What `OperatorFolder.write_manifest` returned.
    """

    identity: TaskIdentity
    manifest: str


class CheckpointListener:
    """Is told what becomes of the checkpoints of one operator; in the background, but for `published`.

    There it is told in their order.  The methods do nothing by default.  An error that one raises is logged
    and does no harm.
    """

    def published(self, metadata: CheckpointMetadata, publish_ms: float) -> None:
        """A checkpoint was published, which took so long; told at once, while Spark waits."""

    def completed(self, metadata: CheckpointMetadata) -> None:
        """A checkpoint was published; once more where a partition of its epoch ran again."""

    def aborted(self, epoch: int, reason: FailureReason) -> None:
        """The checkpoint of an epoch has not come about; tasks of the next epoch may still complete it."""

    def subsumed(self, epoch: int) -> None:
        """A checkpoint was deleted, since enough newer ones are there."""


@dataclass
class _Pending:
    """The epoch that is under way.

    Attributes
    ----------
    acknowledged : dict of int to Acknowledgement
        The last one of each partition.
    manifests : dict of str to AttemptManifest
        By path; a manifest never changes once it is written.
    timer : threading.Timer
        Runs until the epoch is published.
    published, aborted : bool
        Whether it was published, and whether it was told that this has not come about.
    """

    query_id: str
    run_id: str
    epoch: int
    parallelism: int
    timer: threading.Timer
    acknowledged: dict[int, Acknowledgement] = field(default_factory=dict)
    manifests: dict[str, AttemptManifest] = field(default_factory=dict)
    published: bool = False
    aborted: bool = False

    def is_of(self, identity: TaskIdentity) -> bool:
        return (self.run_id, self.epoch) == (identity.run_id, identity.epoch)


class CheckpointCoordinator:
    """Makes the checkpoints of one operator out of what its tasks acknowledge.

    Parameters
    ----------
    retained : int
        Completed checkpoints to keep, at least 2: Spark may run the newest epoch again, from the one before.
    timeout_ms : int
        From the first acknowledgement of an epoch to the last one; afterwards the epoch is reported as
        aborted, with the partitions that are missing.  Should they come after all, before the next epoch, the
        checkpoint is published nevertheless: Spark is about to commit the epoch.

    Raises
    ------
    InvalidOptionError
        Where `retained` or `timeout_ms` is too small.

    Notes
    -----
    Nothing here is needed for correctness after a crash: what was not published is published by the tasks of
    the next epoch, from the same manifests.

    Clean-up and the listener get a thread of their own.  It may fall behind by a few epochs; then the next
    publication waits for it, so that files do not pile up without end (CP-03).  Of several clean-ups that
    wait only the last one is done, since each does all there is to do.
    """

    def __init__(
        self,
        folder: OperatorFolder,
        listener: CheckpointListener | None = None,
        retained: int = 2,
        timeout_ms: int = 600_000,
    ) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._pending: _Pending | None = None
        self._background = Background(f"keyedstate-checkpoints-{folder.uid}")
        # The newest epoch whose clean-up was asked for: an older one that is still waiting is left out.
        self._to_clean: CheckpointMetadata | None = None
        self.configure(listener, retained, timeout_ms)

    def configure(
        self, listener: CheckpointListener | None = None, retained: int = 2, timeout_ms: int = 600_000
    ) -> None:
        """Go on with other settings, for an operator that is built anew over the same folder."""
        self._retained = _valid(CHECKPOINT_RETAINED, retained)
        self._timeout_ms = _valid(CHECKPOINT_TIMEOUT, timeout_ms)
        self._listener = listener or CheckpointListener()

    @property
    def folder(self) -> OperatorFolder:
        """The operator's folder."""
        return self._folder

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Take the word of a task; the last one that is missing publishes the epoch's checkpoint.

        A partition may acknowledge again, because Spark ran it again, and then its last attempt counts: an
        epoch that was published already is published anew.  What comes late from an epoch that the query has
        left is passed over.

        Raises
        ------
        StateFolderOwnedError, SupersededRunError
            Where another query, or a newer run of this one, may write by now; nothing was published.
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
            pending = self._enter(identity)
            if pending is None:
                return
            pending.acknowledged[identity.partition] = acknowledgement
            if len(pending.acknowledged) < pending.parallelism:
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
        """Return the epoch of an acknowledgement, a new one perhaps; None where it is one of the past."""
        pending = self._pending
        if pending is not None and pending.is_of(identity):
            return pending
        if pending is not None and pending.run_id == identity.run_id and identity.epoch < pending.epoch:
            _log.warning(
                "passing over a late acknowledgement of partition %d, epoch %d of %r: epoch %d is under way",
                identity.partition,
                identity.epoch,
                identity.uid,
                pending.epoch,
            )
            return None
        # Before anything is forgotten: a zombie run must not disturb the epoch of its successor.
        check_writer(self._folder, identity.query_id, identity.run_id)
        if pending is not None and not pending.published:
            pending.timer.cancel()
            self._background.submit(lambda: self._settle(pending, identity.run_id))
        if pending is None or pending.run_id != identity.run_id:
            self._background.submit(lambda: self._clean(lambda: retention.sweep(self._folder, identity)))
        timer = threading.Timer(self._timeout_ms / 1000.0, lambda: self._expire(entered))
        timer.daemon = True
        entered = _Pending(identity.query_id, identity.run_id, identity.epoch, identity.parallelism, timer)
        timer.start()
        self._pending = entered
        return entered

    def _publish(self, pending: _Pending) -> CheckpointMetadata:
        acknowledged = list(pending.acknowledged.values())
        unread = [word for word in acknowledged if word.manifest not in pending.manifests]
        try:
            read = self._folder.storage.for_each(
                lambda word: self._folder.read_manifest(word.manifest), unread
            )
        except MissingFileError:
            # The usual reason is that a newer run has begun and cleared the attempts of this one away.
            check_writer(self._folder, pending.query_id, pending.run_id)
            raise
        for word, manifest in zip(unread, read, strict=True):
            if manifest.identity != word.identity:
                location = self._folder.storage.location(word.manifest)
                raise CorruptManifestError(
                    location, "it is that of another attempt than the acknowledged one"
                )
            pending.manifests[word.manifest] = manifest
        metadata = CheckpointMetadata.of([pending.manifests[word.manifest] for word in acknowledged])
        # As late as possible: a driver that was asleep must not overwrite what its successor has published.
        with exclusive(self._folder):
            check_writer(self._folder, metadata.query_id, metadata.run_id)
            self._folder.write_metadata(metadata)
        return metadata

    def _abort(self, pending: _Pending, reason: FailureReason) -> None:
        """Have it told that an epoch has no checkpoint, once for each."""
        if not pending.aborted and not pending.published:
            pending.aborted = True
            self._background.submit(lambda: self._listener.aborted(pending.epoch, reason))

    # -- in other threads --------------------------------------------------------------------------

    def _expire(self, pending: _Pending) -> None:
        with self._lock:
            if pending is not self._pending or pending.published:
                return
            missing = sorted(set(range(pending.parallelism)) - set(pending.acknowledged))
            _log.warning(
                "the checkpoint of epoch %d of %r is given up: after %d ms the partitions %s of %d have not "
                "acknowledged. Should they still finish, it is published.",
                pending.epoch,
                self._folder.uid,
                self._timeout_ms,
                ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else ""),
                pending.parallelism,
            )
            self._abort(pending, FailureReason.EXPIRED)

    def _settle(self, pending: _Pending, next_run: str) -> None:
        """Say what became of an epoch that was left without publication: tasks may have made up for it."""
        metadata = self._folder.read_metadata(pending.epoch)
        if metadata is not None and metadata.run_id == pending.run_id:
            self._listener.completed(metadata)
        elif not pending.aborted:
            same_run = pending.run_id == next_run
            reason = FailureReason.SUBSUMED if same_run else FailureReason.SUPERSEDED_RUN
            self._listener.aborted(pending.epoch, reason)

    def _completed(self, metadata: CheckpointMetadata) -> None:
        try:
            self._listener.completed(metadata)
        finally:
            if self._to_clean is metadata:
                self._clean(lambda: self._prune(metadata))

    def _prune(self, metadata: CheckpointMetadata) -> None:
        for epoch in retention.prune(self._folder, metadata, self._retained):
            self._listener.subsumed(epoch)

    def _clean(self, action: Callable[[], None]) -> None:
        # A failed clean-up costs room and nothing else, and the next one finds what it left.
        try:
            action()
        except Exception:
            _log.warning("cannot clean up the state folder %s", self._folder.location, exc_info=True)


def _valid(option: ConfigOption[int], value: object) -> int:
    try:
        return option.parse(value)
    except ValueError:
        raise InvalidOptionError(option.name, value, option.expected, "call") from None
