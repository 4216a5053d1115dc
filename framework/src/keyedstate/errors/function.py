"""The error of a user's function."""

from __future__ import annotations

import json
from ast import literal_eval
from contextlib import suppress
from typing import Any

from keyedstate.errors.base import KeyedStateError

#: What the last line of a report of a `UserFunctionError` begins with; JSON follows.
FACTS = "keyedstate-facts: "


class UserFunctionError(KeyedStateError):
    """A user's function that raised; in the process where it did so, its own error is the cause.

    Attributes
    ----------
    error, trace, function, step : str
        ``ValueError: no flight 7``, its traceback from the user's code on, the function's class and method.
    key : object
        Whose row or timer it was, or None.  On the driver its `repr`, where that is no Python literal.
    epoch, time : int or None
        None for a batch DataFrame; and the time of the timer.
    state, uid : str or None
        The state in whose method it was; and the operator, which is known in Spark.
    """

    error: str
    trace: str
    function: str
    step: str
    key: object
    epoch: int | None
    time: int | None
    state: str | None
    uid: str | None

    def __init__(self, message: str, facts: dict[str, Any]) -> None:
        vars(self).update(facts)
        super().__init__(message)


def user_function_error(error: BaseException | str | None) -> UserFunctionError | None:
    """Return the error of a user's function behind what ``query.exception()`` returns or an action raises.

    The text of an error will do, too.  An error of anything else gives None.
    """
    if error is None or isinstance(error, UserFunctionError):
        return error
    end = (text := str(error)).find(FACTS)
    if end < 0:
        return None if isinstance(error, str) else user_function_error(error.__cause__ or error.__context__)
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        facts: dict[str, Any] = json.JSONDecoder().raw_decode(text, end + len(FACTS))[0]
        facts |= {name: text[end - start : end - stop] for name, (start, stop) in facts.pop("spans").items()}
        with suppress(ValueError, SyntaxError):
            facts["key"] = literal_eval(facts["key"])
        return UserFunctionError(f"{facts['error']}. {facts.pop('place')}", facts)
    return None
