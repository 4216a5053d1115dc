"""Options: their declaration, and one reader for all the sources in which they are set.

`keyedstate.options` and the plugins declare the options.  An option is set, in falling precedence, by an
explicit mapping, by Spark's configuration (``spark.keyedstate.<name>``), by the environment
(``KEYEDSTATE_<NAME>``, dots and dashes as underscores) or by a TOML file (table ``[keyedstate]``).  An
unknown key is an error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from keyedstate.durations import milliseconds
from keyedstate.errors import (
    ConfigError,
    InvalidDurationError,
    InvalidOptionError,
    MissingOptionError,
    UnknownOptionError,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

SPARK_PREFIX = "spark.keyedstate."
ENVIRONMENT_PREFIX = "KEYEDSTATE_"
#: Environment variables with the prefix that are switches of builds and tests.
_NOT_OPTIONS = (
    "KEYEDSTATE_HEAP_COW_PURE",
    "KEYEDSTATE_PURE",
    "KEYEDSTATE_REQUIRE_COMPILED",
    "KEYEDSTATE_TEST_",
)


@dataclass(frozen=True)
class ConfigOption(Generic[T_co]):
    """One option."""

    #: Lower case, dots between subjects, dashes inside words: ``checkpoint.dir``.
    name: str
    #: Returns the value of a string, or of an object of the right type; raises ValueError.
    parse: Callable[[object], T_co]
    #: None without a default.
    default: T_co | None
    #: The accepted values in words, for errors and docs: ``a whole number of at least 1``.
    expected: str
    #: What the option does.
    text: str


def string(name: str, default: str | None, text: str, expected: str = "a string") -> ConfigOption[str]:
    """Return an option whose value is a non-empty string."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise ValueError
        return value.strip()

    return ConfigOption(name, parse, default, expected, text)


def choice(name: str, default: str, choices: Sequence[str], text: str) -> ConfigOption[str]:
    """Return an option whose value is one of a few words."""

    def parse(value: object) -> str:
        word = value.strip() if isinstance(value, str) else value
        if word not in choices:
            raise ValueError
        return cast(str, word)

    return ConfigOption(name, parse, default, f"one of {', '.join(choices)}", text)


