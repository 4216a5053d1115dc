"""The expiry index of a state: when each entry expires, so that idle keys are removed without any access.

Each entry is in the index once, at the time when it would expire if it was not written again.  At that time
the index visits the entry: it removes an expired one, and moves one that was written since to its new time.
So a write costs a look-up, and an entry is visited once per time to live.  Only an entry with an older
timestamp than before moves to an earlier time: one that was merged, or written after the clock went back.
"""

from __future__ import annotations

import heapq
from typing import Any

from keyedstate.backend import AnyStateTable
from keyedstate.state.clock import BEFORE_TIME, NEVER, UNKNOWN_TIME, StateTime
from keyedstate.state.ttl.layout import TtlLayout

#: Entries per read of a restored state.
_BATCH_ENTRIES = 4096
#: Spans per time to live; the entries of one span are visited together.
_SPANS = 64

Address = tuple[int, Any, Any]


class ExpiryIndex:
    """The expiry index of one state, which expires by a time line."""

    def __init__(self, layout: TtlLayout, ttl_ms: int, time: StateTime) -> None:
        self._layout = layout
        self._ttl_ms = ttl_ms
        self._time = time
        self._span_ms = max(1, self._ttl_ms // _SPANS)
        self._table: AnyStateTable
        #: The spans by number, and their numbers as a heap.
        self._spans: dict[int, _Span] = {}
        self._order: list[int] = []
        self._undated = _Span(NEVER)
        #: The span of each address.  Spans from which it has moved may still list it.
        self._known: dict[Address, _Span] = {}

    def start(self, table: AnyStateTable) -> None:
        """Index the entries of a table; one pass over a restored state."""
        self._table = table
        if not len(table):
            return
        snapshot = table.snapshot()
        try:
            for key_group in snapshot.occupied(table.key_groups):
                for batch in snapshot.batches(key_group, _BATCH_ENTRIES):
                    columns = zip(batch.namespaces, batch.keys, batch.values, strict=True)
                    for namespace, key, stored in columns:
                        self._add((key_group, key, namespace), self._layout.oldest(stored))
        finally:
            snapshot.release()

    def written(self, key_group: int, key: Any, namespace: Any, oldest: int | None = None) -> None:
        """Index a written entry, with its oldest timestamp where that is not the present one."""
        address = key_group, key, namespace
        if oldest is None:
            oldest = self._time.stamp
        known = self._known.get(address)
        if known is None or self._number(oldest) < known.number:
            self._add(address, oldest)

    def expire(self) -> None:
        """Remove what is expired, except what expired within the last 64th of the time to live."""
        time = self._time
        if self._undated.addresses and time.now != BEFORE_TIME:
            undated, self._undated = self._undated, _Span(NEVER)
            self._visit(undated)
        while self._order and self._order[0] * self._span_ms <= time.now:
            self._visit(self._spans.pop(heapq.heappop(self._order)))

    def _visit(self, span: _Span) -> None:
        layout, table = self._layout, self._table
        now = self._time.now
        limit = now - self._ttl_ms
        for address in span.addresses:
            if self._known.get(address) is not span:
                continue
            del self._known[address]
            # A map without entries may be stored as an empty one.
            stored = table.get(*address) or None
            living = None if stored is None else layout.live(stored, limit)
            if living is not None:
                if now != BEFORE_TIME:
                    living = layout.dated(living, now)
                if living is not stored:
                    table.put(*address, living)
                self._add(address, layout.oldest(living))
            elif stored is not None:
                table.remove(*address)

    def _number(self, oldest: int) -> int:
        """Return the number of the span at whose end an entry is expired unless it is written again."""
        if oldest == UNKNOWN_TIME:
            return NEVER
        return -(-(oldest + self._ttl_ms) // self._span_ms)

    def _add(self, address: Address, oldest: int) -> None:
        number = self._number(oldest)
        span = self._undated if number == NEVER else self._spans.get(number)
        if span is None:
            span = self._spans[number] = _Span(number)
            heapq.heappush(self._order, number)
        span.addresses.append(address)
        self._known[address] = span


class _Span:
    """A span of time, and the addresses to visit after it; its number is `NEVER` for unknown times."""

    __slots__ = ("addresses", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.addresses: list[Address] = []
