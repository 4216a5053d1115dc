"""What assigners, triggers, evictors and functions may ask for: times, timers and the state of the key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol, TypeVar

from keyedstate.state import StateAccessor, StateDescriptor

H = TypeVar("H", bound=StateAccessor)


class AssignerContext(Protocol):
    """What an assigner may ask for."""

    @property
    def current_processing_time(self) -> int:
        """In milliseconds since 1970 UTC."""
        ...

    @property
    def key_group(self) -> int:
        """The key group of the current key."""
        ...

    @property
    def first_processing_time(self) -> int:
        """The processing time at which this was first asked for the current key; kept in state."""
        ...


class EvictorContext(ABC):
    """What an evictor may ask for."""

    @property
    @abstractmethod
    def current_watermark(self) -> int:
        """In milliseconds since 1970 UTC; -2**63 where none is known."""

    @property
    @abstractmethod
    def current_processing_time(self) -> int:
        """In milliseconds since 1970 UTC."""


class TriggerContext(EvictorContext):
    """What a trigger may use for the current key and window."""

    @abstractmethod
    def register_event_time_timer(self, time: int) -> None:
        """Call `Trigger.on_event_time` once when the watermark reaches a time."""

    @abstractmethod
    def register_processing_time_timer(self, time: int) -> None:
        """Call `Trigger.on_processing_time` once when the clock reaches a time."""

    @abstractmethod
    def delete_event_time_timer(self, time: int) -> None:
        """Delete a timer if it exists."""

    @abstractmethod
    def delete_processing_time_timer(self, time: int) -> None:
        """Delete a timer if it exists."""

    @abstractmethod
    def state(self, descriptor: StateDescriptor[H] | H) -> H:
        """Return state of the current key and window (Flink's ``getPartitionedState``).

        The declaration is a class attribute of the trigger, ``ctx.state(self.count)``, or one that it keeps
        elsewhere. In checkpoints its name has the prefix ``trigger.``.
        """


class OnMergeContext(TriggerContext):
    """A `TriggerContext` of a window that others were merged into."""

    @abstractmethod
    def merge_state(self, descriptor: StateDescriptor[Any] | StateAccessor) -> None:
        """Merge list, reducing or aggregating state of the merged windows into that of the present one."""


class WindowContext(EvictorContext):
    """What a window's function may ask for."""

    @property
    @abstractmethod
    def key(self) -> Any:
        """The current key: the value of the key column, or a tuple where there are several."""

    @property
    @abstractmethod
    def window(self) -> Any:
        """The window: a `keyedstate.types.TimeWindow` with `start` and `end` in milliseconds, or what the
        assigner makes."""

    @abstractmethod
    def window_state(self, descriptor: StateDescriptor[H]) -> H:
        """Return state of the current key and window, which lasts from firing to firing.

        The function must remove it in `ProcessWindowFunction.clear`.

        Raises `InvalidWindowError` where windows merge, and for a name that windows use themselves, such as
        ``window-contents``.
        """

    @abstractmethod
    def global_state(self, descriptor: StateDescriptor[H] | H) -> H:
        """Return state of the current key, which all of its windows share.

        Raises `InvalidWindowError` as `window_state`.
        """

    @abstractmethod
    def output(self, name: str, row: Any) -> None:
        """Emit a row to a side output.

        Raises `InvalidWindowError` for a side output that was not declared.
        """
