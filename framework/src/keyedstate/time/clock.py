"""The times that the timer services of one operator share, and whether its input has ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from keyedstate.state.clock import END_OF_TIME
from keyedstate.state.registry.keyed_backend import KeyedStateBackend


class TimerClock:
    """The times by which timers fire; the backend's clock gives processing time until one is set."""

    def __init__(self, backend: KeyedStateBackend) -> None:
        #: Whether the timers at the end of time are firing; registering is ignored then.
        self.ending = False
        #: Whether the input has ended, so that timers see the final watermark.  States do not, because what
        #: expires in event time would be gone before the last timers can read it.
        self.event_time_over = False
        self._backend = backend
        self._processing_time: int | None = None

    @property
    def watermark(self) -> int:
        """The event time up to which all rows have come; -2**63 where none is known."""
        return END_OF_TIME if self.event_time_over else self._backend.watermark

    @property
    def processing_time(self) -> int:
        """The processing time in milliseconds that was set last; else that of the backend's clock."""
        return self._backend.clock() if self._processing_time is None else self._processing_time

    def set_processing_time(self, time: int) -> None:
        """Move processing time forward, without firing; it never goes back."""
        before = self._processing_time
        self._processing_time = time if before is None else max(time, before)

    def begin_epoch(self, processing_time: int) -> None:
        """Set the processing time of an epoch; it goes back where the clock of the last one was wrong."""
        self._processing_time = processing_time

    @contextlib.contextmanager
    def firing(self, until: int) -> Iterator[None]:
        """Return a context for firing timers up to a time: at the end of time none is registered."""
        before = self.ending
        self.ending = before or until == END_OF_TIME
        try:
            yield
        finally:
            self.ending = before
