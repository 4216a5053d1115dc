"""Evictors: which rows of a window are left out when it fires (Flink's ``Evictor`` and its built-in ones).

A window with an evictor keeps all of its rows, also where a function would reduce them.  Evicted rows are
removed from the window.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from keyedstate.durations import Duration
from keyedstate.state.clock import BEFORE_TIME
from keyedstate.windows.declaration.checks import check_delta, positive, whole
from keyedstate.windows.declaration.contexts import EvictorContext

W = TypeVar("W")


class TimestampedValue(NamedTuple):
    """A row of a window, a tuple, and its event time in milliseconds since 1970 UTC, or None."""

    value: Any
    timestamp: int | None


class Evictor(ABC, Generic[W]):
    """Leaves rows of a window out before or after its function; derive from it for one of your own.

    Methods `of` raise `InvalidWindowError` for arguments that cannot be used.
    """

    def evict_before(
        self, elements: Sequence[TimestampedValue], window: W, ctx: EvictorContext
    ) -> Sequence[TimestampedValue]:
        """Return the rows for the window's function, in the order in which they came."""
        return elements

    def evict_after(
        self, elements: Sequence[TimestampedValue], window: W, ctx: EvictorContext
    ) -> Sequence[TimestampedValue]:
        """Return those of the function's rows that the window keeps."""
        return elements


class _OnceEvictor(Evictor[Any]):
    """Leaves rows out before the function or, instead, after it."""

    do_evict_after: bool

    def _kept(self, elements: Sequence[TimestampedValue]) -> Sequence[TimestampedValue]:
        raise NotImplementedError

    def evict_before(
        self, elements: Sequence[TimestampedValue], window: Any, ctx: EvictorContext
    ) -> Sequence[TimestampedValue]:
        return elements if self.do_evict_after else self._kept(elements)

    def evict_after(
        self, elements: Sequence[TimestampedValue], window: Any, ctx: EvictorContext
    ) -> Sequence[TimestampedValue]:
        return self._kept(elements) if self.do_evict_after else elements


@dataclass(frozen=True)
class CountEvictor(_OnceEvictor):
    """Keeps the last n rows; use `of`."""

    count: int
    do_evict_after: bool

    @classmethod
    def of(cls, count: int, *, do_evict_after: bool = False) -> CountEvictor:
        """Return an evictor that keeps the last `count` rows."""
        return cls(whole(cls.__name__, "the count", count), do_evict_after)

    def _kept(self, elements: Sequence[TimestampedValue]) -> Sequence[TimestampedValue]:
        return elements[-self.count :]


@dataclass(frozen=True)
class TimeEvictor(_OnceEvictor):
    """Keeps the rows of a time before the latest row; use `of`."""

    size: int
    do_evict_after: bool

    @classmethod
    def of(cls, size: Duration, *, do_evict_after: bool = False) -> TimeEvictor:
        """Return an evictor that keeps rows less than `size` older than the latest one.

        It keeps all rows where the first one has no event time.
        """
        return cls(positive(cls.__name__, "the size", size), do_evict_after)

    def _kept(self, elements: Sequence[TimestampedValue]) -> Sequence[TimestampedValue]:
        if not elements or elements[0].timestamp is None:
            return elements
        times = [BEFORE_TIME if element.timestamp is None else element.timestamp for element in elements]
        cutoff = max(times) - self.size
        return [element for element, time in zip(elements, times, strict=True) if time > cutoff]


@dataclass(frozen=True)
class DeltaEvictor(_OnceEvictor):
    """Keeps the rows that are near the last one; use `of`."""

    threshold: float
    delta_function: Callable[[Any, Any], float]
    do_evict_after: bool

    @classmethod
    def of(
        cls,
        threshold: float,
        delta_function: Callable[[Any, Any], float],
        *,
        do_evict_after: bool = False,
    ) -> DeltaEvictor:
        """Return an evictor that keeps rows with ``delta_function(row, last row)`` below the threshold."""
        check_delta(cls.__name__, threshold, delta_function)
        return cls(threshold, delta_function, do_evict_after)

    def _kept(self, elements: Sequence[TimestampedValue]) -> Sequence[TimestampedValue]:
        if not elements:
            return elements
        last = elements[-1].value
        return [element for element in elements if self.delta_function(element.value, last) < self.threshold]
