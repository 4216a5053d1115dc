"""Plugins: how they are discovered, checked and called, and how a backend is chosen among them."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import EntryPoint
from typing import Any, cast

import pluggy

from keyedstate import hooks
from keyedstate.backend import (
    AnyStateTable,
    BackendContext,
    BackendDescription,
    Capability,
    RestoreOperation,
    SnapshotStrategy,
    SpillManager,
    StateHandle,
    StateKind,
    StateMeta,
    StateTable,
)
from keyedstate.config import ConfigOption
from keyedstate.entry_points import installed_entry_points
from keyedstate.errors import (
    DuplicateProviderError,
    HookApiVersionError,
    InvalidPluginError,
    MissingCapabilityError,
    PluginError,
    PluginNotAllowedError,
    UnknownBackendError,
    closest_names,
    did_you_mean,
)
from keyedstate.options import (
    BACKEND,
    PLUGINS_ALLOW,
    PLUGINS_DENY,
    PLUGINS_MODULES,
    PLUGINS_PREFER,
    Configuration,
)
from keyedstate.types import register_serializer_type

_log = logging.getLogger(__name__)

#: Backends of this repository that may not be installed; each has an extra of its name.
_EXTRAS = ("heap-cow", "nested-map", "rocksdb", "spillable")
_REQUIRED_HOOKS = (
    "keyedstate_describe_backend",
    "keyedstate_create_state_table",
    "keyedstate_create_snapshot_strategy",
    "keyedstate_create_restore_operation",
)
#: Every hook by name, and whether it is called in the chosen backend alone; others are called in all plugins.
_HOOKS = {
    name: bool(spec.keyedstate_spec["firstresult"])
    for name, spec in vars(hooks).items()
    if name.startswith("keyedstate_")
}
#: The registries of this process that are in use.
registries: weakref.WeakSet[PluginRegistry] = weakref.WeakSet()


@dataclass(frozen=True)
class Provider:
    """Where a plugin comes from."""

    #: The backend's name; of a plugin that is no backend, the entry point's or the module's.
    name: str
    #: The installed distribution, or the module's name and ``(module)`` for a registered one.
    distribution: str
    version: str
    #: Imports and returns the module with the hook implementations.
    load: Callable[[], object]
    is_backend: bool

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"

    def invalid(self, reason: str) -> InvalidPluginError:
        """Return the error for an unusable plugin."""
        return InvalidPluginError(self.name, str(self), reason, self.is_backend)


class Backend:
    """One usable backend: its description and its hooks.

    `PluginRegistry` makes it.  Nothing above the kernel refers to a plugin's module.
    """

    def __init__(
        self,
        provider: Provider,
        description: BackendDescription,
        hooks_of: tuple[str, ...],
        hook: Callable[[str], Any],
        able: Callable[[StateKind], Sequence[str]],
    ) -> None:
        self.provider = provider
        self.description = description
        self.hooks = hooks_of
        self._hook = hook
        self._able = able

    @property
    def name(self) -> str:
        """The name users choose it by."""
        return self.description.name

    def __repr__(self) -> str:
        return f"<Backend {self.name!r} of {self.provider}>"

    def create_state_table(self, meta: StateMeta, context: BackendContext) -> AnyStateTable:
        """Call ``keyedstate_create_state_table``."""
        return cast(AnyStateTable, self._made("state_table", StateTable, meta=meta, context=context))

    def create_snapshot_strategy(self, context: BackendContext) -> SnapshotStrategy:
        """Call ``keyedstate_create_snapshot_strategy``."""
        return cast(SnapshotStrategy, self._made("snapshot_strategy", SnapshotStrategy, context=context))

    def create_restore_operation(
        self, handles: Sequence[StateHandle], context: BackendContext
    ) -> RestoreOperation:
        """Call ``keyedstate_create_restore_operation``."""
        arguments = {"handles": handles, "context": context}
        return cast(RestoreOperation, self._made("restore_operation", RestoreOperation, **arguments))

    def create_spill_manager(self, context: BackendContext) -> SpillManager | None:
        """Call ``keyedstate_create_spill_manager``; None where the plugin has none."""
        return cast(SpillManager | None, self._made("spill_manager", SpillManager, context=context))

    def require(self, kind: StateKind, state: str) -> None:
        """Refuse a state of a kind that the backend does not support.

        Raises `MissingCapabilityError`, which names the claimed level and the installed backends that support
        the kind.
        """
        if not self.description.supports(kind):
            level, able = self.description.level(Capability.STATE_KINDS), self._able(kind)
            raise MissingCapabilityError(state, f"{kind.value} state", level.value, self.name, able)

    def _made(self, what: str, expected: type, **arguments: object) -> Any:
        hook = f"keyedstate_create_{what}"
        made = self._hook(hook)(**arguments)
        if not isinstance(made, expected) and not (made is None and hook not in _REQUIRED_HOOKS):
            found = type(made).__name__
            raise self.provider.invalid(f"its hook {hook} returned {found} and not a {expected.__name__}")
        return made


class PluginRegistry:
    """The plugins of one process, each imported when it is needed: a broken one affects jobs that choose it.

    The configuration names the backend, the allowed and denied plugins, and the modules to register. The
    entry points are those of the environment unless `installed` returns others.
    """

    def __init__(
        self, config: Configuration, *, installed: Callable[[], Sequence[EntryPoint]] | None = None
    ) -> None:
        self._config = config
        self._manager = pluggy.PluginManager(hooks.PROJECT)
        self._manager.add_hookspecs(hooks)
        self._backends: dict[Provider, Backend] = {}
        self._plugins: list[Provider] = []
        #: The hooks of plugins that are no backends, once they were imported and checked.
        self._others: dict[Provider, tuple[str, ...]] = {}
        self._registered: list[object] = []
        groups = hooks.ENTRY_POINT_GROUP, hooks.PLUGIN_GROUP
        entries = installed_entry_points(*groups) if installed is None else installed()
        self._discovered = {entry.value for entry in entries}
        backends = {entry.value for entry in entries if entry.group != hooks.PLUGIN_GROUP}
        for entry in entries:
            is_backend = entry.group != hooks.PLUGIN_GROUP
            if is_backend or entry.value not in backends:
                dist = entry.dist
                origin = (entry.value, "(no distribution)") if dist is None else (dist.name, dist.version)
                self._plugins.append(Provider(entry.name, *origin, entry.load, is_backend))
        for module in config[PLUGINS_MODULES]:
            importing = partial(importlib.import_module, module)
            self.register(_loaded(Provider(module, module, "(module)", importing, False)))
        registries.add(self)

    def register(self, module: object) -> None:
        """Register a module (or any object) with hook implementations at run time.

        The registration is valid in this process only; a Spark job names the module in ``plugins.modules``
        instead, so that its tasks register it too.  A module that is registered or installed is not
        registered again.

        Raises `InvalidPluginError` where it has no hook, or one that does not exist.
        """
        origin = getattr(module, "__name__", type(module).__name__)
        if origin in self._discovered or any(module is other for other in self._registered):
            return
        is_backend = hasattr(module, "keyedstate_describe_backend")
        provider = Provider(origin, origin, "(module)", lambda: module, is_backend)
        if is_backend:
            provider = replace(provider, name=_describe(module, provider).name)
        else:
            _hooks_of_other(module, provider)
        self._registered.append(module)
        self._plugins.append(provider)

    def plugins(self) -> list[Provider]:
        """Return every discovered plugin, usable or not, by name."""
        return sorted(self._plugins, key=lambda provider: (provider.name, provider.distribution))

    def providers(self) -> list[Provider]:
        """Return every discovered backend, usable or not, by name."""
        return [provider for provider in self.plugins() if provider.is_backend]

    def hooks_of(self, provider: Provider) -> tuple[str, ...]:
        """Return the names of a plugin's hooks in the order of their declaration; raises what `load` does."""
        if provider.is_backend:
            return self.load(provider).hooks
        if provider not in self._others:
            module = _loaded(provider)
            found = _hooks_of_other(module, provider)
            self._register(module, provider)
            self._others[provider] = found
        return self._others[provider]

    def load(self, provider: Provider) -> Backend:
        """Import and check one plugin.

        Raises `InvalidPluginError` where it cannot be imported, lacks a required hook or has one that does
        not exist; `HookApiVersionError` where it supports other hook API versions only.
        """
        backend = self._backends.get(provider)
        if backend is None:
            backend = self._backends[provider] = self._load(provider)
        return backend

    def choose(self, name: str | None = None) -> Backend:
        """Return the backend of a name, by default the configured one.

        Raises `UnknownBackendError` where nothing of that name is installed or registered;
        `DuplicateProviderError` where several are, and ``plugins.prefer`` names none or more than one of
        them; `PluginNotAllowedError` where the allow or deny list excludes it; `InvalidPluginError` and
        `HookApiVersionError` as `load` raises them.
        """
        name = self._config[BACKEND] if name is None else name
        claimants = [provider for provider in self.providers() if provider.name == name]
        if not claimants:
            known = sorted({provider.name for provider in self.providers()})
            # Also for a misspelt name, whose backend is not installed either.
            extras = closest_names(name, [extra for extra in _EXTRAS if extra not in known])
            raise UnknownBackendError(name, known, extras[0] if extras else None)
        allowed = [provider for provider in claimants if self._refusal(provider) is None]
        if not allowed:
            refusal = self._refusal(claimants[0])
            assert refusal is not None
            raise refusal
        if len(allowed) > 1:
            winners = self.preferred(allowed)
            if len(winners) != 1:
                raise DuplicateProviderError("backend", name, [str(provider) for provider in allowed])
            allowed = winners
        return self.load(allowed[0])

    def preferred(self, providers: Sequence[Provider]) -> list[Provider]:
        """Return the plugins whose distributions the option ``plugins.prefer`` names."""
        listed = self._config[PLUGINS_PREFER]
        return [provider for provider in providers if _listed(provider.distribution, listed)]

    def refusal(self, provider: Provider) -> PluginError | None:
        """Return why a plugin cannot be chosen (not allowed, broken, ...), or None where it can."""
        refusal: PluginError | None = self._refusal(provider)
        if refusal is not None:
            return refusal
        try:
            self.hooks_of(provider)
        except PluginError as error:
            return error
        return None

    def callers(
        self, hook: str, unusable: list[PluginError]
    ) -> Iterator[tuple[Provider, Callable[..., list[Any]]]]:
        """Yield every usable plugin with a hook of that name, and the function that calls the hook.

        Why a plugin is not usable is appended to `unusable`: it is not allowed, or broken.
        """
        for provider in sorted(self._plugins, key=str):
            refusal = self.refusal(provider)
            if refusal is not None:
                unusable.append(refusal)
                if not provider.is_backend and not isinstance(refusal, PluginNotAllowedError):
                    _warn_once(str(refusal))
            elif hook in self.hooks_of(provider):
                yield provider, self._only(provider)(hook)

    def notify(self, hook: str, **facts: object) -> None:
        """Call a hook in every usable plugin; errors that they raise are logged."""
        for provider, call in self.callers(hook, []):
            try:
                call(**facts)
            except Exception:  # whatever a plugin's function raises
                _log.exception("the hook %s of %s raised", hook, provider)

    def options(self) -> dict[str, tuple[ConfigOption[Any], ...] | None]:
        """Return the options of every plugin by backend name; None for one that cannot be chosen."""
        options: dict[str, tuple[ConfigOption[Any], ...] | None] = dict.fromkeys(
            provider.name for provider in self.providers()
        )
        for backend in self._usable():
            options[backend.name] = backend.description.options
        return options

    def able(self, kind: StateKind) -> list[str]:
        """Return the names of the usable backends that support a kind of state."""
        return sorted({backend.name for backend in self._usable() if backend.description.supports(kind)})

    def _usable(self) -> list[Backend]:
        return [self.load(provider) for provider in self.providers() if self.refusal(provider) is None]

    def _refusal(self, provider: Provider) -> PluginNotAllowedError | None:
        names = (provider.name, provider.distribution)
        allow, deny = self._config[PLUGINS_ALLOW], self._config[PLUGINS_DENY]
        for option, listed, refused in ((PLUGINS_DENY, deny, True), (PLUGINS_ALLOW, allow, False)):
            if listed and any(_listed(name, listed) for name in names) is refused:
                return PluginNotAllowedError(provider.name, option.name, listed, provider.is_backend)
        return None

    def _load(self, provider: Provider) -> Backend:
        module = _loaded(provider)
        description = _describe(module, provider)
        if description.name != provider.name:
            registered = f"but is registered as {provider.name!r}"
            raise provider.invalid(f"it calls itself {description.name!r}, {registered}")
        # Before the hooks: another API version may have other ones.
        oldest, newest = description.hook_api
        if newest < hooks.HOOK_API[0] or oldest > hooks.HOOK_API[1]:
            raise HookApiVersionError(provider.name, str(provider), description.hook_api, hooks.HOOK_API)
        # A plugin that supports newer versions too may have hooks that this kernel does not know.
        found = _hooks_of(module, provider, serves_newer=newest > hooks.HOOK_API[1])
        for hook in _REQUIRED_HOOKS:
            if hook not in found:
                raise provider.invalid(f"it lacks the required hook {hook}")
        for option in description.options:
            if not option.name.startswith(f"{provider.name}."):
                raise provider.invalid(f"its option {option.name!r} does not begin with '{provider.name}.'")
        self._register(module, provider)
        return Backend(provider, description, found, self._only(provider), self.able)

    def _register(self, module: object, provider: Provider) -> None:
        try:
            self._manager.register(module, name=_key(provider))
            for serializers in self._only(provider)("keyedstate_serializers")():
                for name, factory in serializers.items():
                    register_serializer_type(name, factory)
        except Exception as error:  # what pluggy refuses, and whatever a plugin's function raises
            # Older versions of pluggy keep what they refuse, and refuse the name at the next attempt.
            if self._manager.has_plugin(_key(provider)):
                self._manager.unregister(name=_key(provider))
            # On one line: pluggy's own text has several.
            raise provider.invalid(" ".join(f"{type(error).__name__}: {error}".split())) from error

    def _only(self, provider: Provider) -> Callable[[str], Any]:
        def hook(name: str) -> Any:
            # Made at every call, because plugins that register later must not be in the subset.
            others = [plugin for other, plugin in self._manager.list_name_plugin() if other != _key(provider)]
            return self._manager.subset_hook_caller(name, remove_plugins=others)

        return hook


