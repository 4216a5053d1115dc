"""Errors about running a process function."""

from __future__ import annotations

from keyedstate.errors import KeyedStateError

_OF_A_KEY = frozenset(("process", "process1", "process2", "on_timer"))


class ProcessFunctionError(KeyedStateError):
    """A user's function that raised; the original error is the cause and its traceback is kept.

    Attributes
    ----------
    function : str
        The function's class.
    step : str
        ``open``, ``process``, ``process1``, ``process2``, ``on_timer``, ``process_batch``, ``on_timers``,
        ``end_epoch``, ``process_broadcast`` or ``close``.
    key : object
        The key whose row or timer was being processed; None in the other steps.
    epoch : int or None
        None for a batch DataFrame.
    time : int or None
        The time of the timer, in ``on_timer``.
    """

    def __init__(
        self,
        function: str,
        step: str,
        key: object,
        epoch: int | None,
        error: BaseException,
        time: int | None = None,
    ) -> None:
        self.function = function
        self.step = step
        self.key = key
        self.epoch = epoch
        self.time = time
        where = f" for the key {key!r}" if step in _OF_A_KEY else ""
        if time is not None:
            where += f" and its timer at {time}"
        when = "" if epoch is None else f" in epoch {epoch}"
        super().__init__(
            f"{function}.{step}() raised {type(error).__name__}: {error}{where}{when}. "
            "Its own traceback stands above; nothing of this attempt is kept."
        )


class InvalidFunctionError(KeyedStateError):
    """An object that is no process function, or one whose result is no rows."""

    def __init__(self, function: str, reason: str) -> None:
        self.function = function
        self.reason = reason
        super().__init__(f"{function} cannot be run: {reason}.")
