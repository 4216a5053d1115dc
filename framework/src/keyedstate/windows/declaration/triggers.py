"""Triggers: when a window's function is called (Flink's ``Trigger``, ``TriggerResult`` and simple triggers).

A trigger object serves every key and window, so what it remembers of one goes into state, which
`TriggerContext.state` keeps for the window.  It is asked at every row and at the timers of the window, its
own and those of the operator: it decides by the time whether a timer is one of its own.
"""

from __future__ import annotations

import copy
import enum
import operator
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from keyedstate.errors import InvalidWindowError
from keyedstate.state import ReducingState, StateAccessor, StateDescriptor
from keyedstate.state.clock import END_OF_TIME
from keyedstate.types import INT64, TypeSerializer
from keyedstate.windows.declaration.checks import whole

W = TypeVar("W")
H = TypeVar("H", bound=StateAccessor)


class TriggerResult(enum.Enum):
    """What happens to a window now.

    Attributes
    ----------
    fires : bool
        Whether its function is called with its contents.
    purges : bool
        Whether the contents are removed, after that; the trigger's state and the window stay.
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
        """Return the one with these attributes."""
        return _RESULTS[fires, purges]


_RESULTS = {result.value: result for result in TriggerResult}


class TriggerContext(ABC):
    """What a trigger may use for the current key and window."""

    @property
    @abstractmethod
    def current_watermark(self) -> int:
        """In milliseconds since 1970 UTC; -2**63 where none is known."""

    @property
    @abstractmethod
    def current_processing_time(self) -> int:
        """In milliseconds since 1970 UTC."""

    @abstractmethod
    def register_event_time_timer(self, time: int) -> None:
        """Call `Trigger.on_event_time` when the watermark reaches a time; once, however often registered."""

    @abstractmethod
    def register_processing_time_timer(self, time: int) -> None:
        """Call `Trigger.on_processing_time` when the clock reaches a time."""

    @abstractmethod
    def delete_event_time_timer(self, time: int) -> None:
        """Delete a timer; nothing where there is none."""

    @abstractmethod
    def delete_processing_time_timer(self, time: int) -> None:
        """Delete a timer; nothing where there is none."""

    @abstractmethod
    def state(self, descriptor: StateDescriptor[H] | H) -> H:
        """Return state of the current key and window (Flink's ``getPartitionedState``).

        Parameters
        ----------
        descriptor : StateDescriptor
            A class attribute of the trigger, ``ctx.state(self.count)``, or one that it keeps elsewhere.

        In checkpoints its name begins with ``trigger.``, so that it is no other state's.
        """


class OnMergeContext(TriggerContext):
    """A `TriggerContext` of a window that others have become."""

    @abstractmethod
    def merge_state(self, descriptor: StateDescriptor[Any] | StateAccessor) -> None:
        """Add the state of the windows that were merged to that of the present one.

        Only for list, reducing and aggregating state.
        """


class Trigger(ABC, Generic[W]):
    """Decides when a window fires and when it lets its contents go.

    Derive from it for a trigger of your own.  What it raises stops the epoch, as a function's error does.
    """

    @abstractmethod
    def on_element(
        self, element: Any, timestamp: int | None, window: W, ctx: TriggerContext
    ) -> TriggerResult:
        """Decide when a row has been added to a window.

        Parameters
        ----------
        element : tuple
            The row.
        timestamp : int or None
            Its event time in milliseconds since 1970 UTC.
        """

    def on_event_time(self, time: int, window: W, ctx: TriggerContext) -> TriggerResult:
        """Decide when the watermark has passed a timer of the window."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: W, ctx: TriggerContext) -> TriggerResult:
        """Decide when the clock has passed a timer of the window."""
        return TriggerResult.CONTINUE

    #: Whether the trigger can be used with windows that merge; `on_merge` is called then.
    can_merge: bool = False

    def on_merge(self, window: W, ctx: OnMergeContext) -> None:
        """Bring over what the trigger remembers of windows that have become one.

        Timers of the merged windows are those of windows that are gone: register what is still needed.
        """
        raise NotImplementedError(f"{type(self).__name__} has can_merge and no on_merge()")

    @abstractmethod
    def clear(self, window: W, ctx: TriggerContext) -> None:
        """Remove the state and the timers of a window that is gone."""

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
        """Wait for the end of the merged window, where that is not past: late rows fire it then."""
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
        """Return a trigger that fires at every `count` rows.

        Raises
        ------
        InvalidWindowError
            For a number below 1.
        """
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
        """Add the counts; the next row sees whether they are enough."""
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
    """Return the same state under a name that begins with a prefix.

    Raises
    ------
    InvalidWindowError
        For what is no declaration.
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