@cache
def _warn_once(text: str) -> None:
    # The refusal of a chosen backend is an error; other plugins are called without a choice.
    _log.warning("%s", text)


def _key(provider: Provider) -> str:
    # One distribution may have several plugins.
    return f"{provider.name} of {provider}"


def _loaded(provider: Provider) -> object:
    try:
        return provider.load()
    except (Exception, SystemExit) as error:  # whatever a plugin's module raises while it is imported
        named = f"the option {PLUGINS_MODULES.name!r} names it, but " * (provider.version == "(module)")
        reason = f"{named}importing it failed with {type(error).__name__}: {error}"
        raise provider.invalid(reason) from error


def _describe(module: object, provider: Provider) -> BackendDescription:
    hook = "keyedstate_describe_backend"
    if not hasattr(module, hook):
        _hooks_of(module, provider)  # raises where its name is misspelt
        raise provider.invalid(f"it lacks the required hook {hook}")
    try:
        description = getattr(module, hook)()
    except Exception as error:  # whatever a plugin's function raises
        raise provider.invalid(f"its hook {hook} failed with {type(error).__name__}: {error}") from error
    if not isinstance(description, BackendDescription):
        found = type(description).__name__
        raise provider.invalid(f"its hook {hook} returned {found} and not a BackendDescription")
    return description


