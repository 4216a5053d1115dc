"""The outcome of one full snapshot, as manifests carry it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FailureReason(enum.Enum):
    """Why a checkpoint, or a full snapshot in the background, failed.

    Logs and hooks get the value.
    """

    IO = "the storage failed"
    ASYNCHRONOUS = "writing it in the background failed"
    EXPIRED = "it was not finished within its time"
    FINALIZATION = "it could not be published"
    SUBSUMED = "a newer one took its place"
    SUPERSEDED_RUN = "a newer run of the query has begun"
    CANCELLED = "it was cancelled"

    @property
    def counts(self) -> bool:
        """Whether it counts for the tolerated number of failures; the others occur in normal operation."""
        return self not in (FailureReason.SUBSUMED, FailureReason.SUPERSEDED_RUN, FailureReason.CANCELLED)


@dataclass(frozen=True)
class FullSnapshotReport:
    """The outcome of one full snapshot."""

    #: It has the state after this epoch.
    epoch: int
    #: Whether it was written in the background.
    background: bool
    #: Why it failed; None where it was completed.
    failure: FailureReason | None
    #: The error in words; empty where it was completed.
    error: str
    #: How long it blocked the task; how long writing took afterwards.
    sync_ms: float
    async_ms: float
    #: Of what was written; 0 where it failed.
    bytes: int
    entries: int
    #: When, in milliseconds since 1970 UTC, by the clock of the task.
    ended_ms: int

    @property
    def failed(self) -> bool:
        """Whether it was not completed."""
        return self.failure is not None
