"""The timer service: registering, deleting and firing timers of the keys of one keyed backend.

Flink's ``InternalTimerService``, under its names and rules: a timer is (time, key, namespace) in one of two
time domains, registering it again changes nothing, and it fires once, when its domain's time has come, with
its key as the current key.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Generator, Iterable, Sequence
from operator import index
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from keyedstate.backend import TIMER_TABLES
from keyedstate.errors import (
    ConfigError,
    InvalidTimerNamespaceError,
    InvalidTimerTimeError,
    KeyGroupOutOfRangeError,
    NoEventTimeError,
    ValueTypeError,
)
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.time.clock import TimerClock
from keyedstate.time.heap_queue import HeapTimerQueue
from keyedstate.time.instants import milliseconds_of
from keyedstate.time.ordered_queue import OrderedTimerQueue
from keyedstate.time.queue import DueTimers, TimerQueue, table_namespace
from keyedstate.types import VOID, TypeSerializer

#: What the names of the tables begin with: ``EVENT_TIMER_PREFIX`` and ``PROCESSING_TIMER_PREFIX`` of Flink's
#: ``InternalTimeServiceManagerImpl``.
EVENT_TIMERS = TIMER_TABLES + "event_"
PROCESSING_TIMERS = TIMER_TABLES + "processing_"


def check_timer_queue(queue: str, backend: str, *, in_order: bool) -> None:
    """Raise `ConfigError` where ``timers.queue`` is "ordered" and the backend keeps no order."""
    if queue == "ordered" and not in_order:
        raise ConfigError(
            f"the backend {backend!r} does not keep timers in the order of time, which timers.queue=ordered "
            "needs. Set timers.queue to 'auto', or choose a backend that does, such as 'rocksdb'."
        )


class Timer(NamedTuple):
    """A timer."""

    #: In milliseconds since 1970 UTC.
    time: int
    key: Any
    #: `keyedstate.types.VOID_NAMESPACE` where the service has none.
    namespace: Any


class TimerTarget(Protocol):
    """Is called for each timer that fires, with its key as the current key (Flink's ``Triggerable``).

    An operator emits the rows that are returned; the services' own ``advance_...`` methods drop them.
    """

    def on_event_time(self, timer: Timer) -> Iterable[Any] | None:
        """Handle an event-time timer."""

    def on_processing_time(self, timer: Timer) -> Iterable[Any] | None:
        """Handle a processing-time timer."""


#: The key group of each key; None to have them computed.
KeyGroupColumn: TypeAlias = "Sequence[int] | npt.NDArray[Any] | None"
#: One time for all timers, or one of each.
TimeColumn: TypeAlias = "int | Sequence[int] | npt.NDArray[Any]"


class TimerService:
    """The timers of one name; made by `TimerServices.service`.

    Methods that name no key work on the backend's current key.  Times are whole milliseconds since 1970 UTC;
    one that has passed fires at the next advance of its domain.
    """

    def __init__(
        self,
        clock: TimerClock,
        backend: KeyedStateBackend,
        name: str,
        namespace_serializer: TypeSerializer[Any],
        target: TimerTarget,
    ) -> None:
        self.name = name
        #: Timers that have fired since the service was made.
        self.fired = 0
        self.target = target
        self.namespace_serializer = namespace_serializer
        self._clock = clock
        self._backend = backend
        self._current = backend.current
        self._has_event_time = backend.has_event_time
        self._is_namespace = namespace_serializer.is_value
        self._canonical = namespace_serializer.canonical if namespace_serializer.needs_canonical else None
        check_timer_queue(backend.timer_queue, backend.backend_name, in_order=backend.orders_timers)
        make = (
            OrderedTimerQueue if backend.orders_timers and backend.timer_queue != "heap" else HeapTimerQueue
        )
        self._event, self._processing = (
            make(
                backend.internal_table(prefix + name, table_namespace(namespace_serializer)),
                bare=namespace_serializer is VOID,
            )
            for prefix in (EVENT_TIMERS, PROCESSING_TIMERS)
        )

    # -- the times ----------------------------------------------------------------------------------------

    @property
    def current_watermark(self) -> int:
        """The event time up to which all rows have come; -2**63 where none is known."""
        return self._clock.watermark

    @property
    def current_processing_time(self) -> int:
        """The processing time that timers are judged by: in a job, that of the epoch."""
        return self._clock.processing_time

    # -- one timer ----------------------------------------------------------------------------------------

    def register_event_time_timer(self, namespace: Any, time: int | dt.datetime) -> None:
        """Register a timer that fires when the watermark reaches a time.

        Raises `InvalidTimerTimeError` and `InvalidTimerNamespaceError`; `NoEventTimeError` where the operator
        does not know the event time of its rows; `NoCurrentKeyError`.
        """
        if not self._has_event_time:
            raise NoEventTimeError(self.name)
        self._add(self._event, namespace, time)

    def delete_event_time_timer(self, namespace: Any, time: int | dt.datetime) -> None:
        """Delete a timer if it exists."""
        self._remove(self._event, namespace, time)

    def register_processing_time_timer(self, namespace: Any, time: int | dt.datetime) -> None:
        """Register a timer that fires when processing time reaches a time.

        Raises `InvalidTimerTimeError`, `InvalidTimerNamespaceError` and `NoCurrentKeyError`.
        """
        self._add(self._processing, namespace, time)

    def delete_processing_time_timer(self, namespace: Any, time: int | dt.datetime) -> None:
        """Delete a timer if it exists."""
        self._remove(self._processing, namespace, time)

    def _add(self, queue: TimerQueue, namespace: Any, time: Any) -> None:
        if time.__class__ is not int or not BEFORE_TIME <= time <= END_OF_TIME:
            time = _checked_time(time)
        # Written out: a call of `_namespace` would slow every registration.
        if not self._is_namespace(namespace):
            self._refuse(namespace)
        if self._canonical is not None:
            namespace = self._canonical(namespace)
        if not self._clock.ending:
            queue.add(time, namespace, self._current.key, self._current.key_group)

    def _remove(self, queue: TimerQueue, namespace: Any, time: Any) -> None:
        current = self._current
        queue.remove(_checked_time(time), self._namespace(namespace), current.key, current.key_group)

    # -- the timers of many keys --------------------------------------------------------------------------

    def register_event_time_timers(
        self, keys: Iterable[Any], key_groups: KeyGroupColumn, namespaces: Any, times: TimeColumn
    ) -> None:
        """Register a timer of each of several keys, which may repeat; the current key is not used.

        Namespaces and times are one for all, or a list or array with one of each. One time in one namespace
        costs little more than updating a set.

        Raises `InvalidTimerTimeError`, `InvalidTimerNamespaceError`, `NoEventTimeError`, and ValueTypeError
        or ValueError as `KeyContext.locate` and for columns of unequal length; no timer is registered then.
        """
        if not self._has_event_time:
            raise NoEventTimeError(self.name)
        self._add_many(self._event, keys, key_groups, namespaces, times)

    def register_processing_time_timers(
        self, keys: Iterable[Any], key_groups: KeyGroupColumn, namespaces: Any, times: TimeColumn
    ) -> None:
        """Register a timer of each of several keys, as `register_event_time_timers` does."""
        self._add_many(self._processing, keys, key_groups, namespaces, times)

    def delete_event_time_timers(
        self, keys: Iterable[Any], key_groups: KeyGroupColumn, namespaces: Any, times: TimeColumn
    ) -> None:
        """Delete the timers of several keys that exist; arguments as for registering."""
        self._remove_many(self._event, keys, key_groups, namespaces, times)

    def delete_processing_time_timers(
        self, keys: Iterable[Any], key_groups: KeyGroupColumn, namespaces: Any, times: TimeColumn
    ) -> None:
        """Delete the timers of several keys that exist; arguments as for registering."""
        self._remove_many(self._processing, keys, key_groups, namespaces, times)

    def _add_many(
        self, queue: TimerQueue, keys: Iterable[Any], key_groups: Any, namespaces: Any, times: Any
    ) -> None:
        found, groups = self._current.locate(keys, key_groups)
        one_time = isinstance(times, int) or np.ndim(times) == 0
        if one_time and not isinstance(namespaces, list):
            time, namespace = _checked_time(times), self._namespace(namespaces)
            if not self._clock.ending:
                queue.add_at(time, namespace, found, groups)
            return
        rows = self._rows(found, groups, namespaces, times)
        if not self._clock.ending:
            add = queue.add
            for time, namespace, key, key_group in rows:
                add(time, namespace, key, key_group)

    def _remove_many(
        self, queue: TimerQueue, keys: Iterable[Any], key_groups: Any, namespaces: Any, times: Any
    ) -> None:
        found, groups = self._current.locate(keys, key_groups)
        remove = queue.remove
        for timer in self._rows(found, groups, namespaces, times):
            remove(*timer)

    def _rows(
        self, keys: list[Any], groups: list[int], namespaces: Any, times: Any
    ) -> Iterable[tuple[int, Any, Any, int]]:
        """Return the timers of a bulk call, all of them checked."""
        if isinstance(times, int) or np.ndim(times) == 0:
            found_times = [_checked_time(times)] * len(keys)
        else:
            found_times = times.tolist() if isinstance(times, np.ndarray) else list(times)
            if set(map(type, found_times)) != {int} or not (
                min(found_times) >= BEFORE_TIME and max(found_times) <= END_OF_TIME
            ):
                found_times = list(map(_checked_time, found_times))
        if isinstance(namespaces, list):
            found_namespaces = list(map(self._namespace, namespaces))
        else:
            found_namespaces = [self._namespace(namespaces)] * len(keys)
        if not len(keys) == len(found_times) == len(found_namespaces):
            raise ValueError(
                f"{len(keys)} keys, {len(found_times)} times and {len(found_namespaces)} namespaces for "
                f"timers of {self.name!r}; give one of each for every timer, or one time and one namespace "
                "for all"
            )
        return zip(found_times, found_namespaces, keys, groups, strict=True)

    def _namespace(self, namespace: Any) -> Any:
        if not self._is_namespace(namespace):
            self._refuse(namespace)
        return namespace if self._canonical is None else self._canonical(namespace)

    def _refuse(self, namespace: Any) -> None:
        try:
            self.namespace_serializer.check(namespace)
        except ValueTypeError as error:
            raise InvalidTimerNamespaceError(self.name, namespace, str(error)) from None

    # -- firing -------------------------------------------------------------------------------------------

    def advance_watermark(self, time: int) -> None:
        """Move event time forward and call the target for each timer that is due, in the order of time.

        Timers that the target registers meanwhile fire too if they are due.  At the final watermark,
        `END_OF_TIME`, they are ignored, since a timer that always registers the next one would never end
        (Flink's ``BatchExecutionInternalTimeService``).
        """
        self._backend.advance_watermark(time)
        for timer in self.due_timers(in_event_time=True):
            self.target.on_event_time(timer)

    def advance_processing_time(self, time: int) -> None:
        """Move processing time forward and call the target for each timer that is due."""
        self._clock.set_processing_time(time)
        for timer in self.due_timers(in_event_time=False):
            self.target.on_processing_time(timer)

    def _domain(self, *, in_event_time: bool) -> tuple[TimerQueue, int]:
        """Return the timers of a time domain, and its time."""
        if in_event_time:
            return self._event, self.current_watermark
        return self._processing, self.current_processing_time

    def due_timers(self, *, in_event_time: bool) -> Generator[Timer, None, None]:
        """Take and yield the timers up to the time of a domain, each with its key as the current key.

        A caller that stops early loses none; another call continues.
        """
        current = self._current
        queue, until = self._domain(in_event_time=in_event_time)
        with self._clock.firing(until):
            for time, namespace, key, key_group in queue.poll(until):
                current.key, current.key_group = key, key_group
                self.fired += 1
                yield Timer(time, key, namespace)

    def due_timers_together(self, *, in_event_time: bool) -> Generator[DueTimers, None, None]:
        """Take and yield the timers that are due, those of one time and namespace together.

        The current key does not change.
        """
        queue, until = self._domain(in_event_time=in_event_time)
        with self._clock.firing(until):
            for due in queue.poll_together(until):
                self.fired += len(due)
                yield due

    # -- looking ------------------------------------------------------------------------------------------

    def num_event_time_timers(self, namespace: Any = None) -> int:
        """Return the number of event-time timers, of one namespace or of all."""
        return _count(self._event, namespace)

    def num_processing_time_timers(self, namespace: Any = None) -> int:
        """Return the number of processing-time timers, of one namespace or of all."""
        return _count(self._processing, namespace)

    def for_each_event_time_timer(self, function: Callable[[Any, int], None]) -> None:
        """Call ``function(namespace, time)`` for each event-time timer, with its key as the current key.

        The function may register and delete timers.  The current key is restored afterwards.
        """
        self._for_each(self._event, function)

    def for_each_processing_time_timer(self, function: Callable[[Any, int], None]) -> None:
        """Call ``function(namespace, time)`` for each processing-time timer, as for event time."""
        self._for_each(self._processing, function)

    def _for_each(self, queue: TimerQueue, function: Callable[[Any, int], None]) -> None:
        current = self._current
        before = current.key, current.key_group
        try:
            for time, namespace, current.key, current.key_group in list(queue):
                function(namespace, time)
        finally:
            current.key, current.key_group = before

    def event_time_timers(self, key_group: int) -> set[Timer]:
        """Return the event-time timers of a key group of this instance; raises `KeyGroupOutOfRangeError`."""
        return self._of_group(self._event, key_group)

    def processing_time_timers(self, key_group: int) -> set[Timer]:
        """Return the processing-time timers of a key group, as `event_time_timers` does."""
        return self._of_group(self._processing, key_group)

    def _of_group(self, queue: TimerQueue, key_group: int) -> set[Timer]:
        if key_group not in self._backend.key_groups:
            raise KeyGroupOutOfRangeError(key_group, self._backend.key_groups)
        return {Timer(time, key, namespace) for time, namespace, key, group in queue if group == key_group}

    def write_back(self) -> None:
        """Write the changes since the last call into the tables."""
        self._event.write_back()
        self._processing.write_back()


def _count(queue: TimerQueue, namespace: Any) -> int:
    if namespace is None:
        return len(queue)
    return sum(1 for _, found, _, _ in queue if found == namespace)


def _checked_time(time: Any) -> int:
    """Return a time as a plain integer, or raise `InvalidTimerTimeError`."""
    try:
        if isinstance(time, (bool, np.bool_)):
            raise TypeError
        # Of pandas' NaT this is no whole number.
        found = index(milliseconds_of(time) if isinstance(time, dt.datetime) else time)
    except TypeError:
        raise InvalidTimerTimeError(time) from None
    if not BEFORE_TIME <= found <= END_OF_TIME:
        raise InvalidTimerTimeError(time)
    return found