def _hooks_of(module: object, provider: Provider, *, serves_newer: bool = False) -> tuple[str, ...]:
    found = set()
    # Only functions: the name of a package that a plugin imports may begin with keyedstate_ as well.
    for name, function in inspect.getmembers(module, inspect.isroutine):
        marked = hasattr(function, f"{hooks.PROJECT}_impl")
        if name in _HOOKS and not marked:
            raise provider.invalid(f"its function {name} is not marked with @hookimpl")
        if name in _HOOKS:
            found.add(name)
        elif (marked or name.startswith("keyedstate_")) and not serves_newer:
            raise provider.invalid(f"it has the unknown hook {name!r}.{did_you_mean(name, _HOOKS)}")
    return tuple(name for name in _HOOKS if name in found)


def _hooks_of_other(module: object, provider: Provider) -> tuple[str, ...]:
    found = _hooks_of(module, provider)
    if not found:
        raise provider.invalid("it has no hook, which is a function of that name marked with @hookimpl")
    if "keyedstate_describe_backend" in found:
        group = hooks.ENTRY_POINT_GROUP
        raise provider.invalid(f"it is a backend, so its entry point belongs to the group {group!r}")
    if any(map(_HOOKS.get, found)):
        raise provider.invalid("it lacks the required hook keyedstate_describe_backend")
    return found


def _listed(name: str, names: Sequence[str]) -> bool:
    # The names my_backend, My-Backend and my.backend are one distribution (PEP 503).
    return _normalized(name) in map(_normalized, names)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
