"""Triggers: when a window's function is called (Flink's ``Trigger``, ``TriggerResult`` and simple triggers).

One trigger object serves all keys and windows, so it keeps what it remembers in `TriggerContext.state`.  It
is called at every row and at all timers of the window, its own and those of the operator, which it tells
apart by their time.
"""

from __future__ import annotations

import copy
import enum
import operator
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from keyedstate.errors import InvalidWindowError
from keyedstate.state import ReducingState, StateDescriptor
from keyedstate.state.clock import END_OF_TIME
from keyedstate.types import INT64, TypeSerializer
from keyedstate.windows.declaration.checks import whole
from keyedstate.windows.declaration.contexts import H, OnMergeContext, TriggerContext

W = TypeVar("W")


class TriggerResult(enum.Enum):
    """What happens to a window now.

    Attributes
    ----------
    fires : bool
        Whether its function is called with its contents.
    purges : bool
        Whether the contents are removed after that; the trigger's state and the window stay.
    """

    CONTINUE = (False, False)
    FIRE = (True, False)
    PURGE = (False, True)
    FIRE_AND_PURGE = (True, True)

    def __init__(self, fires: bool, purges: bool) -> None:
        self.fires = fires
        self.purges = purges

    @classmethod
    def of(cls, fires: bool, purges: bool) -> TriggerResult:
        """Return the result with these attributes."""
        return _RESULTS[fires, purges]


_RESULTS = {result.value: result for result in TriggerResult}


class Trigger(ABC, Generic[W]):
    """Decides when a window fires and when its contents are removed; derive from it for one of your own.

    Methods `of` raise `InvalidWindowError` for arguments that cannot be used.  Other errors of a trigger stop
    the epoch, as a function's error does.
    """

    #: Whether the trigger can be used with windows that merge; `on_merge` is called then.
    can_merge: bool = False

    @abstractmethod
    def on_element(
        self, element: Any, timestamp: int | None, window: W, ctx: TriggerContext
    ) -> TriggerResult:
        """Decide when a row, a tuple, has been added to a window; its event time is in milliseconds."""

    def on_event_time(self, time: int, window: W, ctx: TriggerContext) -> TriggerResult:
        """Decide when the watermark has passed a timer of the window."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: W, ctx: TriggerContext) -> TriggerResult:
        """Decide when the clock has passed a timer of the window."""
        return TriggerResult.CONTINUE

    def on_merge(self, window: W, ctx: OnMergeContext) -> None:
        """Merge the state of windows that have become one, and register the timers that it needs.

        The timers of the merged windows are ignored from now on.
        """
        raise NotImplementedError(f"{type(self).__name__} has can_merge and no on_merge()")

    @abstractmethod
    def clear(self, window: W, ctx: TriggerContext) -> None:
        """Remove the state and the timers of a window that is removed."""

    def for_elements(self, element_type: TypeSerializer[Any]) -> Trigger[W]:
        """Return the trigger for rows of a type, where it keeps some of them."""
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class EventTimeTrigger(Trigger[Any]):
    """Fires when the watermark passes the end of the window, and at each late row after that."""

    can_merge = True

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        end = window.max_timestamp
        if end <= ctx.current_watermark:
            return TriggerResult.FIRE
        ctx.register_event_time_timer(end)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp else TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        """Wait for the end of the merged window; where that has passed, late rows fire it."""
        if window.max_timestamp > ctx.current_watermark:
            ctx.register_event_time_timer(window.max_timestamp)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.delete_event_time_timer(window.max_timestamp)


class ProcessingTimeTrigger(Trigger[Any]):
    """Fires when the clock passes the end of the window."""

    can_merge = True

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp else TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        if window.max_timestamp > ctx.current_processing_time:
            ctx.register_processing_time_timer(window.max_timestamp)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp)


class CountTrigger(Trigger[Any]):
    """Fires at every n-th row of a window; use `of`."""

    can_merge = True

    def __init__(self, count: int) -> None:
        self.count = count
        self._rows = ReducingState("count", operator.add, INT64)

    @classmethod
    def of(cls, count: int) -> CountTrigger:
        """Return a trigger that fires at every `count` rows."""
        return cls(whole(cls.__name__, "the count", count))

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        rows = ctx.state(self._rows)
        counted = (rows.get() or 0) + 1
        if counted >= self.count:
            rows.clear()
            return TriggerResult.FIRE
        rows.add(1)
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        """Add the counts; the next row may fire the window."""
        ctx.merge_state(self._rows)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.state(self._rows).clear()

    def __repr__(self) -> str:
        return f"CountTrigger.of({self.count})"


class NeverTrigger(Trigger[Any]):
    """Never fires (``GlobalWindows.NeverTrigger``)."""

    can_merge = True

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        """Do nothing."""

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        """Do nothing."""


class EndOfStreamTrigger(Trigger[Any]):
    """Fires once, at the end of bounded input (``GlobalWindows.EndOfStreamTrigger``)."""

    can_merge = True

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        ctx.register_event_time_timer(END_OF_TIME)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE if time == END_OF_TIME else TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        ctx.register_event_time_timer(END_OF_TIME)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.delete_event_time_timer(END_OF_TIME)


def named_within(prefix: str, descriptor: StateDescriptor[H] | H) -> StateDescriptor[H]:
    """Return the same state under a name with a prefix.

    Raises `InvalidWindowError` for what is no declaration.
    """
    if not isinstance(descriptor, StateDescriptor):
        raise InvalidWindowError(
            "the state of a trigger",
            f"it is {descriptor!r}, which is no declaration",
            "Give a class attribute of the trigger, as in ctx.state(self.count).",
        )
    renamed = copy.copy(descriptor)
    renamed.name = f"{prefix}{descriptor.name}"
    return renamed