def integer(
    name: str, default: int | None, text: str, *, low: int, high: int | None = None
) -> ConfigOption[int]:
    """Return an option whose value is a whole number between two bounds, both included."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise ValueError
        number = int(value)
        if number < low or (high is not None and number > high):
            raise ValueError
        return number

    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
    return ConfigOption(name, parse, default, f"a whole number {bounds}", text)


def fraction(name: str, default: float, text: str) -> ConfigOption[float]:
    """Return an option whose value is a number between 0 and 1."""

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        number = float(value)
        if not 0.0 <= number <= 1.0:
            raise ValueError
        return number

    return ConfigOption(name, parse, default, "a number between 0 and 1", text)


def duration(name: str, default_ms: int, text: str, *, low_ms: int = 0) -> ConfigOption[int]:
    """Return an option whose value is a duration in milliseconds."""

    def parse(value: object) -> int:
        if isinstance(value, str) and value.strip().isdecimal():
            value = int(value)
        try:
            length = milliseconds(value)
        except InvalidDurationError:
            raise ValueError from None
        if length < low_ms:
            raise ValueError
        return length

    at_least = f" of at least {low_ms} ms" if low_ms else ""
    expected = f"a duration{at_least}, such as '10 min', or milliseconds"
    return ConfigOption(name, parse, default_ms, expected, text)


def boolean(name: str, default: bool, text: str) -> ConfigOption[bool]:
    """Return an option that is on or off."""

    def parse(value: object) -> bool:
        word = value.strip().lower() if isinstance(value, str) else value
        if not isinstance(word, bool) and word not in ("true", "false"):
            raise ValueError
        return word in ("true", True)

    return ConfigOption(name, parse, default, "true or false", text)


@dataclass(frozen=True)
class _Setting:
    value: object
    key: str
    source: str


class Settings:
    """The options that were set, and where; values are parsed when they are read with ``[]``.

    They come from a mapping of option names without prefix, Spark's configuration and environment variables,
    of which those without our prefix are ignored, and a TOML file with a table ``[keyedstate]``, where nested
    tables and dotted keys both work.

    Raises `UnknownOptionError` where a declared option is misspelt. A name with a dot whose first word begins
    no declared option may belong to a plugin: `plugin_options` checks it when the plugins are known. Raises
    `ConfigError` where the TOML file cannot be read.
    """

    #: The options that exist without any plugin; a subclass names them.
    declared: ClassVar[Sequence[ConfigOption[Any]]] = ()

    def __init__(
        self,
        explicit: Mapping[str, object] | None = None,
        *,
        spark: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        toml: Path | None = None,
    ) -> None:
        self._names = frozenset(option.name for option in self.declared)
        self._settings: dict[str, _Setting] = {}
        # Lowest precedence first: a later source overwrites.
        if toml is not None:
            for name, value in _flatten(_read_toml(toml)).items():
                self._settings[name] = _Setting(value, name, f"file {toml}")
        self._environ = {
            key: value
            for key, value in (environ or {}).items()
            if key.startswith(ENVIRONMENT_PREFIX) and not key.startswith(_NOT_OPTIONS)
        }
        self._read_environment(self.declared)
        for key, text in (spark or {}).items():
            if key.startswith(SPARK_PREFIX):
                name = key[len(SPARK_PREFIX) :]
                self._settings[name] = _Setting(text, key, "Spark configuration")
        for name, value in (explicit or {}).items():
            self._settings[name] = _Setting(value, name, "call")
        self._check_declared_names()

    def __getitem__(self, option: ConfigOption[T]) -> T:
        value = self.get(option)
        if value is None:
            raise MissingOptionError(SPARK_PREFIX + option.name, option.text)
        return value

    def get(self, option: ConfigOption[T]) -> T | None:
        """Return the option's value or default; None where it has neither.

        Raises `InvalidOptionError` where the option does not accept the value.
        """
        setting = self._settings.get(option.name)
        if setting is None:
            return option.default
        try:
            return option.parse(setting.value)
        except (ValueError, TypeError):
            raise InvalidOptionError(setting.key, setting.value, option.expected, setting.source) from None

    def plugin_options(
        self, installed: Callable[[], Mapping[str, Sequence[ConfigOption[Any]] | None]], backend: str
    ) -> dict[str, Any]:
        """Return the values of one backend's options, and check the names of all plugin options.

        `installed` returns the options of every installed backend by its name, None for an unusable one. The
        values of other backends' options are not checked: switching the backend must not make a configuration
        invalid. Raises `UnknownOptionError` where a name belongs to no installed plugin.
        """
        options = {name: plugin for name, plugin in installed().items() if plugin is not None}
        # The options of an unusable plugin are unknown, and the chosen one must work nevertheless.
        unusable = tuple(f"{name}." for name, plugin in installed().items() if plugin is None)
        known = {option.name for plugin in options.values() for option in plugin}
        self._read_environment(option for plugin in options.values() for option in plugin)
        for key in self._environ:
            if not key.startswith(tuple(map(_environment_name, unusable))):
                names = sorted(_environment_name(name) for name in known | self._names)
                raise UnknownOptionError(key, "environment", names)
        for name, setting in self._settings.items():
            if name not in self._names and name not in known and not name.startswith(unusable):
                raise _unknown(setting, name, known | self._names)
        return {option.name: self.get(option) for option in options.get(backend, ())}

    def source(self, option: ConfigOption[Any]) -> str | None:
        """Return where the option was set, or None where it was not."""
        setting = self._settings.get(option.name)
        return None if setting is None else setting.source

    def to_dict(self) -> dict[str, object]:
        """Return the settings by option name: what a task gets as `explicit`."""
        return {name: setting.value for name, setting in self._settings.items()}

    def _read_environment(self, options: Iterable[ConfigOption[Any]]) -> None:
        for option in options:
            key = _environment_name(option.name)
            text = self._environ.pop(key, None)
            # Only a file has a lower precedence than the environment.
            if text is not None and self._settings.get(option.name, _FILE).source.startswith("file"):
                self._settings[option.name] = _Setting(text, key, "environment")

    def _check_declared_names(self) -> None:
        subjects = {name.split(".", 1)[0] for name in self._names}
        for name, setting in self._settings.items():
            subject = name.split(".", 1)[0]
            if name not in self._names and ("." not in name or subject in subjects):
                raise _unknown(setting, name, self._names)


_FILE = _Setting(None, "", "file")


def _unknown(setting: _Setting, name: str, known: Iterable[str]) -> UnknownOptionError:
    prefix = setting.key[: len(setting.key) - len(name)]
    return UnknownOptionError(setting.key, setting.source, sorted(prefix + candidate for candidate in known))


def _environment_name(option: str) -> str:
    return ENVIRONMENT_PREFIX + re.sub(r"[.-]", "_", option).upper()


def _read_toml(path: Path) -> dict[str, object]:
    file = f"the configuration file {path}"
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}. Check its path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}. Correct it.") from error
    table = document.get("keyedstate")
    if not isinstance(table, dict):
        raise ConfigError(f"{file} has no table [keyedstate]. Put the options under one.")
    return table


def _flatten(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in table.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
