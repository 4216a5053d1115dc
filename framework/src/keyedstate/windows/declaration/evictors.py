"""Evictors: which rows of a window are left out when it fires (Flink's ``Evictor`` and its built-in ones).

An evictor needs all rows of the window, so a window that has one keeps them, also where a function would
reduce them.  What it leaves out is gone from the window.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from keyedstate.durations import Duration
from keyedstate.state.clock import BEFORE_TIME
from keyedstate.windows.declaration.checks import check_delta, positive, whole

W = TypeVar("W")


class TimestampedValue(NamedTuple):
    """A row of a window and its event time.

    Attributes
    ----------
    value : tuple
        The row.
    timestamp : int or None
        In milliseconds since 1970 UTC.
    """

    value: Any
    timestamp: int | None


class EvictorContext(Protocol):
    """What an evictor is told beside the rows."""

    @property
    def current_watermark(self) -> int:
        """In milliseconds since 1970 UTC; -2**63 where none is known."""
        ...

    @property
    def current_processing_time(self) -> int:
        """In milliseconds since 1970 UTC."""
        ...


class Evictor(ABC, Generic[W]):
    """Leaves rows of a window out before or after its function; derive from it for one of your own."""

    def evict_before(
        self, elements: Sequence[TimestampedValue], window: W, ctx: EvictorContext
    ) -> Sequence[TimestampedValue]:
        """Return the rows that the window's function is to see; in the order in which they came."""
        return elements

    def evict_after(
        self, elements: Sequence[TimestampedValue], window: W, ctx: EvictorContext
    ) -> Sequence[TimestampedValue]:
        """Return the rows, of those that the function saw, that the window keeps."""
        return elements


class _OnceEvictor(Evictor[Any]):
    """Leaves rows out before the function or, instead, after it."""

    def __init__(self, do_evict_after: bool) -> None:
        self._after = do_evict_after

    def _kept(self, elements: Sequence[TimestampedValue]) -> Sequence[TimestampedValue]:
        raise NotImplementedError

    def evict_before(
        self, elements: Sequence[TimestampedValue], window: Any, ctx: EvictorContext
    ) -> Sequence[TimestampedValue]:
        return elements if self._after else self._kept(elements)

    def evict_after(
        self, elements: Sequence[TimestampedValue], window: Any, ctx: EvictorContext
    ) -> Sequence[TimestampedValue]:
        return self._kept(elements) if self._after else elements


class CountEvictor(_OnceEvictor):
    """Keeps the last n rows; use `of`."""

    def __init__(self, count: int, do_evict_after: bool) -> None:
        super().__init__(do_evict_after)
        self.count = count

    @classmethod
    def of(cls, count: int, *, do_evict_after: bool = False) -> CountEvictor:
        """Return an evictor that keeps the last `count` rows.

        Raises
        ------
        InvalidWindowError
            For a number below 1.
        """
        return cls(whole(cls.__name__, "the count", count), do_evict_after)

    def _kept(self, elements: Sequence[TimestampedValue]) -> Sequence[TimestampedValue]:
        return elements[-self.count :]


class TimeEvictor(_OnceEvictor):
    """Keeps the rows of the last while before the latest row; use `of`."""

    def __init__(self, size: int, do_evict_after: bool) -> None:
        super().__init__(do_evict_after)
        self.size = size

    @classmethod
    def of(cls, size: Duration, *, do_evict_after: bool = False) -> TimeEvictor:
        """Return an evictor that keeps rows less than `size` older than the latest one.

        Where the first row has no event time, all are kept.

        Raises
        ------
        InvalidWindowError, InvalidDurationError
        """
        return cls(positive(cls.__name__, "the size", size), do_evict_after)

    def _kept(self, elements: Sequence[TimestampedValue]) -> Sequence[TimestampedValue]:
        if not elements or elements[0].timestamp is None:
            return elements
        times = [BEFORE_TIME if element.timestamp is None else element.timestamp for element in elements]
        cutoff = max(times) - self.size
        return [element for element, time in zip(elements, times, strict=True) if time > cutoff]


class DeltaEvictor(_OnceEvictor):
    """Keeps the rows that are near the last one; use `of`."""

    def __init__(
        self, threshold: float, delta_function: Callable[[Any, Any], float], do_evict_after: bool
    ) -> None:
        super().__init__(do_evict_after)
        self.threshold = threshold
        self.delta_function = delta_function

    @classmethod
    def of(
        cls,
        threshold: float,
        delta_function: Callable[[Any, Any], float],
        *,
        do_evict_after: bool = False,
    ) -> DeltaEvictor:
        """Return an evictor that keeps rows with ``delta_function(row, last row)`` below the threshold.

        Raises
        ------
        InvalidWindowError
        """
        check_delta(cls.__name__, threshold, delta_function)
        return cls(threshold, delta_function, do_evict_after)

    def _kept(self, elements: Sequence[TimestampedValue]) -> Sequence[TimestampedValue]:
        if not elements:
            return elements
        last = elements[-1].value
        return [element for element in elements if self.delta_function(element.value, last) < self.threshold]
