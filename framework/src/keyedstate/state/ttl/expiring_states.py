"""The states with a time to live of one keyed backend, and the times by which they expire."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from keyedstate.backend import AnyStateTable, ExpiryCleanup, StateKind
from keyedstate.errors import InvalidDescriptorError, MissingEventTimeError
from keyedstate.state.clock import BEFORE_TIME, Clock, StateTime
from keyedstate.state.context import KeyContext
from keyedstate.state.ttl.config import Ttl, TtlClock
from keyedstate.state.ttl.expiry import SnapshotFilter, StateExpiry


class ExpiringStates:
    """The states with a time to live, by name.

    With `has_event_time` the caller calls `advance_watermark`, so that states may expire in event time.
    """

    def __init__(self, clock: Clock, has_event_time: bool, current: KeyContext) -> None:
        self._clock = clock
        self._has_event_time = has_event_time
        #: In milliseconds since 1970 UTC; `BEFORE_TIME` at first.
        self.watermark = BEFORE_TIME
        #: To be called for each record, between setting its key and using its states; None where no state has
        #: a time to live, so that records cost nothing.
        self.on_record: Callable[[], None] | None = None
        self._current = current
        self._processing_time, self._event_time = StateTime(), StateTime()
        self._states: dict[str, StateExpiry] = {}

    def __len__(self) -> int:
        return len(self._states)

    def advance_watermark(self, watermark: int) -> None:
        """Move event time forward; an earlier watermark changes nothing."""
        self.watermark = max(self.watermark, watermark)
        self.move_time()

    def move_time(self) -> None:
        """Set the times that states see to the present."""
        self._move_processing_time()
        self._event_time.set(self.watermark, self._current.timestamp)

    def _move_processing_time(self) -> None:
        line, now = self._processing_time, self._clock()
        back = now < line.now
        line.now = line.stamp = now
        if back:
            for expiry in self._states.values():
                expiry.cleanup.time_went_back()

    def _begin_record(self) -> None:
        self.move_time()
        for expiry in self._states.values():
            if expiry.cleanup.every_record:
                expiry.accessed()

    def expiry_of(self, state: str, ttl: Ttl, kind: StateKind) -> StateExpiry:
        """Return the expiry of a state before its registration."""
        self.move_time()
        in_event_time = ttl.clock is TtlClock.EVENT_TIME
        if in_event_time and not self._has_event_time:
            raise MissingEventTimeError(state)
        return StateExpiry(ttl, kind, self._event_time if in_event_time else self._processing_time)

    def add(self, state: str, expiry: StateExpiry) -> None:
        """Register what `expiry_of` returned."""
        self._states[state] = expiry
        if expiry.time is self._event_time or expiry.cleanup.every_record:
            self.on_record = self._begin_record
        elif self.on_record is None:
            self.on_record = self._move_processing_time

    def check_same(self, state: str, ttl: Ttl | None) -> None:
        """Refuse a second look-up with other settings."""
        expiry = self._states.get(state)
        if expiry is not None and expiry.ttl != ttl:
            raise InvalidDescriptorError(
                state,
                f"its time to live is {ttl} here and {expiry.ttl} where it was declared before; "
                "declare it once, or twice alike",
            )

    def snapshot_filters(self) -> dict[str, SnapshotFilter]:
        """Return the filters of a full snapshot by state: they leave out what is expired now."""
        if self._states:
            self.move_time()
        return {
            name: expiry.snapshot_filter()
            for name, expiry in self._states.items()
            if expiry.ttl.full_snapshot
        }

    def drop_expired(self, tables: Mapping[str, AnyStateTable]) -> None:
        """Remove what expiry indexes know to be expired, and call tables that clean themselves."""
        if self._states:
            self.move_time()
        for name, expiry in self._states.items():
            table = tables[name]
            if expiry.index is not None:
                expiry.index.expire()
            if expiry.ttl.background_cleanup and isinstance(table, ExpiryCleanup):
                table.drop_expired()
