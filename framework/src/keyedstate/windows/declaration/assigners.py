"""Window assigners: which windows a row belongs to (Flink's ``WindowAssigner`` and its built-in kinds)."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from keyedstate.durations import Duration, milliseconds
from keyedstate.errors import InvalidWindowError, MissingTimestampError
from keyedstate.types import (
    GLOBAL_WINDOW,
    GLOBAL_WINDOW_TYPE,
    TIME_WINDOW,
    GlobalWindow,
    TimeWindow,
    TypeSerializer,
)
from keyedstate.windows.declaration.checks import positive, whole
from keyedstate.windows.declaration.combined_triggers import PurgingTrigger
from keyedstate.windows.declaration.contexts import AssignerContext
from keyedstate.windows.declaration.evictors import CountEvictor, Evictor
from keyedstate.windows.declaration.triggers import (
    CountTrigger,
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    Trigger,
)


class Window(Protocol):
    """An immutable, hashable value with equality and a last moment."""

    @property
    def max_timestamp(self) -> int:
        """The last event time, or processing time, of the window in milliseconds since 1970 UTC."""
        ...


W = TypeVar("W", bound=Window)


class WindowAssigner(ABC, Generic[W]):
    """Assigns rows to windows; derive from it for an assigner of your own.

    Methods `of` raise `InvalidWindowError` for arguments that cannot be used, `InvalidDurationError` for text
    that is no duration.

    Attributes
    ----------
    is_event_time : bool
        Whether its windows end when the watermark passes their end; else when the clock does.
    window_serializer : TypeSerializer
        The type of its windows, which are the namespaces of their state and timers.
    """

    is_event_time: bool
    window_serializer: TypeSerializer[W]

    @abstractmethod
    def assign_windows(self, element: Any, timestamp: int | None, context: AssignerContext) -> Collection[W]:
        """Return the windows of a row, a tuple; there may be none.

        `timestamp` is its event time in milliseconds since 1970 UTC, or None.
        """

    @abstractmethod
    def default_trigger(self) -> Trigger[W]:
        """Return the trigger for users that name none."""

    def default_evictor(self) -> Evictor[W] | None:
        """Return the evictor for users that name none."""
        return None

    @property
    def name(self) -> str:
        """The name in errors."""
        return type(self).__name__


class MergingWindowAssigner(WindowAssigner[W]):
    """An assigner whose windows may become one when a row brings them together."""

    @abstractmethod
    def merge_windows(self, windows: Iterable[W]) -> Sequence[tuple[W, list[W]]]:
        """Return each merged window with its parts; windows that stay alone are left out."""


class TimeAssigner(WindowAssigner[TimeWindow]):
    """An assigner of time windows, which fire at their end by default."""

    window_serializer = TIME_WINDOW

    def default_trigger(self) -> Trigger[Any]:
        return EventTimeTrigger() if self.is_event_time else ProcessingTimeTrigger()

    def time_of(self, timestamp: int | None, context: AssignerContext) -> int:
        """Return the time by which a row is assigned; raises `MissingTimestampError`."""
        if not self.is_event_time:
            return context.current_processing_time
        if timestamp is None:
            raise MissingTimestampError(self.name)
        return timestamp


class WindowStagger(enum.Enum):
    """How windows of different keys are shifted against each other, so that not all fire at once.

    Flink's ``WindowStagger``, which shifts by task; here windows must stay the same when tasks change.
    """

    ALIGNED = "aligned"
    #: By a part of the size that depends on the key group only.
    RANDOM = "random"
    #: A key's windows begin with its first row; the time is kept in state.
    NATURAL = "natural"

    def offset(self, context: AssignerContext, size: int) -> int:
        """Return by how many milliseconds the windows of the current key are shifted."""
        if self is WindowStagger.RANDOM:
            # Multiples of the golden ratio are spread evenly for any number of key groups (Knuth, 6.4).
            return int(context.key_group * 0.6180339887498949 % 1 * size)
        if self is WindowStagger.NATURAL:
            return context.first_processing_time % size
        return 0


@dataclass(frozen=True, repr=False)
class Tumbling(TimeAssigner):
    """Consecutive windows of one size; each row is in one (``Tumbling{Event,Processing}TimeWindows``).

    Use `of`.
    """

    size: int
    offset: int
    stagger: WindowStagger
    is_event_time: bool

    @classmethod
    def of(
        cls,
        size: Duration,
        *,
        offset: Duration = 0,
        stagger: WindowStagger = WindowStagger.ALIGNED,
        processing_time: bool = False,
    ) -> Tumbling:
        """Return the windows of a size: ``Tumbling.of("1 hour")``.

        Parameters
        ----------
        size, offset : str, timedelta or int
            Windows begin where the time since 1970 UTC is the offset plus a multiple of the size: with
            ``timedelta(hours=-8)`` days begin at midnight in China.
        stagger : WindowStagger, optional
            In event time always ``ALIGNED``.
        processing_time : bool, default False
            Whether rows are assigned by the clock and not by their event time.
        """
        size_ms = positive(cls.__name__, "the size", size)
        offset_ms = _offset(cls.__name__, offset, "the size", size, size_ms)
        if not isinstance(stagger, WindowStagger):
            raise InvalidWindowError(cls.__name__, f"its stagger is {stagger!r}", "Give a WindowStagger.")
        if stagger is not WindowStagger.ALIGNED and not processing_time:
            raise InvalidWindowError(
                cls.__name__,
                f"{stagger} would give rows of one event time different windows",
                "Give processing_time=True, or leave the stagger out.",
            )
        return cls(size_ms, offset_ms, stagger, not processing_time)

    def assign_windows(
        self, element: Any, timestamp: int | None, context: AssignerContext
    ) -> tuple[TimeWindow, ...]:
        time = self.time_of(timestamp, context)
        shift = self.stagger.offset(context, self.size)
        return (TimeWindow.starting(window_start(time, self.offset + shift, self.size), self.size),)

    @property
    def step(self) -> int:
        """How often a window begins, in milliseconds."""
        return self.size

    def __repr__(self) -> str:
        return f"Tumbling.of({self.size}{_rest(self.offset, self.is_event_time)})"


@dataclass(frozen=True, repr=False)
class Sliding(TimeAssigner):
    """Windows of one size that begin at every slide (``Sliding*TimeWindows``).

    A row is in several of them, or in none where the slide is longer than the size.  Use `of`.
    """

    size: int
    slide: int
    offset: int
    is_event_time: bool

    @classmethod
    def of(
        cls, size: Duration, slide: Duration, *, offset: Duration = 0, processing_time: bool = False
    ) -> Sliding:
        """Return the windows of a size that begin every slide: ``Sliding.of("1 hour", "10 min")``.

        Parameters
        ----------
        size, slide, offset : str, timedelta or int
            As in `Tumbling.of`; the absolute offset is below the slide.
        processing_time : bool, default False
        """
        size_ms, slide_ms = (
            positive(cls.__name__, what, given) for what, given in (("the size", size), ("the slide", slide))
        )
        offset_ms = _offset(cls.__name__, offset, "the slide", slide, slide_ms)
        return cls(size_ms, slide_ms, offset_ms, not processing_time)

    def assign_windows(
        self, element: Any, timestamp: int | None, context: AssignerContext
    ) -> list[TimeWindow]:
        time, size, slide = self.time_of(timestamp, context), self.size, self.slide
        last = window_start(time, self.offset, slide)
        return [TimeWindow.starting(start, size) for start in range(last, time - size, -slide)]

    @property
    def step(self) -> int:
        """How often a window begins, in milliseconds."""
        return self.slide

    def __repr__(self) -> str:
        return f"Sliding.of({self.size}, {self.slide}{_rest(self.offset, self.is_event_time)})"


class Global(WindowAssigner[GlobalWindow]):
    """One endless window for all rows of a key, which never fires without a trigger (``GlobalWindows``).

    Use `of` or `at_end_of_stream`.
    """

    is_event_time: bool = True
    window_serializer = GLOBAL_WINDOW_TYPE

    def __init__(self, at_end: bool = False) -> None:
        self._at_end = at_end

    @classmethod
    def of(cls) -> Global:
        """Return the window, which fires when its trigger says so."""
        return Global()

    @classmethod
    def at_end_of_stream(cls) -> Global:
        """Return the window, which fires once at the end of bounded input."""
        return Global(at_end=True)

    def assign_windows(
        self, element: Any, timestamp: int | None, context: AssignerContext
    ) -> tuple[GlobalWindow, ...]:
        return (GLOBAL_WINDOW,)

    def default_trigger(self) -> Trigger[Any]:
        return EndOfStreamTrigger() if self._at_end else NeverTrigger()

    def __repr__(self) -> str:
        return "Global.at_end_of_stream()" if self._at_end else "Global.of()"


class Count(Global):
    """Windows of a number of rows of a key (Flink's ``KeyedStream#countWindow``); use `of`.

    They are the global window with a trigger, and for sliding ones an evictor.
    """

    def __init__(self, size: int, slide: int | None) -> None:
        super().__init__()
        self.size = size
        self.slide = slide

    @classmethod
    def of(cls, size: int | None = None, slide: int | None = None) -> Count:
        """Return windows of `size` rows: consecutive ones, or one after every `slide` rows.

        A sliding window has the last `size` rows, fewer at first.
        """
        rows = whole(cls.__name__, "the size", size)
        return cls(rows, None if slide is None else whole(cls.__name__, "the slide", slide))

    def default_trigger(self) -> Trigger[Any]:
        """Return one that fires and purges after `size` rows, or fires after every `slide` rows."""
        counting = CountTrigger.of(self.size if self.slide is None else self.slide)
        return PurgingTrigger.of(counting) if self.slide is None else counting

    def default_evictor(self) -> Evictor[Any] | None:
        """Return one that keeps the last `size` rows of a sliding window."""
        return None if self.slide is None else CountEvictor.of(self.size)

    def __repr__(self) -> str:
        return f"Count.of({self.size})" if self.slide is None else f"Count.of({self.size}, {self.slide})"


def window_start(timestamp: int, offset: int, size: int) -> int:
    """Return the start of the tumbling window that a time is in (``getWindowStartWithOffset``)."""
    return timestamp - (timestamp - offset) % size


def _offset(part: str, offset: Duration, what: str, given: Duration, most_ms: int) -> int:
    """Return an offset in milliseconds, or refuse one that is as large as the size or the slide."""
    offset_ms = milliseconds(offset)
    if abs(offset_ms) >= most_ms:
        raise InvalidWindowError(
            part, f"the offset {offset!r} is as large as {what} {given!r}", "Give an offset below it."
        )
    return offset_ms


def _rest(offset: int, is_event_time: bool) -> str:
    return (f", offset={offset}" if offset else "") + ("" if is_event_time else ", processing_time=True")
