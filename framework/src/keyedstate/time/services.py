"""All timer services over one keyed backend, which share its times."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from keyedstate.errors import InvalidTimerNamespaceError
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.time.clock import TimerClock
from keyedstate.time.service import Timer, TimerService, TimerTarget
from keyedstate.types import VOID, TypeSerializer


class TimerServices:
    """All timer services over one keyed backend (Flink's ``InternalTimeServiceManager``).

    A backend has one `TimerServices` at a time: another one replaces the first, whose timers are lost unless
    they were captured.
    """

    def __init__(self, backend: KeyedStateBackend) -> None:
        #: The times of all services.
        self.clock = TimerClock(backend)
        self._backend = backend
        self._services: dict[str, TimerService] = {}
        backend.write_back = self._write_back

    @property
    def has_services(self) -> bool:
        """Whether any timer may exist."""
        return bool(self._services)

    def service(
        self,
        name: str,
        target: TimerTarget,
        namespace_serializer: TypeSerializer[Any] = VOID,
    ) -> TimerService:
        """Return the service of a name with its restored timers, whose target is `target` from now on.

        The first call creates it; without a serializer `VOID_NAMESPACE` is the only namespace. Raises
        `InvalidTimerNamespaceError` where the service has another type of namespaces, and
        `StateMigrationError` where restored timers have keys or namespaces of another type (TM-14).
        """
        known = self._services.get(name)
        if known is None:
            known = TimerService(self.clock, self._backend, name, namespace_serializer, target)
            self._services[name] = known
        elif known.namespace_serializer != namespace_serializer:
            reason = f"its namespaces are {known.namespace_serializer!r}; choose another name, or that type"
            raise InvalidTimerNamespaceError(name, namespace_serializer, reason)
        known.target = target
        return known

    def due_timers(self, *, in_event_time: bool) -> Generator[tuple[TimerTarget, Timer], None, None]:
        """Take and yield the timers up to the time of a domain with their targets, service by service."""
        for service in list(self._services.values()):
            for timer in service.due_timers(in_event_time=in_event_time):
                yield service.target, timer

    def advance_watermark(self, time: int) -> None:
        """Move event time forward and fire the timers that are due, service by service."""
        for service in list(self._services.values()):
            service.advance_watermark(time)

    def advance_processing_time(self, time: int) -> None:
        """Move processing time forward and fire the timers that are due, service by service."""
        for service in list(self._services.values()):
            service.advance_processing_time(time)

    def _write_back(self) -> None:
        for service in self._services.values():
            service.write_back()
