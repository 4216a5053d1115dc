"""How an error of a host becomes the same error in the task: as text, since no pickle is taken from it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keyedstate.errors import HostedEpochError, KeyedStateError, UserFunctionError, user_function_error
from keyedstate.runtime.failures import report_of

#: Of each text, so that a frame holds it whatever its letters; the end of a traceback says most.
_MAX_CHARACTERS = 30_000


class HostTraceback(Exception):
    """The cause of an error that was raised in a host: its traceback there."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


@dataclass(frozen=True)
class Failure:
    """An error of a host.

    Attributes
    ----------
    module, kind, message : str
        Its class and text.
    facts : mapping
        Those of its attributes that are numbers and strings.
    trace : str
        The traceback of what has caused it or, where nothing has, its own.
    """

    module: str
    kind: str
    message: str
    facts: Mapping[str, Any]
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return what the task is told of an error."""
        cause = error if error.__cause__ is None else error.__cause__
        message = report_of(error) if isinstance(error, UserFunctionError) else str(error)
        facts = {
            name: value
            for name, value in vars(error).items()
            if value is None or isinstance(value, (str, int, float))
        }
        return cls(
            type(error).__module__,
            type(error).__qualname__,
            message[:_MAX_CHARACTERS],
            {name: value[:1000] if isinstance(value, str) else value for name, value in facts.items()},
            "".join(traceback.format_exception(cause))[-_MAX_CHARACTERS:],
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON face."""
        return {
            "module": self.module,
            "kind": self.kind,
            "message": self.message,
            "facts": self.facts,
            "trace": self.trace,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Failure:
        """Rebuild from the JSON face; KeyError where a field is missing."""
        return cls(**{name: document[name] for name in cls.__dataclass_fields__})

    def error(self) -> BaseException:
        """Return the error to raise: of keyedstate's own classes the same one, with its text and facts."""
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
        error.__cause__ = HostTraceback(self.trace)
        return error
