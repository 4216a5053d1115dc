"""Which failures count and how many are tolerated, by the rules of Flink's ``CheckpointFailureManager``."""

from __future__ import annotations

from keyedstate.checkpoint.format.snapshot_report import FailureReason


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
