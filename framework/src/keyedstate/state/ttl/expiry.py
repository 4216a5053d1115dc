"""When the entries of one state expire, and the clean-up of unused ones."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any, TypeAlias

from keyedstate.backend import AnyStateTable, EntryBatch, Expiry, IncrementalVisitor, StateKind
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME, NEVER, StateTime
from keyedstate.state.ttl.config import IncrementalCleanup, Ttl, TtlClock, UpdateType, Visibility
from keyedstate.state.ttl.index import ExpiryIndex
from keyedstate.state.ttl.layout import TtlLayout, layout_of

#: Returns those of some entries that live.
SnapshotFilter: TypeAlias = "Callable[[EntryBatch[Any, Any, Any]], EntryBatch[Any, Any, Any]]"


class StateExpiry:
    """The expiry of one registered state, by a time line."""

    def __init__(self, ttl: Ttl, kind: StateKind, time: StateTime) -> None:
        self.ttl = ttl
        self.time = time
        self.layout = layout_of(kind)
        #: See `accessed`; the fastest accessors read it themselves.
        self.cleanup = Cleanup(self)
        self.index = ExpiryIndex(self.layout, ttl.ms, time) if ttl.expiry_index else None
        #: Whether a read renews the timestamp, and whether it shows an expired value before it removes it.
        self.refreshes = ttl.update is UpdateType.ON_READ_AND_WRITE
        self.shows_expired = ttl.visibility is Visibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP

    @property
    def limit(self) -> int:
        """The latest expired timestamp."""
        return self.time.now - self.ttl.ms

    def accessed(self) -> None:
        """Clean up a little where entries may be expired; called at every access."""
        if self.time.now >= self.cleanup.due:
            self.cleanup.run()

    def written(self, key_group: int, key: Any, namespace: Any) -> None:
        """Note that an address was written, which may be new."""
        if self.index is not None:
            self.index.written(key_group, key, namespace)

    def moved(self, key_group: int, key: Any, namespace: Any, stored: Any) -> None:
        """Note that an entry was written whose timestamps are older than the present."""
        oldest = self.layout.oldest(stored)
        self.cleanup.moved(oldest)
        if self.index is not None:
            self.index.written(key_group, key, namespace, oldest)

    def attach(self, table: AnyStateTable, *, cleans_itself: bool) -> None:
        """Begin to clean the table through which accessors change the state."""
        incremental = self.ttl.incremental
        if incremental is None and self.ttl.background_cleanup and not cleans_itself:
            incremental = IncrementalCleanup()
        if incremental is not None:
            self.cleanup.start(table, incremental)
        if self.index is not None:
            self.index.start(table)

    def for_backend(self) -> Expiry:
        """Return what a backend needs to remove expired entries itself."""
        layout = self.layout
        return Expiry(
            ttl_ms=self.ttl.ms,
            now=lambda: self.time.now,
            live=lambda stored: layout.live(stored, self.limit),
        )

    def snapshot_filter(self) -> SnapshotFilter:
        """Return the filter of a snapshot's batches, which leaves out what is expired now."""
        layout, limit = self.layout, self.limit

        def living(batch: EntryBatch[Any, Any, Any]) -> EntryBatch[Any, Any, Any]:
            values = [layout.live(stored, limit) for stored in batch.values]
            if None not in values and all(map(is_, values, batch.values)):
                return batch
            kept = [row for row, value in enumerate(values) if value is not None]
            return EntryBatch(
                [batch.namespaces[row] for row in kept],
                [batch.keys[row] for row in kept],
                [values[row] for row in kept],
            )

        return living


class Cleanup:
    """The incremental clean-up of one state (Flink's ``TtlIncrementalCleanup``).

    It visits all entries in rounds, a few per access.  After a round it rests until the first entry can
    expire; until then it costs one comparison per access.
    """

    __slots__ = (
        "_all_dated",
        "_began",
        "_entries",
        "_layout",
        "_oldest",
        "_table",
        "_time",
        "_ttl_ms",
        "_visitor",
        "all_live_until",
        "due",
        "every_record",
    )

    def __init__(self, expiry: StateExpiry) -> None:
        self._time: StateTime = expiry.time
        self._layout: TtlLayout = expiry.layout
        self._ttl_ms = expiry.ttl.ms
        #: Processing time is always known, so no entry has an unknown one.
        self._all_dated = expiry.ttl.clock is TtlClock.PROCESSING_TIME
        self._entries = 0
        self._table: AnyStateTable | None = None
        self._visitor: IncrementalVisitor[Any, Any, Any] | None = None
        #: Of the running round: when it began, and the oldest timestamp among the entries that it has passed.
        #: Entries that are written during the round are no older than its beginning, except those `moved`.
        self._began = BEFORE_TIME
        self._oldest = END_OF_TIME
        #: The time from which `run` must be called.
        self.due = NEVER
        #: Before this time no entry of the state is expired, so that reads need no check.
        self.all_live_until = BEFORE_TIME
        self.every_record = False

    def start(self, table: AnyStateTable, settings: IncrementalCleanup) -> None:
        """Begin the first round over a table."""
        self._table = table
        self._entries = settings.entries
        self.every_record = settings.every_record
        # Restored entries may be expired already; those written from now on live for a while.
        self._rest_until(BEFORE_TIME if len(table) else self._time.now + self._ttl_ms)

    def run(self) -> None:
        """Visit the next entries, and remove the expired ones."""
        time, layout = self._time, self._layout
        assert self._table is not None
        if self._visitor is None:
            self._visitor = self._table.visitor(self._entries)
            self._began, self._oldest = time.now, END_OF_TIME
        visitor, limit = self._visitor, time.now - self._ttl_ms
        oldest_of = layout.oldest
        seen = 0
        while seen < self._entries:
            entries = visitor.next_entries()
            if not entries:
                self._visitor = None
                self._rest_until(min(self._began, self._oldest) + self._ttl_ms)
                return
            seen += len(entries)
            for entry in entries:
                stored = entry.value
                oldest = oldest_of(stored)
                if oldest > limit and self._all_dated:
                    if oldest < self._oldest:
                        self._oldest = oldest
                    continue
                living = layout.live(stored, limit)
                if living is None:
                    visitor.remove(entry)
                    continue
                # Not the stamp: that may be the time of an unrelated record.
                if time.now != BEFORE_TIME:
                    living = layout.dated(living, time.now)
                if living is not stored:
                    visitor.update(entry, living)
                oldest = oldest_of(living)
                if oldest < self._oldest:
                    self._oldest = oldest

    def moved(self, oldest: int) -> None:
        """Note the oldest timestamp of a written entry, which the running round may have passed already."""
        if oldest < self._oldest:
            self._oldest = oldest

    def time_went_back(self) -> None:
        """Expect writes that are older than the entries that were visited."""
        if self._table is not None:
            self._began = min(self._began, self._time.now)
            self._rest_until(min(self.due, self._time.now + self._ttl_ms))

    def _rest_until(self, time: int) -> None:
        self.due = self.all_live_until = time
