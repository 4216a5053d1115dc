"""The processing time of an epoch, corrected where the clock of a machine is wrong.

An attempt compares two clocks when it begins: that of its machine, and that of the storage, which stamps the
attempt's first file.  All attempts of an operator use the same storage.  A process that has compared them
lately knows how they differ, so its next epochs do not wait for the stamp (`ClockComparison`).
"""

from __future__ import annotations

from dataclasses import dataclass

#: A comparison is valid for so long, unless the machine's clock was set by more than this since.
_VALID_MS = 600_000
_SET_MS = 1_000


@dataclass(frozen=True)
class EpochClock:
    """The clocks at the beginning of an attempt."""

    #: The time of the machine, in milliseconds since 1970 UTC.
    machine_ms: int
    #: The time of the storage; None where it has none.
    storage_ms: int | None
    #: How far the machine may be from the storage, and stored times ahead of both.
    max_skew_ms: int

    @classmethod
    def at_stamp(cls, before_ms: int, storage_ms: int | None, after_ms: int, max_skew_ms: int) -> EpochClock:
        """Return the clocks at the moment when the storage stamped a file with `storage_ms`.

        `before_ms` and `after_ms` are the times of the machine before and after the request.  A stamp between
        them shows no skew, however long the storage took.
        """
        machine_ms = after_ms if storage_ms is None else min(max(storage_ms, before_ms), after_ms)
        return cls(machine_ms, storage_ms, max_skew_ms)

    @property
    def skew_ms(self) -> int:
        """How far the machine is ahead of the storage; negative where it is behind."""
        return 0 if self.storage_ms is None else self.machine_ms - self.storage_ms

    @property
    def correction_ms(self) -> int:
        """What to add to the time of the machine: 0, unless it is too far from the storage."""
        return -self.skew_ms if abs(self.skew_ms) > self.max_skew_ms else 0

    def processing_time(self, stored_ms: int | None) -> int:
        """Return the processing time of the epoch: the time at which the attempt began.

        A repeated attempt has a later one, which is correct, since output and state are committed together.
        The time of the epoch before is the least one of this epoch, but one that is further ahead than
        `max_skew_ms` comes from a wrong clock and is limited to that.
        """
        now = self.machine_ms + self.correction_ms
        if stored_ms is None:
            return now
        latest = (self.machine_ms if self.storage_ms is None else self.storage_ms) + self.max_skew_ms
        return max(now, min(stored_ms, latest))


@dataclass(frozen=True)
class ClockComparison:
    """The clocks as this process has compared them at the beginning of an attempt."""

    clock: EpochClock
    #: At the same moment, by a clock of this process that nobody sets.
    monotonic_ms: int

    @classmethod
    def at_stamp(
        cls, before_ms: int, storage_ms: int | None, after_ms: int, monotonic_ms: int, max_skew_ms: int
    ) -> ClockComparison:
        """Return the comparison of `EpochClock.at_stamp`; `monotonic_ms` was read with `after_ms`."""
        clock = EpochClock.at_stamp(before_ms, storage_ms, after_ms, max_skew_ms)
        return cls(clock, monotonic_ms - (after_ms - clock.machine_ms))

    def clock_at(self, machine_ms: int, monotonic_ms: int) -> EpochClock | None:
        """Return the clocks at a later moment; None where they have to be compared again.

        A machine that was suspended has a gap between its two clocks, as one whose clock was set.
        """
        passed_ms = monotonic_ms - self.monotonic_ms
        set_by_ms = machine_ms - self.clock.machine_ms - passed_ms
        if passed_ms > _VALID_MS or abs(set_by_ms) > _SET_MS:
            return None
        storage_ms = None if self.clock.storage_ms is None else self.clock.storage_ms + passed_ms
        return EpochClock(machine_ms, storage_ms, self.clock.max_skew_ms)
