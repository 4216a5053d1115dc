"""Value state with a time to live (Flink's ``TtlValueState``)."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from keyedstate.state.kinds.checks import check_value
from keyedstate.state.kinds.value import ValueStateAccessor
from keyedstate.state.ttl.expiry import StateExpiry
from keyedstate.state.ttl_kinds.expiring import ExpiringStateAccessor

T = TypeVar("T")


class TtlValueStateAccessor(ExpiringStateAccessor, ValueStateAccessor[T]):
    """One value per key and namespace, which expires as a whole; an expired one gives way to the default."""

    __slots__ = ("_cleanup", "_expiry", "_index", "_refreshes", "_shows_expired", "_time", "_ttl_ms")

    def _expire_by(self, expiry: StateExpiry) -> None:
        super()._expire_by(expiry)
        self._time = expiry.time
        self._ttl_ms = expiry.ttl.ms
        self._cleanup = expiry.cleanup
        self._index = expiry.index
        self._refreshes = expiry.refreshes
        self._shows_expired = expiry.shows_expired

    def value(self) -> T:
        """Return the value, or a copy of the default where the key has none; an expired one is removed."""
        now = self._time.now
        if now >= self._cleanup.due:
            self._cleanup.run()
        context = self._context
        stored = self._table.get(context.key_group, context.key, self._namespace)
        if stored is not None:
            if stored[0] + self._ttl_ms > now:
                if self._refreshes:
                    self._renew(context.key_group, context.key, stored)
                return cast(T, stored[1])
            self._table.remove(context.key_group, context.key, self._namespace)
            if self._shows_expired:
                return cast(T, stored[1])
        default = self._default
        return cast(T, None if default is None else self._serializer.copy(default))

    def update(self, value: T | None) -> None:
        if value is None:
            self.clear()
            return
        if not self._is_value(value):
            check_value(self.name, self._serializer, value)
        time = self._time
        if time.now >= self._cleanup.due:
            self._cleanup.run()
        context = self._context
        self._table.put(context.key_group, context.key, self._namespace, (time.stamp, value))
        if self._index is not None:
            self._index.written(context.key_group, context.key, self._namespace)

    def _found(self, groups: list[int], keys: list[Any]) -> list[T]:
        now, ttl_ms = self._time.now, self._ttl_ms
        found = self._table.get_many(groups, keys, self._namespace)
        living = [stored is not None and stored[0] + ttl_ms > now for stored in found]
        shown = [None if stored is None else stored[1] for stored in found]
        if not all(living):
            expired = {
                key: group
                for key, group, stored, lives in zip(keys, groups, found, living, strict=True)
                if stored is not None and not lives
            }
            if expired:
                self._table.remove_many(list(expired.values()), list(expired), self._namespace)
            # Of a repeated key an expired value is shown once.
            unseen = set(expired) if self._shows_expired else set[Any]()
            for row, lives in enumerate(living):
                if not lives:
                    if keys[row] in unseen:
                        unseen.discard(keys[row])
                    else:
                        shown[row] = None if self._default is None else self._serializer.copy(self._default)
        if self._refreshes:
            for key, group, lives, stored in zip(keys, groups, living, found, strict=True):
                if lives:
                    self._renew(group, key, stored)
        if now >= self._cleanup.due:
            self._cleanup.run()
        return cast("list[T]", shown)

    def _write_many(self, groups: list[int], keys: list[Any], values: list[Any]) -> None:
        stamp = self._time.stamp
        super()._write_many(groups, keys, [None if value is None else (stamp, value) for value in values])

    def _renew(self, group: int, key: Any, stored: Any) -> None:
        self._table.put(group, key, self._namespace, (self._time.renewed(stored[0]), stored[1]))
