"""The report of an error of a user's function: its own lines first, and then where it was raised."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Iterator
from itertools import dropwhile
from typing import Any

from keyedstate import version
from keyedstate.errors import FACTS, StateError, UserFunctionError
from keyedstate.runtime.functions.keyed import Context, KeyedFunction
from keyedstate.state import StateAccessor

#: The longest text of an error, of a key and of a traceback; the middle of a longer one is left out.
MAX_ERROR, MAX_KEY, MAX_TRACE = 4_000, 1_000, 12_000

_OF_A_KEY = frozenset(("process", "process1", "process2", "on_timer"))
_FRAMEWORK = os.path.dirname(version.__file__) + os.sep


class RemoteTraceback(Exception):
    """The cause of an error that was raised in another process: its traceback there."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def user_function_error_of(
    function: KeyedFunction, step: str, context: Context, error: BaseException, time: int | None = None
) -> UserFunctionError:
    """Return the error to raise for an error in the method `step` of a user's function.

    `context` has the key and the epoch, and `time` is that of the timer, if any.
    """
    facts = {
        "error": _cut(_described(error), MAX_ERROR),
        "trace": _cut("".join(_trace(error)).rstrip("\n"), MAX_TRACE),
        "function": type(function).__name__,
        "step": step,
        "key": context.key,
        "epoch": context.epoch,
        "time": time,
        "state": _state_of(error),
        "uid": None,
    }
    return UserFunctionError(f"{facts['error']}. {_place(facts)}", facts)


def report_of(error: UserFunctionError) -> str:
    """Return an error as text, from which `keyedstate.errors.user_function_error` rebuilds it."""
    facts = dict(vars(error))
    parts = {name: facts.pop(name) for name in ("error", "trace")} | {"place": _place(facts)}
    text, spans = "", {}
    for name, part in parts.items():
        spans[name] = (len(text), len(text) + len(part))
        text += f"{part}\n" if part else ""
    # Counted from the end: a log may have any text before it.
    spans = {name: (len(text) - start, len(text) - stop) for name, (start, stop) in spans.items()}
    facts |= {"key": _key_text(error.key), "spans": spans}
    return f"{text}{FACTS}{json.dumps(facts)}"


def _place(facts: dict[str, Any]) -> str:
    words = [f"Raised in {facts['function']}.{facts['step']}()"]
    if facts["state"] is not None:
        words.append(f"by the state {facts['state']!r}")
    # `end_epoch` of a vectorised function has no key.
    if facts["step"] in _OF_A_KEY or (facts["step"] == "end_epoch" and facts["key"] is not None):
        words.append(f"for the key {_key_text(facts['key'])}")
    if facts["time"] is not None:
        words.append(f"and its timer at {facts['time']}")
    if facts["epoch"] is not None:
        words.append(f"in epoch {facts['epoch']}")
    if facts["uid"] is not None:
        words.append(f"of the operator {facts['uid']!r}")
    return f"{' '.join(words)}; nothing of this attempt is kept."


def _key_text(key: object) -> str:
    return _cut(repr(key), MAX_KEY)


def _described(error: BaseException) -> str:
    """Return the error as Python prints it, with its notes."""
    lines = traceback.TracebackException(type(error), error, None).format_exception_only()
    return "".join(lines).rstrip("\n")


def _trace(error: BaseException) -> Iterator[str]:
    """Yield the frames of an error and, with theirs, the errors that caused it, each of them once."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if seen:
            yield f"Caused by {_cut(_described(cause), MAX_ERROR)}\n"
        seen.add(id(cause))
        yield from _frames(cause)
        for part in getattr(cause, "exceptions", ()):
            if isinstance(part, BaseException):
                yield f"One of its errors: {_cut(_described(part), MAX_ERROR)}\n"
                yield from _frames(part)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _frames(error: BaseException) -> list[str]:
    """Return the lines of a traceback from the first frame outside the framework on."""
    frames = dropwhile(
        lambda frame: frame.filename.startswith(_FRAMEWORK), traceback.extract_tb(error.__traceback__)
    )
    return traceback.StackSummary.from_list(frames).format()


def _state_of(error: BaseException) -> str | None:
    """Return the name of the state that raised an error, or in whose method it was raised."""
    if isinstance(error, StateError):
        return getattr(error, "state", None)
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        accessor = frame.f_locals.get("self")
        if isinstance(accessor, StateAccessor):
            found = accessor.name
    return found


def _cut(text: str, most: int) -> str:
    """Return a text that any encoding can represent, without its middle if it is too long."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} [{len(text) - 2 * half} characters left out] {text[-half:]}"
