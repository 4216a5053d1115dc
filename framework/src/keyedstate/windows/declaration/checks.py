"""Checks of the parts that windows are declared with; each raises `InvalidWindowError`."""

from __future__ import annotations

from keyedstate.durations import milliseconds
from keyedstate.errors import InvalidWindowError, forgotten_call


def positive(part: str, what: str, duration: object) -> int:
    """Return a duration in milliseconds, at least one."""
    ms = milliseconds(duration)
    if ms <= 0:
        raise InvalidWindowError(part, f"{what} is {duration!r}", "Give at least one millisecond: '1 hour'.")
    return ms


def whole(part: str, what: str, number: object) -> int:
    """Return a number of rows, at least one."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InvalidWindowError(part, f"{what} is {number!r}", "Give a whole number of at least 1.")
    return number


def check_function(part: str, what: str, given: object) -> None:
    """Refuse what cannot be called."""
    if not callable(given):
        raise InvalidWindowError(part, f"{what} is {given!r}", "Give a function.")


def check_delta(part: str, threshold: object, delta_function: object) -> None:
    """Refuse a threshold that is no number, or a function that is none."""
    if not isinstance(threshold, (int, float)) or isinstance(threshold, bool) or threshold != threshold:
        raise InvalidWindowError(part, f"the threshold is {threshold!r}", "Give a number.")
    check_function(part, "the delta function", delta_function)


def check_instance(kind: type, part: str, given: object, noun: str, example: str) -> None:
    """Refuse what is given for a part, such as "the evictor", and is of another kind than `noun` names."""
    if not isinstance(given, kind):
        raise InvalidWindowError(
            part, f"it is {given!r}, which is no {noun}{forgotten_call(given)}", f"Give one as {example}."
        )
