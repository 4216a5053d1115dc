"""The timers of a function that handles all rows of a key at once."""

from __future__ import annotations

from typing import Any

from keyedstate.runtime.timers import TimeDomain
from keyedstate.state.context import KeyContext
from keyedstate.time import DueTimers, TimerService
from keyedstate.types import VOID_NAMESPACE


class GroupTimers:
    """The timers of the current key, in one time domain.

    Those that are due when an epoch ends fire in it, and only those: a timer that one of them registers waits
    for the next epoch, and one that they delete fires all the same.  A timer exists until it has fired.
    """

    def __init__(
        self, service: TimerService, current: KeyContext, domain: TimeDomain, *, rows_have_time: bool
    ) -> None:
        self._service = service
        self._current = current
        #: Timers of event time exist without rows that have one, and never fire.
        self._ever_due = rows_have_time or domain is TimeDomain.PROCESSING_TIME
        self._in_event_time = domain is TimeDomain.EVENT_TIME and rows_have_time
        #: Those that are firing, as (key, time).
        self._firing: set[tuple[Any, int]] = set()
        #: All timers by key, from the first time that they are listed on.
        self._by_key: dict[Any, set[int]] | None = None

    def register(self, time: int) -> None:
        """Register a timer; does nothing where it exists."""
        key = self._current.key
        if (key, time) in self._firing:
            return
        if self._in_event_time:
            self._service.register_event_time_timer(VOID_NAMESPACE, time)
        else:
            self._service.register_processing_time_timer(VOID_NAMESPACE, time)
        if self._by_key is not None:
            self._by_key.setdefault(key, set()).add(time)

    def fire_again(self, time: int) -> None:
        """Let the timer that is firing fire in the next epoch, too."""
        self._firing.discard((self._current.key, time))
        self.register(time)

    def delete(self, time: int) -> None:
        """Delete a timer, if it exists."""
        if self._in_event_time:
            self._service.delete_event_time_timer(VOID_NAMESPACE, time)
        else:
            self._service.delete_processing_time_timer(VOID_NAMESPACE, time)
        self._forget(self._current.key, time)

    def times(self) -> list[int]:
        """Return the times of all timers of the key, ascending; the one that is firing is one of them."""
        if self._by_key is None:
            found: dict[Any, set[int]] = {}

            def add(_: object, time: int) -> None:
                found.setdefault(self._current.key, set()).add(time)

            if self._in_event_time:
                self._service.for_each_event_time_timer(add)
            else:
                self._service.for_each_processing_time_timer(add)
            for key, time in self._firing:
                found.setdefault(key, set()).add(time)
            self._by_key = found
        return sorted(self._by_key.get(self._current.key, ()))

    def due(self) -> list[DueTimers]:
        """Take the timers that are due."""
        if not self._ever_due:
            return []
        due = list(self._service.due_timers_together(in_event_time=self._in_event_time))
        self._firing = {(key, timers.time) for timers in due for key in timers.keys}
        return due

    def fired(self, time: int) -> None:
        """Forget a timer of the current key that has fired."""
        timer = (self._current.key, time)
        if timer in self._firing:
            self._firing.remove(timer)
            self._forget(*timer)

    def _forget(self, key: Any, time: int) -> None:
        if self._by_key is not None and key in self._by_key:
            self._by_key[key].discard(time)
            if not self._by_key[key]:
                del self._by_key[key]
