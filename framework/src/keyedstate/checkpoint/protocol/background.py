"""Jobs that run in order in a background thread, which lives only while there are some.

The driver publishes a checkpoint while Spark's scheduler waits, which must be short.  Clean-up and the
notification of plugins, which correctness does not depend on, run here.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from weakref import WeakSet

_log = logging.getLogger(__name__)

#: Seconds for which the end of the process waits for jobs; what is left undone is found by the next clean-up.
EXIT_TIMEOUT = 30.0

_all: WeakSet[Background] = WeakSet()


class Background:
    """A queue of jobs, of which `limit` may wait besides the one that runs.

    The daemon thread ends with the last job, so an object that is dropped leaves no thread behind.  When the
    process ends, jobs get `EXIT_TIMEOUT` seconds.
    """

    def __init__(self, name: str, limit: int = 8) -> None:
        self._name = name
        self._limit = limit
        self._jobs: deque[Callable[[], None]] = deque()
        # True from the start of a thread until it has seen, under the lock, that there is no job left.
        self._running = False
        self._changed = threading.Condition()
        _all.add(self)

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job; blocks while `limit` jobs wait.

        The error of a job is logged.  Where no thread can be started, the job waits for the next call that
        can start one.
        """
        with self._changed:
            if len(self._jobs) >= self._limit and self._running:
                _log.warning(
                    "%s waits: %d jobs are to be done before, and the storage or a plugin is slow",
                    self._name,
                    len(self._jobs),
                )
                self._changed.wait_for(lambda: len(self._jobs) < self._limit)
            self._jobs.append(job)
            if not self._running:
                try:
                    threading.Thread(target=self._run, name=self._name, daemon=True).start()
                except RuntimeError as error:  # the system has none left, or the interpreter is ending
                    _log.warning("%s waits: no thread can be started (%s)", self._name, error)
                else:
                    # The thread has to wait for the lock before it looks.
                    self._running = True

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all jobs are done; False where they are not after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._running = False
                    self._changed.notify_all()
                    return
                job = self._jobs.popleft()
                self._changed.notify_all()
            try:
                job()
            # A plugin may exit; without the thread, `submit` and `drain` would block for ever.
            except BaseException:
                _log.exception("a job of %s raised", self._name)


def _drain_all() -> None:
    deadline = time.monotonic() + EXIT_TIMEOUT
    for background in list(_all):
        if not background.drain(max(deadline - time.monotonic(), 0.0)):
            _log.warning("the process ends before %s has ended", background._name)


atexit.register(_drain_all)
