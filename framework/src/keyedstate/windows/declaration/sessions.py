"""Session windows: rows of a key with less than a gap between them (Flink's ``*SessionWindows``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keyedstate.durations import Duration, milliseconds
from keyedstate.errors import InvalidDurationError, InvalidWindowError
from keyedstate.types import TimeWindow
from keyedstate.windows.declaration.assigners import MergingWindowAssigner, TimeAssigner
from keyedstate.windows.declaration.checks import check_function, positive
from keyedstate.windows.declaration.contexts import AssignerContext


class Session(TimeAssigner, MergingWindowAssigner[TimeWindow]):
    """Windows that grow with their rows and end a gap after the last one.

    A row starts with a window of its own, from its time to a gap later.  Windows that intersect or touch
    become one.  Use `with_gap` or `with_dynamic_gap`.
    """

    def __init__(self, gap: int | Callable[[Any], Duration], is_event_time: bool) -> None:
        self._gap = gap
        self.is_event_time = is_event_time

    @classmethod
    def with_gap(cls, gap: Duration, *, processing_time: bool = False) -> Session:
        """Return sessions that end after a gap without rows: ``Session.with_gap("30 min")``."""
        return cls(positive(cls.__name__, "the gap", gap), not processing_time)

    @classmethod
    def with_dynamic_gap(cls, gap: Callable[[Any], Duration], *, processing_time: bool = False) -> Session:
        """Return sessions whose gap a function takes from each row (``SessionWindowTimeGapExtractor``)."""
        check_function(cls.__name__, "the gap", gap)
        return cls(gap, not processing_time)

    @property
    def gap(self) -> int | None:
        """The gap in milliseconds; None where each row has its own."""
        return self._gap if isinstance(self._gap, int) else None

    def assign_windows(
        self, element: Any, timestamp: int | None, context: AssignerContext
    ) -> tuple[TimeWindow, ...]:
        """Return the window from the row's time to a gap later.

        Raises `InvalidWindowError` for a dynamic gap that is not positive.
        """
        gap = self._gap
        length = gap if isinstance(gap, int) else _gap_of(gap(element))
        return (TimeWindow.starting(self.time_of(timestamp, context), length),)

    def merge_windows(self, windows: Iterable[TimeWindow]) -> Sequence[tuple[TimeWindow, list[TimeWindow]]]:
        """Merge windows that intersect or touch (``TimeWindow#mergeWindows``)."""
        merged: list[tuple[TimeWindow, list[TimeWindow]]] = []
        for window in sorted(windows):
            if merged and merged[-1][0].intersects(window):
                cover, parts = merged[-1]
                parts.append(window)
                merged[-1] = (cover.cover(window), parts)
            else:
                merged.append((window, [window]))
        return [(cover, parts) for cover, parts in merged if len(parts) > 1]

    def __repr__(self) -> str:
        rest = "" if self.is_event_time else ", processing_time=True"
        if isinstance(self._gap, int):
            return f"Session.with_gap({self._gap}{rest})"
        return f"Session.with_dynamic_gap({self._gap!r}{rest})"


def _gap_of(given: object) -> int:
    try:
        gap = milliseconds(given)
    except InvalidDurationError:
        gap = 0
    if gap <= 0:
        raise InvalidWindowError(
            "the gap of a session",
            f"it is {given!r} for this row",
            "Return a duration of at least one millisecond for every row.",
        )
    return gap
