"""Errors of a host as JSON, and as the same error in the task: a task unpickles nothing from a host."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keyedstate.errors import HostedEpochError, KeyedStateError, UserFunctionError, user_function_error
from keyedstate.runtime.functions.failures import RemoteTraceback, report_of

#: Of each text, so that it fits into a frame in any encoding.
_MAX_CHARACTERS = 30_000


@dataclass(frozen=True)
class Failure:
    """An error of a host."""

    #: Its class and text.
    module: str
    kind: str
    message: str
    #: Its attributes that are numbers and strings.
    facts: Mapping[str, Any]
    #: The traceback of its cause, or its own.
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an error."""
        message = report_of(error) if isinstance(error, UserFunctionError) else str(error)
        facts = {
            name: value[:1000] if isinstance(value, str) else value
            for name, value in vars(error).items()
            if value is None or isinstance(value, (str, int, float))
        }
        # The end of a traceback says most.
        trace = "".join(traceback.format_exception(error.__cause__ or error))[-_MAX_CHARACTERS:]
        kind = type(error)
        return cls(kind.__module__, kind.__qualname__, message[:_MAX_CHARACTERS], facts, trace)

    def error(self) -> BaseException:
        """Return the error to raise: of a class of keyedstate the same one, with its text and facts."""
        if (of_user := user_function_error(self.message)) is not None:
            return of_user
        kind: Any = sys.modules.get(self.module)
        if self.module.partition(".")[0] == "keyedstate":
            for name in self.kind.split("."):
                kind = getattr(kind, name, None)
        error: BaseException
        if isinstance(kind, type) and issubclass(kind, KeyedStateError):
            error = kind.__new__(kind)
            Exception.__init__(error, self.message)
            vars(error).update(self.facts)
        else:
            error = HostedEpochError(self.kind, self.message)
        error.__cause__ = RemoteTraceback(self.trace)
        return error
