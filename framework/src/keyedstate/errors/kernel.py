"""Errors about options, backends and plugins."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors.base import KeyedStateError, choose_among, did_you_mean

# -- configuration ---------------------------------------------------------------------------------


class ConfigError(KeyedStateError):
    """Base class of configuration mistakes."""


class UnknownOptionError(ConfigError):
    """A key under our prefix that no option has."""

    key: str  # The key as the user wrote it
    source: str  # Where it was read: ``Spark configuration``, ``environment``, a file's name
    known: Sequence[str]

    def _message(self) -> str:
        bare = self.key.removeprefix("spark.keyedstate.")
        unknown = f"unknown option {self.key!r} in the {self.source}"
        if bare in self.known:
            return f"{unknown}: names have no prefix here. Give it as {bare!r}."
        hint = did_you_mean(self.key, self.known) or did_you_mean(bare, self.known)
        hint = hint or f" Known options: {', '.join(sorted(self.known))}."
        return f"{unknown}.{hint} Correct the name or remove it; `keyedstate doctor` lists every option."


class InvalidOptionError(ConfigError):
    """An option whose value cannot be read as its type, or is outside its bounds."""

    key: str
    value: object
    expected: str
    source: str
    message = "option {key!r} has the value {value!r} in the {source}; give {expected}."


class MissingOptionError(ConfigError):
    """An option without a default that is needed and was not given."""

    key: str
    purpose: str
    message = "option {key!r} is needed and not set: {purpose} Set it, for example with --conf {key}=..."


# -- plugins ---------------------------------------------------------------------------------------


class PluginError(KeyedStateError):
    """Base class of errors about discovering, choosing and calling plugins."""


class UnknownBackendError(PluginError):
    """No plugin of that name is installed or registered."""

    name: str  # The name as the user wrote it
    installed: Sequence[str]  # The names that could have been chosen
    extra: str | None  # The extra of `keyedstate` that installs the backend, or one whose name is close

    def _message(self) -> str:
        have = f"Installed: {', '.join(self.installed)}." if self.installed else "No backend is installed."
        way_out = (
            "Install the distribution that provides it, or name its module in the option "
            "'plugins.modules', or choose one that is installed with the option 'backend'."
        )
        known = list(self.installed)
        if self.extra is not None:
            way_out = f"Install {self.extra} with `pip install 'keyedstate[{self.extra}]'`."
            known.append(self.extra)
        hint = "" if self.name == self.extra else did_you_mean(self.name, known)
        return f"unknown state backend {self.name!r}.{hint} {have} {way_out}"


class DuplicateProviderError(PluginError):
    """Several plugins provide the same backend, or open URIs of the same scheme."""

    kind: str  # ``backend`` or ``scheme``
    name: str
    providers: Sequence[str]  # The plugins, each ``distribution version``

    def _message(self) -> str:
        provided = " and by ".join(self.providers)
        return f"the {self.kind} {self.name!r} is provided by {provided}. {choose_among(self.providers)}."


class PluginNotAllowedError(PluginError):
    """A plugin that the allow or deny list keeps out."""

    name: str
    option: str
    first_of: Sequence[str]
    is_backend: bool = True

    def _message(self) -> str:
        kind = "backend" if self.is_backend else "plugin"
        verb = "does not contain it" if self.option == "plugins.allow" else "contains it"
        return (
            f"the {kind} {self.name!r} may not be used: the option {self.option!r} {verb} "
            f"({', '.join(self.first_of)}). Change that list{' or choose another backend' * self.is_backend}."
        )


class HookApiVersionError(PluginError):
    """A plugin written for other versions of the hooks than this kernel calls."""

    name: str
    provider: str
    plugin_range: tuple[int, int]
    kernel_range: tuple[int, int]

    def _message(self) -> str:
        low, high = self.plugin_range
        kernel_low, kernel_high = self.kernel_range
        return (
            f"the backend {self.name!r} of {self.provider} supports the hook API versions {low} to {high}; "
            f"this keyedstate supports {kernel_low} to {kernel_high}. "
            f"Upgrade {self.provider.split()[0] if high < kernel_low else 'keyedstate'}."
        )


class InvalidPluginError(PluginError):
    """A plugin that cannot be imported, lacks a required hook, or returns the wrong thing from one."""

    name: str
    provider: str
    reason: str
    is_backend: bool = True

    def _message(self) -> str:
        steps = ["Repair it", "take it out of the option 'plugins.modules'"]
        if not self.provider.endswith("(module)"):
            steps = ["Repair or uninstall it"]
        if self.is_backend:
            steps.append("choose another backend with the option 'backend'")
        return (
            f"the plugin {self.name!r} of {self.provider} is unusable: {self.reason}. {', or '.join(steps)}."
        )


class MissingCapabilityError(PluginError):
    """A state needs a capability that the chosen backend does not have."""

    state: str
    capability: str
    level: str
    backend: str
    able: Sequence[str]
    message = (
        "the state {state!r} needs {capability}, which the backend {backend!r} claims as {level!r}. "
        "{able:?Backends that do: {able}.}{able:|No installed backend does.} Choose one with the option "
        "'backend', or declare another kind of state."
    )
