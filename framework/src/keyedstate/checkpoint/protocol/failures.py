"""Which failures count and how many are tolerated, by the rules of Flink's ``CheckpointFailureManager``."""

from __future__ import annotations

from keyedstate.checkpoint.format.snapshot_report import FailureReason


class FailureManager:
    """Counts failures in a row, and reports when there are more than `threshold`.

    Each id counts once.  A success resets the count, and failures of ids before the newest success do not
    count.
    """

    def __init__(self, threshold: int) -> None:
        if threshold < 0:
            raise ValueError(f"a number of tolerated failures cannot be {threshold}")
        self._threshold = threshold
        # The ids that count, all above the newest success; how many there are is the number of failures.
        self._failed: set[int] = set()
        self._last_success = -1

    def on_failure(self, id: int, reason: FailureReason) -> bool:
        """Return whether this failure is one too many, which resets the count; ids ascend from 0."""
        if not reason.counts or id <= self._last_success:
            return False
        self._failed.add(id)
        if len(self._failed) <= self._threshold:
            return False
        self._failed.clear()
        return True

    def on_success(self, id: int) -> None:
        """Reset the count; a success before the newest known one changes nothing."""
        if id > self._last_success:
            self._last_success = id
            self._failed.clear()

    @property
    def failures(self) -> int:
        """The number of failures in a row."""
        return len(self._failed)
