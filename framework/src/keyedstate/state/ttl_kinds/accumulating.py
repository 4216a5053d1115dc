"""Reducing and aggregating state with a time to live (Flink's ``TtlReducingState`` and its like)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from keyedstate.state.kinds.aggregating import AggregatingStateAccessor
from keyedstate.state.kinds.checks import check_value
from keyedstate.state.kinds.merging import AccumulatingStateAccessor
from keyedstate.state.kinds.reducing import ReducingStateAccessor
from keyedstate.state.ttl.expiry import StateExpiry
from keyedstate.state.ttl_kinds.expiring import ExpiringMergingStateAccessor

T = TypeVar("T")
IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")


class _TimedAccumulation(ExpiringMergingStateAccessor, AccumulatingStateAccessor):
    """What is stored expires as a whole; every addition and every merge gives it a new time.

    An expired value counts as none, also where expired values are shown.  When namespaces merge, a source
    that meets no other stored value keeps its time.
    """

    __slots__ = ()

    def _expire_by(self, expiry: StateExpiry) -> None:
        super()._expire_by(expiry)
        self._accumulate = _timed(self._accumulate, expiry)

    def get_internal(self) -> Any:
        self._expiry.accessed()
        context = self._context
        return self._shown(context.key_group, context.key)

    _stored = get_internal

    def _shown(self, group: int, key: Any) -> Any:
        stored = self._table.get(group, key, self._namespace)
        if stored is None:
            return None
        if stored[0] <= self._expiry.limit:
            self._table.remove(group, key, self._namespace)
            return stored[1] if self._expiry.shows_expired else None
        if self._expiry.refreshes:
            renewed = self._expiry.time.renewed(stored[0])
            self._table.put(group, key, self._namespace, (renewed, stored[1]))
        return stored[1]

    def _read_many(self, keys: Iterable[Any], key_groups: Sequence[int] | None) -> list[Any]:
        self._expiry.accessed()
        keys, groups = self._context.locate(keys, key_groups)
        found = self._table.get_many(groups, keys, self._namespace)
        limit = self._expiry.limit
        if self._expiry.refreshes or any(stored is not None and stored[0] <= limit for stored in found):
            return list(map(self._shown, groups, keys))
        return [None if stored is None else stored[1] for stored in found]

    def update_internal(self, stored: Any) -> None:
        if stored is None:
            self.clear()
            return
        check_value(self.name, self._serializer, stored)
        context = self._context
        self._write_many([context.key_group], [context.key], [(self._expiry.time.stamp, stored)])

    def add(self, value: Any) -> None:
        super().add(value)
        if value is not None:
            expiry, context = self._expiry, self._context
            expiry.accessed()
            if expiry.index is not None:
                expiry.index.written(context.key_group, context.key, self._namespace)

    def _merge(self, merged: Any, stored: Any) -> Any:
        limit = self._expiry.limit
        living = [one for one in (merged, stored) if one[0] > limit]
        if not living:
            return None
        renewed = self._expiry.time.renewed(max(one[0] for one in living))
        values = [one[1] for one in living]
        return renewed, self._merged(*values) if len(values) == 2 else values[0]

    @abstractmethod
    def _merged(self, merged: Any, stored: Any) -> Any:
        """Return two stored values without timestamps in one."""


class TtlReducingStateAccessor(_TimedAccumulation, ReducingStateAccessor[T]):
    """The reduction of all values added while it lived."""

    __slots__ = ("_expiry", "_fold")

    def _expire_by(self, expiry: StateExpiry) -> None:
        self._fold = self._accumulate
        super()._expire_by(expiry)

    def _merged(self, merged: T, stored: T) -> T:
        return cast(T, self._fold(merged, stored))


class TtlAggregatingStateAccessor(_TimedAccumulation, AggregatingStateAccessor[IN, ACC, OUT]):
    """The aggregate of all values added while it lived."""

    __slots__ = ("_expiry",)

    def _merged(self, merged: ACC, stored: ACC) -> ACC:
        return AggregatingStateAccessor._merge(self, merged, stored)


def _timed(fold: Callable[[Any, Any], Any], expiry: StateExpiry) -> Callable[[Any, Any], tuple[int, Any]]:
    time, ttl_ms = expiry.time, expiry.ttl.ms

    def accumulate(stored: tuple[int, Any] | None, value: Any) -> tuple[int, Any]:
        if stored is None or stored[0] + ttl_ms <= time.now:
            return time.stamp, fold(None, value)
        return time.renewed(stored[0]), fold(stored[1], value)

    return accumulate
