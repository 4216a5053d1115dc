"""All timer services over one keyed backend, which share its times."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any

from keyedstate.errors import InvalidTimerNamespaceError
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.time.clock import TimerClock
from keyedstate.time.service import Timer, TimerService, TimerTarget
from keyedstate.types import VOID, TypeSerializer


class TimerServices:
    """All timer services over one keyed backend (Flink's ``InternalTimeServiceManager``).

    Parameters
    ----------
    backend : KeyedStateBackend
        It has one `TimerServices` at a time: another one takes the place of the first, whose timers that were
        not captured are gone.
    """

    def __init__(self, backend: KeyedStateBackend) -> None:
        self._backend = backend
        self._clock = TimerClock(backend)
        self._services: dict[str, TimerService] = {}
        backend.write_back = self._write_back

    def service(
        self,
        name: str,
        target: TimerTarget,
        namespace_serializer: TypeSerializer[Any] = VOID,
    ) -> TimerService:
        """Return the service of a name, with the timers that were restored; make it at the first look-up.

        Parameters
        ----------
        name : str
        target : TimerTarget
            Is told of the service's timers from now on.
        namespace_serializer : TypeSerializer, optional
            Without it `VOID_NAMESPACE` is the only namespace.

        Raises
        ------
        InvalidTimerNamespaceError
            Where the service has another type of namespaces.
        StateMigrationError
            Where restored timers have keys or namespaces of another type (TM-14).
        """
        known = self._services.get(name)
        if known is None:
            known = TimerService(self._clock, self._backend, name, namespace_serializer, target)
            self._services[name] = known
        elif known.namespace_serializer != namespace_serializer:
            reason = f"its namespaces are {known.namespace_serializer!r}; choose another name, or that type"
            raise InvalidTimerNamespaceError(name, namespace_serializer, reason)
        known.target = target
        return known

    @property
    def watermark(self) -> int:
        """The event time up to which all rows have come, as timers see it."""
        return self._clock.watermark

    def end_event_time(self) -> None:
        """Let timers see the final watermark, without firing; states see the one that they saw."""
        self._clock.event_time_over = True

    @property
    def processing_time(self) -> int:
        """The processing time that was set last; what the backend's clock says where none was."""
        return self._clock.processing_time

    def set_processing_time(self, time: int) -> None:
        """Move processing time forward without firing; it never goes back."""
        self._clock.set_processing_time(time)

    def begin_epoch(self, processing_time: int) -> None:
        """Set the processing time of an epoch, without firing."""
        self._clock.begin_epoch(processing_time)

    def due_event_time_timers(self) -> Generator[tuple[TimerTarget, Timer], None, None]:
        """Take and yield the timers up to the watermark, service by service, each with who is to be told."""
        for service in list(self._services.values()):
            for timer in service.due_event_time_timers():
                yield service.target, timer

    def due_processing_time_timers(self) -> Generator[tuple[TimerTarget, Timer], None, None]:
        """Take and yield the timers up to the processing time, as `due_event_time_timers` does."""
        for service in list(self._services.values()):
            for timer in service.due_processing_time_timers():
                yield service.target, timer

    def firing(self, until: int) -> AbstractContextManager[None]:
        """Return a context around firing timers up to a time: at the end of all time none is registered."""
        return self._clock.firing(until)

    def advance_watermark(self, time: int) -> None:
        """Move event time forward and fire what is due, service by service."""
        for service in list(self._services.values()):
            service.advance_watermark(time)

    def advance_processing_time(self, time: int) -> None:
        """Move processing time forward and fire what is due, service by service."""
        for service in list(self._services.values()):
            service.advance_processing_time(time)

    def _write_back(self) -> None:
        for service in self._services.values():
            service.write_back()
