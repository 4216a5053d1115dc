"""List state whose elements expire one by one (Flink's ``TtlListState``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

from keyedstate.state.kinds.list import ListStateAccessor
from keyedstate.state.ttl_kinds.expiring import ExpiringMergingStateAccessor
from keyedstate.types import TimedList

T = TypeVar("T")


class TtlListStateAccessor(ExpiringMergingStateAccessor, ListStateAccessor[T]):
    """A list per key and namespace; each element lives from when it was added.

    Stored is a `TimedList`.  A read leaves expired elements in it while others live; when the last one
    expires it removes the list.  When namespaces merge, every element keeps its time.
    """

    __slots__ = ("_expiry",)

    def get(self) -> list[T]:
        self._expiry.accessed()
        context = self._context
        stored = self._table.get(context.key_group, context.key, self._namespace)
        if stored is None:
            return []
        if self._all_live:
            return cast("list[T]", stored.copy())
        return self._shown(context.key_group, context.key, stored)

    def get_internal(self) -> list[T] | None:
        return self.get() or None

    @property
    def _all_live(self) -> bool:
        """Whether no element can be expired, and reads change nothing."""
        expiry = self._expiry
        return not expiry.refreshes and expiry.time.now < expiry.cleanup.all_live_until

    def _shown(self, group: int, key: Any, stored: TimedList[T]) -> list[T]:
        """Return what a read of a stored list shows, and change the list as a read does."""
        limit = self._expiry.limit
        living = [element for element, stamp in zip(stored, stored.stamps, strict=True) if stamp > limit]
        if not living:
            self._table.remove(group, key, self._namespace)
        elif self._expiry.refreshes:
            stamps = map(self._expiry.time.renewed, (stamp for stamp in stored.stamps if stamp > limit))
            self._table.put(group, key, self._namespace, TimedList.of(living, stamps))
        if self._expiry.shows_expired and len(living) < len(stored):
            return stored.copy()
        return living

    def add(self, value: T) -> None:
        if not self._is_element(value):
            raise self._refusal([value])
        expiry, context = self._expiry, self._context
        expiry.accessed()
        stored = self._table.get_for_update(context.key_group, context.key, self._namespace)
        if stored is None:
            self._table.put(context.key_group, context.key, self._namespace, self._timed([value]))
        else:
            stored.append(value)
            stored.stamps.append(expiry.time.stamp)
        expiry.written(context.key_group, context.key, self._namespace)

    def _append(self, group: int, key: Any, new: list[T]) -> None:
        self._expiry.accessed()
        self._append_timed(group, key, self._timed(new))

    def _append_timed(self, group: int, key: Any, timed: TimedList[T]) -> None:
        stored = self._table.get_for_update(group, key, self._namespace)
        if stored is None:
            self._table.put(group, key, self._namespace, timed)
        else:
            stored.extend(timed)
            stored.stamps.extend(timed.stamps)
        self._expiry.written(group, key, self._namespace)

    def update(self, values: Iterable[T]) -> None:
        new = self._checked(values)
        if not new:
            self.clear()
            return
        self._expiry.accessed()
        context = self._context
        self._table.put(context.key_group, context.key, self._namespace, self._timed(new))
        self._expiry.written(context.key_group, context.key, self._namespace)

    def update_internal(self, stored: list[T] | None) -> None:
        self.update(stored or [])

    def get_many(self, keys: Iterable[Any], key_groups: Sequence[int] | None = None) -> list[list[T]]:
        self._expiry.accessed()
        keys, groups = self._context.locate(keys, key_groups)
        found = self._table.get_many(groups, keys, self._namespace)
        if self._all_live:
            return [[] if stored is None else stored.copy() for stored in found]
        shown: list[list[T]] = []
        for group, key in zip(groups, keys, strict=True):
            # Looked up again: the first of a repeated key has removed or rewritten the list.
            stored = self._table.get(group, key, self._namespace)
            shown.append([] if stored is None else self._shown(group, key, stored))
        return shown

    def add_many(
        self, keys: Iterable[Any], values: Iterable[T], key_groups: Sequence[int] | None = None
    ) -> None:
        keys, groups = self._context.locate(keys, key_groups)
        column = self._checked(self._column(values, keys))
        self._expiry.accessed()
        for group, key, element in zip(groups, keys, column, strict=True):
            self._append_timed(group, key, self._timed([element]))

    def update_many(
        self, keys: Iterable[Any], lists: Iterable[Iterable[T]], key_groups: Sequence[int] | None = None
    ) -> None:
        keys, groups = self._context.locate(keys, key_groups)
        column = [self._checked(values) for values in self._column(lists, keys, "lists")]
        self._write_many(groups, keys, [self._timed(values) if values else None for values in column])

    def _timed(self, values: list[T]) -> TimedList[T]:
        return TimedList.of(values, (self._expiry.time.stamp,) * len(values))

    def _merge(self, merged: list[T], stored: list[T]) -> list[T]:
        assert isinstance(merged, TimedList) and isinstance(stored, TimedList)
        merged.extend(stored)
        merged.stamps.extend(stored.stamps)
        return merged
