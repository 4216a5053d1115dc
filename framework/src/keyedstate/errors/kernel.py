"""The root of every error that keyedstate raises, and the errors of the kernel.

An error carries its facts as attributes, so that a program can react to them, and a message that
names the thing and ends with the way out, so that a person can.  Errors of one subject live with
their subject (``types``, ``checkpoint``, ``spark`` ...); they all derive from `KeyedStateError`.
"""

from __future__ import annotations

import difflib
import json
import re
from ast import literal_eval
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any

_STOP_AFTER_MARK = re.compile(r"(\.{3}|[?!]|(?<!\.)\.)\.(?=\s|$)")


class KeyedStateError(Exception):
    """Base class of all keyedstate errors; survives pickling with its attributes."""

    def __init__(self, message: str = "") -> None:
        super().__init__(_STOP_AFTER_MARK.sub(r"\1", message))

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle as `type(*args)`, which fails for an __init__ that takes facts and not the
        # message; errors cross process borders here (worker to driver), so attributes are put back.
        return _rebuild_error, (type(self), self.args, self.__dict__.copy())


def _rebuild_error(
    cls: type[KeyedStateError], args: tuple[Any, ...], facts: dict[str, Any]
) -> KeyedStateError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


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


# -- configuration ---------------------------------------------------------------------------------


class ConfigError(KeyedStateError):
    """Base class of configuration mistakes."""


class UnknownOptionError(ConfigError):
    """A key under our prefix that no option has.

    Attributes
    ----------
    key : str
        The key as the user wrote it.
    source : str
        Where it was read: ``Spark configuration``, ``environment``, a file's name, ...
    """

    def __init__(self, key: str, source: str, known: Sequence[str]) -> None:
        self.key = key
        self.source = source
        bare = key.removeprefix("spark.keyedstate.")
        if bare in known:
            super().__init__(
                f"unknown option {key!r} in the {source}: names have no prefix here. Give it as {bare!r}."
            )
            return
        hint = did_you_mean(key, known) or did_you_mean(bare, known)
        hint = hint or f" Known options: {', '.join(sorted(known))}."
        super().__init__(
            f"unknown option {key!r} in the {source}.{hint} Correct the name or remove it; "
            "`keyedstate doctor` lists every option."
        )


class InvalidOptionError(ConfigError):
    """An option whose value cannot be read as its type, or lies outside its bounds."""

    def __init__(self, key: str, value: object, expected: str, source: str) -> None:
        self.key = key
        self.value = value
        self.expected = expected
        self.source = source
        super().__init__(f"option {key!r} has the value {value!r} in the {source}; give {expected}.")


class MissingOptionError(ConfigError):
    """An option without a default that is needed and was not given."""

    def __init__(self, key: str, purpose: str) -> None:
        self.key = key
        self.purpose = purpose
        super().__init__(
            f"option {key!r} is needed and not set: {purpose} Set it, for example with --conf {key}=..."
        )


# -- plugins ---------------------------------------------------------------------------------------


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


class PluginError(KeyedStateError):
    """Base class of errors about discovering, choosing and calling plugins."""


class UnknownBackendError(PluginError):
    """No plugin of that name is installed or registered.

    Attributes
    ----------
    name : str
        The name as the user wrote it.
    installed : tuple of str
        The names that could have been chosen.
    extra : str or None
        The extra of `keyedstate` that installs the backend, or one whose name is close.
    """

    def __init__(self, name: str, installed: Sequence[str], extra: str | None) -> None:
        self.name = name
        self.installed = tuple(installed)
        self.extra = extra
        have = f"Installed: {', '.join(installed)}." if installed else "No backend is installed."
        if extra is not None:
            way_out = f"Install {extra} with `pip install 'keyedstate[{extra}]'`."
        else:
            way_out = (
                "Install the distribution that provides it, or name its module in the option "
                "'plugins.modules', or choose one that is installed with the option 'backend'."
            )
        hint = "" if name == extra else did_you_mean(name, [*installed, *([extra] if extra else [])])
        super().__init__(f"unknown state backend {name!r}.{hint} {have} {way_out}")


class DuplicateBackendError(PluginError):
    """Two plugins claim one name.

    Attributes
    ----------
    name : str
        The claimed name.
    providers : tuple of str
        The claimants, each ``distribution version``.
    """

    def __init__(self, name: str, providers: Sequence[str]) -> None:
        self.name = name
        self.providers = tuple(providers)
        super().__init__(
            f"the backend name {name!r} is provided by {' and by '.join(self.providers)}. "
            f"{choose_among(self.providers)}."
        )


class PluginNotAllowedError(PluginError):
    """A plugin that the allow or deny list keeps out."""

    def __init__(self, name: str, option: str, listed: Sequence[str], is_backend: bool = True) -> None:
        self.name = name
        self.option = option
        verb = "does not contain it" if option == "plugins.allow" else "contains it"
        super().__init__(
            f"the {'backend' if is_backend else 'plugin'} {name!r} may not be used: the option {option!r} "
            f"{verb} ({', '.join(listed)}). Change that list{' or choose another backend' * is_backend}."
        )


class HookApiVersionError(PluginError):
    """A plugin written for other versions of the hooks than this kernel calls."""

    def __init__(
        self, name: str, provider: str, plugin_range: tuple[int, int], kernel_range: tuple[int, int]
    ) -> None:
        self.name = name
        self.provider = provider
        self.plugin_range = plugin_range
        self.kernel_range = kernel_range
        older = plugin_range[1] < kernel_range[0]
        way_out = f"Upgrade {provider.split()[0]}." if older else "Upgrade keyedstate."
        super().__init__(
            f"the backend {name!r} of {provider} supports the hook API versions "
            f"{plugin_range[0]} to {plugin_range[1]}; this keyedstate supports {kernel_range[0]} to "
            f"{kernel_range[1]}. {way_out}"
        )


class InvalidPluginError(PluginError):
    """A plugin that cannot be imported, lacks a required hook, or returns the wrong thing from one."""

    def __init__(self, name: str, provider: str, reason: str, is_backend: bool = True) -> None:
        self.name = name
        self.provider = provider
        self.reason = reason
        steps = ["Repair it", "take it out of the option 'plugins.modules'"]
        if not provider.endswith("(module)"):
            steps = ["Repair or uninstall it"]
        if is_backend:
            steps.append("choose another backend with the option 'backend'")
        super().__init__(f"the plugin {name!r} of {provider} is unusable: {reason}. {', or '.join(steps)}.")


class MissingCapabilityError(PluginError):
    """A state that wants something which the chosen backend does not do."""

    def __init__(self, state: str, capability: str, level: str, backend: str, able: Sequence[str]) -> None:
        self.state = state
        self.capability = capability
        self.level = level
        self.backend = backend
        others = f"Backends that do: {', '.join(able)}." if able else "No installed backend does."
        super().__init__(
            f"the state {state!r} needs {capability}, which the backend {backend!r} claims as "
            f"{level!r}. {others} Choose one with the option 'backend', or declare another kind of state."
        )


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
