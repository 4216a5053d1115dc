"""The first Ctrl-C of runs, which ends them at a checkpoint."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, ClassVar


class StopRequest:
    """A context in which the first Ctrl-C is a request, and the second one interrupts.

    A program may read the rows of several runs in turn: the first Ctrl-C is a request to all of them.
    """

    #: All that wait for Ctrl-C, in whatever order their runs end.
    _waiting: ClassVar[set[StopRequest]] = set()
    #: The handler from before the first of them.
    _before: ClassVar[Any] = None

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> StopRequest:
        handler = signal.getsignal(signal.SIGINT)
        # Only the main thread is interrupted. None is the handler of a program that embeds Python.
        if threading.current_thread() is threading.main_thread() and handler is not None:
            if handler is not _request:
                StopRequest._before = signal.signal(signal.SIGINT, _request)
            self._waiting.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.discard(self)
        # Only the main thread may set handlers: after a run that another one ends, the next Ctrl-C does.
        if not self._waiting and threading.current_thread() is threading.main_thread():
            _restore()


def _restore() -> None:
    # The program may have set a handler of its own meanwhile.
    if signal.getsignal(signal.SIGINT) is _request:
        signal.signal(signal.SIGINT, StopRequest._before)


def _request(number: int, frame: FrameType | None) -> None:
    _restore()
    if not StopRequest._waiting:
        signal.raise_signal(number)
    for each in StopRequest._waiting:
        each.requested = True
    StopRequest._waiting.clear()
