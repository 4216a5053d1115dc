"""Calls in new processes, which load the modules of keyedstate once for all of them."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

#: A call that has not ended by then is killed: a machine with forty runnable processes needs a minute.
_TIMEOUT_S = 600
#: These take a second to import: the server of new processes has them, and forks.
_PRELOADED = ["keyedstate.testing.crashing"]


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes
    ----------
    exit_code : int
        As `multiprocessing.Process.exitcode`: negative is the number of a signal.
    result : object
        What the function returned; None if it did not return.
    error : str
        The traceback of the function's error.
    """

    exit_code: int
    result: Any
    error: str


def call_in_new_process(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Ended:
    """Call a function in a new process and wait for its end.

    The process shares nothing with this one: it is forked from a server that has imported modules only.

    Parameters
    ----------
    function : callable
        Can be pickled, as its arguments and its result.

    Raises
    ------
    TimeoutError
        If the process does not end within ten minutes; it is killed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(theirs, function, arguments, keywords))
    process.start()
    theirs.close()
    with ours:
        if not ours.poll(_TIMEOUT_S):
            process.kill()
            raise TimeoutError(f"{function} did not end within {_TIMEOUT_S} seconds.")
        try:
            result, error = ours.recv()
        except EOFError:  # it was killed
            result, error = None, ""
    process.join()
    assert process.exitcode is not None
    return Ended(process.exitcode, result, error)


def _call(
    outcome: Connection, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    with outcome:
        try:
            outcome.send((function(*arguments, **keywords), ""))
        except BaseException:
            outcome.send((None, traceback.format_exc()))
            raise SystemExit(1) from None
