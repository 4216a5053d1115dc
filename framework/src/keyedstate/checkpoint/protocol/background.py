"""Work that may come later: jobs in their order, in a thread that lives only while there are some.

The driver publishes a checkpoint while Spark's scheduler waits for it, and that must be short.  What has no
part in correctness, clean-up and the notification of plugins, is done here.
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
    """A queue of jobs.

    Parameters
    ----------
    name : str
        Of the thread.
    limit : int
        Jobs that may wait, besides the one that runs.

    Notes
    -----
    The thread is a daemon and ends with the last job, so that an object which is forgotten leaves none
    behind.  When the process ends, jobs get `EXIT_TIMEOUT` seconds.
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
        """Have a job done; waits while too many are waiting, so that nobody runs away from the clean-up.

        A job that raises is logged, and the next one is done.  Where no thread can be started the job waits
        for the next call that can start one, and nobody waits for it.
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
            except BaseException:  # a plugin may exit; without the thread, whoever waits would wait for ever
                _log.exception("a job of %s raised", self._name)


def _drain_all() -> None:
    deadline = time.monotonic() + EXIT_TIMEOUT
    for background in list(_all):
        if not background.drain(max(deadline - time.monotonic(), 0.0)):
            _log.warning("the process ends before %s has ended", background._name)


atexit.register(_drain_all)
