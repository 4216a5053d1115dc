"""The processing time of an epoch, and what the clock of one machine can do to it.

Two clocks say what time it is when an attempt begins: that of its machine, and that of the storage, which
stamps the file by which the attempt begins.  All attempts of an operator see the same storage.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EpochClock:
    """The clocks at the beginning of an attempt.

    Attributes
    ----------
    machine_ms : int
        The time of the machine, in milliseconds since 1970 UTC.
    storage_ms : int or None
        The time of the storage; None where it tells none.
    max_skew_ms : int
        How far the machine may be from the storage, and stored times ahead of both.
    """

    machine_ms: int
    storage_ms: int | None
    max_skew_ms: int

    @classmethod
    def at_stamp(cls, before_ms: int, storage_ms: int | None, after_ms: int, max_skew_ms: int) -> EpochClock:
        """Return the clocks at the moment when the storage stamped a file.

        Parameters
        ----------
        before_ms, after_ms : int
            The time of the machine before the request for the stamp and after its answer.  A stamp between
            them shows no skew, however long the storage took.
        storage_ms : int or None
            The stamp.
        max_skew_ms : int
        """
        machine_ms = after_ms if storage_ms is None else min(max(storage_ms, before_ms), after_ms)
        return cls(machine_ms, storage_ms, max_skew_ms)

    @property
    def skew_ms(self) -> int:
        """How far the machine is ahead of the storage; negative where it is behind."""
        return 0 if self.storage_ms is None else self.machine_ms - self.storage_ms

    @property
    def correction_ms(self) -> int:
        """What to add to the time of the machine: nothing, unless it is too far from the storage."""
        return -self.skew_ms if abs(self.skew_ms) > self.max_skew_ms else 0

    def processing_time(self, stored_ms: int | None) -> int:
        """Return the processing time of the epoch: that of its beginning.

        A repetition has a later one.  That is sound, since its output and its state are taken together.

        Parameters
        ----------
        stored_ms : int or None
            That of the epoch before.  Time stands still until it is reached, but a time that is further ahead
            than `max_skew_ms` comes from a clock that was wrong, and does not count.
        """
        now = self.machine_ms + self.correction_ms
        if stored_ms is None:
            return now
        latest = (self.machine_ms if self.storage_ms is None else self.storage_ms) + self.max_skew_ms
        return max(now, min(stored_ms, latest))
