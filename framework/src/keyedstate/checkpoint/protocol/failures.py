"""Which failures count and how many are tolerated, by the rules of Flink's ``CheckpointFailureManager``."""

from __future__ import annotations

from enum import Enum


class FailureReason(Enum):
    """Why a checkpoint, or a base that is written in the background, did not come about.

    The value is what logs and hooks are given.  Exactly five reasons count as failures, Flink's; the others
    are ways in which something ends in normal operation, or that are reported as failures of their own.
    """

    IO = "the storage failed"
    ASYNCHRONOUS = "writing it in the background failed"
    DECLINED = "a task declined it"
    EXPIRED = "it was not finished within its time"
    FINALIZATION = "it could not be published"
    SUBSUMED = "a newer one took its place"
    SUPERSEDED_RUN = "a newer run of the query has begun"
    TASK_FAILURE = "a task failed, which Spark repeats"
    CANCELLED = "it was cancelled"
    NOT_TRIGGERED = "it could not begin"
    MINIMUM_PAUSE = "the one before ended too short a time ago"
    SHUTDOWN = "the query ended"

    @property
    def counts(self) -> bool:
        """Whether it is a failure in the sense of the tolerated number."""
        return self in _COUNTED


_COUNTED = frozenset(
    {
        FailureReason.IO,
        FailureReason.ASYNCHRONOUS,
        FailureReason.DECLINED,
        FailureReason.EXPIRED,
        FailureReason.FINALIZATION,
    }
)


class FailureManager:
    """Counts failures in a row, and says when there are too many.

    Each id counts once, a success begins the count anew, and what failed before the newest success is past.

    Parameters
    ----------
    threshold : int
        How many failures in a row are tolerated; 0 for none.
    """

    def __init__(self, threshold: int) -> None:
        if threshold < 0:
            raise ValueError(f"a number of tolerated failures cannot be {threshold}")
        self._threshold = threshold
        # The ids that count, all above the newest success; how many there are is the number of failures.
        self._failed: set[int] = set()
        self._last_success = -1

    def on_failure(self, id: int, reason: FailureReason) -> bool:
        """Return whether this failure is one too many; the count begins anew then.

        Parameters
        ----------
        id : int
            Ids ascend, from 0; epochs for instance.
        reason : FailureReason
        """
        if not reason.counts or id <= self._last_success:
            return False
        self._failed.add(id)
        if len(self._failed) <= self._threshold:
            return False
        self._failed.clear()
        return True

    def on_success(self, id: int) -> None:
        """Begin the count anew; a success older than another that is known already changes nothing."""
        if id > self._last_success:
            self._last_success = id
            self._failed.clear()

    @property
    def failures(self) -> int:
        """How many in a row have failed."""
        return len(self._failed)
