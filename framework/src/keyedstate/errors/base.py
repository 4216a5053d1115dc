"""The root of every error that keyedstate raises, and the words that errors share.

An error carries its facts as attributes, so that a program can react to them, and a message that
names the thing and ends with the way out, so that a person can.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import get_annotations
from string import Formatter
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

if TYPE_CHECKING:
    # In the standard library from Python 3.11 on.
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        """Return the class as it is."""
        return lambda cls: cls


_STOP_AFTER_MARK = re.compile(r"(\.{3}|[?!]|(?<!\.)\.)\.(?=\s|$)")
#: Names that an error lists of many.
_LISTED = 10

_Error = TypeVar("_Error", bound="KeyedStateError")


@dataclass_transform(eq_default=False)
class KeyedStateError(Exception):
    """Base class of all keyedstate errors; survives pickling with its attributes.

    A subclass is a data class: a docstring, the facts as fields, and `message`, a format string over them::

        class UnknownStateError(CheckpointError):
            \"\"\"A state name that a checkpoint does not have.\"\"\"

            state: str
            known: Sequence[str]
            message = "there is no state {state!r}.{state:~known}{known:? It has {known}.}"

    In addition to `str.format`, ``{known}`` lists the names of a sequence, ``{known: or }`` with another
    separator, ``{known:...}`` the first ten; ``{key:repr}`` is a short `repr`; ``{known:?text}`` is the text
    where the fact is neither None nor empty nor False, ``{known:|text}`` where it is; ``{state:~known}``
    suggests names of `known` that are near.  A class whose message takes more than that overrides `_message`.
    """

    message: ClassVar[str] = ""

    def __new__(cls: type[_Error], *facts: object, **named: object) -> _Error:
        """Make the class a data class first."""
        # Not when the class is made: an import would make all of them data classes, which takes longer than
        # the rest of the import, and a process raises few.
        for one in reversed(cls.__mro__):
            if issubclass(one, KeyedStateError) and get_annotations(one) and "__init__" not in vars(one):
                dataclass(eq=False, repr=False)(one)
        return super().__new__(cls, *facts, **named)

    def __init__(self, message: str = "") -> None:
        super().__init__(_STOP_AFTER_MARK.sub(r"\1", message or self._message()))

    def __post_init__(self) -> None:
        for fact in fields(cast(Any, self)):
            if str(fact.type).startswith("Sequence"):
                setattr(self, fact.name, tuple(getattr(self, fact.name)))
        KeyedStateError.__init__(self)

    def _message(self) -> str:
        return _Sentences(self).format(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle as `type(*args)`, which fails for an __init__ that takes facts and not the
        # message; errors cross process borders here (worker to driver), so attributes are put back.
        return _rebuild_error, (type(self), self.args, self.__dict__.copy())


class MissingPackageError(KeyedStateError, ImportError):
    """Packages that a part of keyedstate needs are not installed."""

    needed_by: str
    packages: Sequence[str]
    extra: str  # The extra of keyedstate that installs them
    where: str = "for it"  # Where they must be installed
    message = (
        "{needed_by} needs {packages: and }, which this Python lacks. "
        "Run `pip install 'keyedstate[{extra}]'` {where}."
    )


def _rebuild_error(cls: type[_Error], args: tuple[Any, ...], facts: dict[str, Any]) -> _Error:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class _Sentences(Formatter):
    """Formats the message of an error."""

    def __init__(self, error: KeyedStateError) -> None:
        self._error = error

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return getattr(self._error, str(key))

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if isinstance(value, tuple) and conversion == "r":
            return tuple(map(repr, value))
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "repr":
            return shortened(value)
        kind, text = format_spec[:1], format_spec[1:]
        if kind in ("?", "|"):
            absent = value is None or value is False or value in ("", ())
            return text if absent == (kind == "|") else ""
        if kind == "~":
            return did_you_mean(str(value), getattr(self._error, text))
        if isinstance(value, tuple):
            return first_of(value) if format_spec == "..." else (format_spec or ", ").join(map(str, value))
        if value is None and format_spec:
            # Inside of a text that is left out.
            return ""
        return str(super().format_field(value, format_spec))


def first_of(names: Sequence[object]) -> str:
    """Return the first ten names and how many there are besides."""
    rest = len(names) - _LISTED
    shown = ", ".join(map(str, names[:_LISTED]))
    return f"{shown} and {rest} more" if rest > 0 else shown


def shortened(value: object) -> str:
    """Return the repr of a value, cut in the middle: a key or value may be megabytes long."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:50]}...{text[-25:]}"


def described(error: BaseException) -> str:
    """Return an error of another library as ``ValueError: its text``."""
    return f"{type(error).__name__}: {error}"


def closest_names(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three of the known names that are near `name`, the best first."""
    ends = {one.removeprefix("spark.keyedstate."): one for one in known}
    near = difflib.get_close_matches(name.removeprefix("spark.keyedstate."), ends, n=3, cutoff=0.73)
    return [ends[end] for end in near]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'a' or 'b'?"``, or an empty string where nothing looks like `name`."""
    names = " or ".join(map(repr, closest_names(name, known)))
    return f" Did you mean {names}?" if names else ""


def forgotten_call(given: object) -> str:
    """Return ``"; did you forget ()?"`` for a class or a function where an object is needed, or nothing."""
    return "; did you forget ()?" if isinstance(given, (type, FunctionType)) else ""


def choose_among(providers: Sequence[str]) -> str:
    """Return what a user does about plugins, each ``distribution version``, that provide the same thing."""
    modules = [provider for provider in providers if provider.endswith("(module)")]
    if len(modules) == len(providers):
        return (
            "Take all but one out of the option 'plugins.modules', or put the name of the one that you want "
            "into the option 'plugins.prefer'"
        )
    way_out = "Uninstall one or take it out of the option 'plugins.modules'" if modules else "Uninstall one"
    named = "distribution or module" if modules else "distribution"
    return f"{way_out}, or put the name of the {named} that you want into the option 'plugins.prefer'"
