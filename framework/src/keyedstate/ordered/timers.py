"""The table of timers over an ordered byte store, whose rows are in the order of time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, islice
from operator import itemgetter
from typing import Any

from keyedstate.backend.changes import AddressBatch
from keyedstate.backend.meta import StateMeta
from keyedstate.backend.timers import TimerTable
from keyedstate.ordered.row_keys import TimeLayout
from keyedstate.ordered.store import end_of
from keyedstate.ordered.table import ValueTable
from keyedstate.types import VOID_NAMESPACE


class OrderedTimerTable(ValueTable[Any, Any, Any], TimerTable):
    """A row per timer: key group, time with its sign bit flipped, namespace, key; all values are the same."""

    def adopt(self, meta: StateMeta) -> None:
        super().adopt(meta)
        layout = self.codec.layout
        assert isinstance(layout, TimeLayout), "the layout of timers"
        self._layout = layout
        self._value = self.codec.encode(VOID_NAMESPACE)

    def earliest(
        self,
        key_group: int,
        size: int,
        *,
        since: int | None = None,
        until: int | None = None,
        after: tuple[Any, Any] | None = None,
    ) -> AddressBatch[Any, Any]:
        layout = self._layout
        start = layout.group_prefix(key_group) if since is None else layout.time_prefix(key_group, since)
        if after is not None:
            # The least key above that of the timer.
            start = max(start, layout.address(key_group, *after) + b"\0")
        prefix = layout.group_prefix(key_group) if until is None else layout.time_prefix(key_group, until)
        rows = list(map(itemgetter(0), islice(self.buffer.scan_all(start, end_of(prefix)), size)))
        keys, namespaces = layout.parse_many(rows)
        return AddressBatch(namespaces, keys)

    def add_timers(
        self, key_groups: Sequence[int], keys: Sequence[Any], namespaces: Sequence[Any]
    ) -> list[bool]:
        rows = self._layout.each_address(key_groups, keys, namespaces)
        new = [not found for found in self.exist(rows)]
        if not all(new):
            rows = list(compress(rows, new))
        self.tracked.note_changed(rows, True)
        self.buffer.put_columns(rows, [self._value] * len(rows))
        return new

    def remove_timers(
        self, key_groups: Sequence[int], keys: Sequence[Any], namespaces: Sequence[Any]
    ) -> None:
        rows = self._layout.each_address(key_groups, keys, namespaces)
        self.tracked.note_changed(rows, False)
        self.buffer.put_many(dict.fromkeys(rows))
