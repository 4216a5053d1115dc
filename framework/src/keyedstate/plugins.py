"""Plugins: how they are discovered, checked and called, and how a backend is chosen among them."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

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
    StateMeta,
    StateTable,
)
from keyedstate.config import (
    BACKEND,
    PLUGINS_ALLOW,
    PLUGINS_DENY,
    PLUGINS_MODULES,
    PLUGINS_PREFER,
    ConfigOption,
    Configuration,
)
from keyedstate.errors import (
    DuplicateBackendError,
    HookApiVersionError,
    InvalidPluginError,
    MissingCapabilityError,
    PluginError,
    PluginNotAllowedError,
    UnknownBackendError,
    closest_names,
    did_you_mean,
)
from keyedstate.types import register_serializer_type

_log = logging.getLogger(__name__)

#: Backends of this repository that a user may not have installed, with the extra that brings each.
_EXTRAS = ("heap-cow", "nested-map", "rocksdb")
_REQUIRED_HOOKS = (
    "keyedstate_describe_backend",
    "keyedstate_create_state_table",
    "keyedstate_create_snapshot_strategy",
    "keyedstate_create_restore_operation",
)
#: The hooks of which any is enough for a module that describes no backend.
_FREE_HOOKS = ("keyedstate_checkpoint_storage", "keyedstate_metric_reporter")


@dataclass(frozen=True)
class Provider:
    """Where a plugin comes from.

    Attributes
    ----------
    name : str
        The backend's name; of a plugin that is no backend, the entry point's or the module's.
    distribution, version : str
        The installed distribution, or the module's name and ``(module)`` for a registered one.
    load : callable
        Imports and returns the module with the hook implementations.
    """

    name: str
    distribution: str
    version: str
    load: Callable[[], object]

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


class Backend:
    """One usable backend: its description and its hooks.

    Made by `PluginRegistry`; everything above the kernel holds this and no plugin module.
    """

    def __init__(
        self,
        provider: Provider,
        description: BackendDescription,
        hook: Callable[[str], Any],
        able: Callable[[Capability], Sequence[str]],
    ) -> None:
        self.provider = provider
        self.description = description
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
        table: AnyStateTable = self._hook("keyedstate_create_state_table")(meta=meta, context=context)
        self._check(table, StateTable, "keyedstate_create_state_table")
        return table

    def create_snapshot_strategy(self, context: BackendContext) -> SnapshotStrategy:
        """Call ``keyedstate_create_snapshot_strategy``."""
        strategy: SnapshotStrategy = self._hook("keyedstate_create_snapshot_strategy")(context=context)
        self._check(strategy, SnapshotStrategy, "keyedstate_create_snapshot_strategy")
        return strategy

    def create_restore_operation(
        self, handles: Sequence[StateHandle], context: BackendContext
    ) -> RestoreOperation:
        """Call ``keyedstate_create_restore_operation``."""
        operation: RestoreOperation = self._hook("keyedstate_create_restore_operation")(
            handles=handles, context=context
        )
        self._check(operation, RestoreOperation, "keyedstate_create_restore_operation")
        return operation

    def create_spill_manager(self, context: BackendContext) -> SpillManager | None:
        """Call ``keyedstate_create_spill_manager``; None where the plugin has none."""
        manager: SpillManager | None = self._hook("keyedstate_create_spill_manager")(context=context)
        if manager is not None:
            self._check(manager, SpillManager, "keyedstate_create_spill_manager")
        return manager

    def require(self, capability: Capability, state: str) -> None:
        """Refuse a state that wants what the backend lacks.

        Raises
        ------
        MissingCapabilityError
            Names the state, the claimed level and the installed backends that can.
        """
        level = self.description.level(capability)
        if not level.usable:
            able = self._able(capability)
            raise MissingCapabilityError(state, capability.value, level.value, self.name, able)

    def checkpoint_completed(self, uid: str, epoch: int, location: str, data_files: Collection[str]) -> None:
        """Call ``keyedstate_checkpoint_completed``."""
        self._tell(
            "keyedstate_checkpoint_completed", uid=uid, epoch=epoch, location=location, data_files=data_files
        )

    def checkpoint_aborted(self, uid: str, epoch: int, reason: str) -> None:
        """Call ``keyedstate_checkpoint_aborted``."""
        self._tell("keyedstate_checkpoint_aborted", uid=uid, epoch=epoch, reason=reason)

    def checkpoint_subsumed(self, uid: str, epoch: int) -> None:
        """Call ``keyedstate_checkpoint_subsumed``."""
        self._tell("keyedstate_checkpoint_subsumed", uid=uid, epoch=epoch)

    def _tell(self, hook: str, **facts: object) -> None:
        """Call a hook that only learns something: what it raises must not look like a failed checkpoint."""
        try:
            self._hook(hook)(**facts)
        except Exception:
            _log.exception("the hook %s of %s raised", hook, self.provider)

    def _check(self, result: object, expected: type, hook: str) -> None:
        if not isinstance(result, expected):
            reason = f"its hook {hook} returned {type(result).__name__} and not a {expected.__name__}"
            raise InvalidPluginError(self.name, str(self.provider), reason)


class PluginRegistry:
    """The plugins of one process.

    Parameters
    ----------
    config : Configuration
        Read for the choice, the lists and the modules to register.
    installed : callable, optional
        Gives the entry points; the ones of the environment by default.

    Notes
    -----
    A plugin is imported when it is needed, so a broken one hurts only those who choose it.
    """

    def __init__(
        self, config: Configuration, *, installed: Callable[[], Sequence[EntryPoint]] | None = None
    ) -> None:
        self._config = config
        self._manager = pluggy.PluginManager(hooks.PROJECT)
        self._manager.add_hookspecs(hooks)
        self._backends: dict[Provider, Backend] = {}
        self._providers: list[Provider] = []
        #: Plugins that are no backends, and those of them that were imported and checked.
        self._others: list[Provider] = []
        self._checked: set[Provider] = set()
        self._registered: list[object] = []
        entries = installed() if installed is not None else _installed_entry_points()
        self._discovered = {entry.value for entry in entries}
        backends = {entry.value for entry in entries if entry.group != hooks.PLUGIN_GROUP}
        for entry in entries:
            if entry.group == hooks.PLUGIN_GROUP and entry.value in backends:
                continue
            dist = entry.dist
            name, version = (
                (dist.name, dist.version) if dist is not None else (entry.value, "(no distribution)")
            )
            of_group = self._others if entry.group == hooks.PLUGIN_GROUP else self._providers
            of_group.append(Provider(entry.name, name, version, entry.load))
        for module in config[PLUGINS_MODULES]:
            self.register(_import(module))

    def register(self, module: object) -> None:
        """Register a module (or any object) with hook implementations at run time.

        It lives in this process only; a Spark job names the module in ``plugins.modules`` instead, so
        that its tasks register it too.  A module that is registered or installed already is left as it is.

        Raises
        ------
        InvalidPluginError
            Where it neither describes a backend nor has a hook that other plugins may have.
        """
        origin = getattr(module, "__name__", type(module).__name__)
        if origin in self._discovered or any(module is other for other in self._registered):
            return
        if not hasattr(module, "keyedstate_describe_backend") and any(
            hasattr(module, hook) for hook in _FREE_HOOKS
        ):
            self._registered.append(module)
            self._others.append(Provider(origin, origin, "(module)", lambda: module))
            return
        description = _describe(module, origin, f"{origin} (module)")
        self._registered.append(module)
        self._providers.append(Provider(description.name, origin, "(module)", lambda: module))

    def providers(self) -> list[Provider]:
        """Return every discovered plugin, usable or not, by name."""
        return sorted(self._providers, key=lambda provider: (provider.name, provider.distribution))

    def load(self, provider: Provider) -> Backend:
        """Import and check one plugin.

        Raises
        ------
        InvalidPluginError
            Where it cannot be imported, lacks a required hook or has one that does not exist.
        HookApiVersionError
            Where it was written for other hook API versions.
        """
        backend = self._backends.get(provider)
        if backend is None:
            backend = self._backends[provider] = self._load(provider)
        return backend

    def choose(self, name: str | None = None) -> Backend:
        """Return the backend of a name; by default the one that the configuration names.

        Raises
        ------
        UnknownBackendError
            Where nothing of that name is installed or registered.
        DuplicateBackendError
            Where several are, and ``plugins.prefer`` names none or more than one of them.
        PluginNotAllowedError
            Where the allow or deny list keeps it out.
        InvalidPluginError, HookApiVersionError
            As `load` raises them.
        """
        name = self._config[BACKEND] if name is None else name
        claimants = [provider for provider in self._providers if provider.name == name]
        if not claimants:
            known = sorted({provider.name for provider in self._providers})
            # Also one that is misspelt: what it may mean is not installed either.
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
                raise DuplicateBackendError(name, [str(provider) for provider in allowed])
            allowed = winners
        return self.load(allowed[0])

    def preferred(self, providers: Sequence[Provider]) -> list[Provider]:
        """Return those of some plugins whose distributions the option ``plugins.prefer`` names."""
        listed = self._config[PLUGINS_PREFER]
        return [provider for provider in providers if _listed(provider.distribution, listed)]

    def refusal(self, provider: Provider) -> PluginError | None:
        """Return why a plugin cannot be chosen (not allowed, broken, ...), or None where it can."""
        refusal: PluginError | None = self._refusal(provider)
        if refusal is not None:
            return refusal
        try:
            self.load(provider)
        except PluginError as error:
            return error
        return None

    def callers(
        self, hook: str, unusable: list[PluginError]
    ) -> Iterator[tuple[Provider, Callable[..., list[Any]]]]:
        """Yield every usable plugin, backend or not, with a function that calls its hook of that name.

        Parameters
        ----------
        hook : str
        unusable : list of PluginError
            Gets why a plugin is passed over: it is not allowed, or broken.
        """
        for provider in sorted((*self._providers, *self._others), key=str):
            try:
                refusal = self._refusal(provider)
                if refusal is not None:
                    raise refusal
                if provider in self._others:
                    self._check_other(provider)
                else:
                    self.load(provider)
            except PluginError as error:
                unusable.append(error)
                continue
            yield provider, self._only(provider)(hook)

    def options(self) -> dict[str, tuple[ConfigOption[Any], ...] | None]:
        """Return the options of every plugin by backend name; None for one that cannot be chosen."""
        options: dict[str, tuple[ConfigOption[Any], ...] | None] = dict.fromkeys(
            provider.name for provider in self._providers
        )
        for backend in self._usable():
            options[backend.name] = backend.description.options
        return options

    def able(self, capability: Capability) -> list[str]:
        """Return the names of the usable backends that have a capability."""
        usable = (backend for backend in self._usable() if backend.description.level(capability).usable)
        return sorted({backend.name for backend in usable})

    def _usable(self) -> Iterator[Backend]:
        for provider in self._providers:
            if self.refusal(provider) is None:
                yield self.load(provider)

    def _refusal(self, provider: Provider) -> PluginNotAllowedError | None:
        names = (provider.name, provider.distribution)
        allow, deny = self._config[PLUGINS_ALLOW], self._config[PLUGINS_DENY]
        if any(_listed(name, deny) for name in names):
            return PluginNotAllowedError(provider.name, PLUGINS_DENY.name, deny)
        if allow and not any(_listed(name, allow) for name in names):
            return PluginNotAllowedError(provider.name, PLUGINS_ALLOW.name, allow)
        return None

    def _check_other(self, provider: Provider) -> None:
        if provider not in self._checked:
            module = _loaded(provider)
            _check_hooks(module, None, lambda reason: _invalid(provider, reason))
            self._register(module, provider)
            self._checked.add(provider)

    def _load(self, provider: Provider) -> Backend:
        module = _loaded(provider)
        description = _describe(module, provider.name, str(provider))
        if description.name != provider.name:
            raise _invalid(
                provider, f"it calls itself {description.name!r}, but is registered as {provider.name!r}"
            )
        # Before the hooks are looked at: another API version may have others, and that is not their fault.
        oldest, newest = description.hook_api
        if newest < hooks.HOOK_API[0] or oldest > hooks.HOOK_API[1]:
            raise HookApiVersionError(provider.name, str(provider), description.hook_api, hooks.HOOK_API)
        for hook in _REQUIRED_HOOKS:
            if not hasattr(module, hook):
                raise _invalid(provider, f"it lacks the required hook {hook}")
        _check_hooks(module, description, lambda reason: _invalid(provider, reason))
        for option in description.options:
            if not option.name.startswith(f"{provider.name}."):
                raise _invalid(provider, f"its option {option.name!r} does not begin with '{provider.name}.'")
        self._register(module, provider)
        return Backend(provider, description, self._only(provider), self.able)

    def _register(self, module: object, provider: Provider) -> None:
        try:
            self._manager.register(module, name=_key(provider))
            for serializers in self._only(provider)("keyedstate_serializers")():
                for name, factory in serializers.items():
                    register_serializer_type(name, factory)
        except Exception as error:  # what pluggy refuses, and whatever a stranger's function raises
            # Older pluggy keeps what it refused, and would then complain of the name at the next attempt.
            if self._manager.has_plugin(_key(provider)):
                self._manager.unregister(name=_key(provider))
            # On one line: pluggy's own text has several.
            raise _invalid(provider, " ".join(f"{type(error).__name__}: {error}".split())) from error

    def _only(self, provider: Provider) -> Callable[[str], Any]:
        def hook(name: str) -> Any:
            # Made at every call: plugins that register later must not slip into an older subset.
            others = [plugin for other, plugin in self._manager.list_name_plugin() if other != _key(provider)]
            return self._manager.subset_hook_caller(name, remove_plugins=others)

        return hook


def _key(provider: Provider) -> str:
    # One distribution may have several plugins.
    return f"{provider.name} of {provider}"


def _invalid(provider: Provider, reason: str) -> InvalidPluginError:
    return InvalidPluginError(provider.name, str(provider), reason)


def _loaded(provider: Provider) -> object:
    try:
        return provider.load()
    except (Exception, SystemExit) as error:  # whatever a stranger's module raises while it is imported
        raise _invalid(provider, f"importing it failed with {type(error).__name__}: {error}") from error


def _describe(module: object, name: str, provider: str) -> BackendDescription:
    hook = "keyedstate_describe_backend"
    if not hasattr(module, hook):
        raise InvalidPluginError(name, provider, f"it lacks the required hook {hook}")
    try:
        description = getattr(module, hook)()
    except Exception as error:  # whatever a stranger's function raises
        reason = f"its hook {hook} failed with {type(error).__name__}: {error}"
        raise InvalidPluginError(name, provider, reason) from error
    if not isinstance(description, BackendDescription):
        reason = f"its hook {hook} returned {type(description).__name__} and not a BackendDescription"
        raise InvalidPluginError(name, provider, reason)
    return description


def _check_hooks(
    module: object, description: BackendDescription | None, invalid: Callable[[str], InvalidPluginError]
) -> None:
    known = [name for name in vars(hooks) if name.startswith("keyedstate_")]
    # A plugin that serves newer versions too may have hooks that this kernel does not know yet.
    serves_newer = description is not None and description.hook_api[1] > hooks.HOOK_API[1]
    for name in dir(module):
        # Only functions: the name of a package that a plugin imports may begin with keyedstate_ as well.
        if not name.startswith("keyedstate_") or not inspect.isroutine(getattr(module, name)):
            continue
        if name not in known and not serves_newer:
            raise invalid(f"it implements {name}, which is no hook.{did_you_mean(name, known)}")
        if name in known and not hasattr(getattr(module, name), f"{hooks.PROJECT}_impl"):
            raise invalid(f"its function {name} is not marked with @hookimpl")


def _listed(name: str, names: Sequence[str]) -> bool:
    # Distributions are one whether written my_backend, My-Backend or my.backend (PEP 503).
    return _normalized(name) in map(_normalized, names)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed_entry_points() -> Sequence[EntryPoint]:
    # A distribution can be found twice (an editable install beside its build metadata); one counts.
    unique = {
        (group, entry.name, entry.value, entry.dist.name if entry.dist is not None else ""): entry
        for group in (hooks.ENTRY_POINT_GROUP, hooks.PLUGIN_GROUP)
        for entry in entry_points(group=group)
    }
    return list(unique.values())


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever a stranger's module raises while it is imported
        reason = (
            f"the option {PLUGINS_MODULES.name!r} names it, but importing it failed with "
            f"{type(error).__name__}: {error}"
        )
        raise InvalidPluginError(name, f"{name} (module)", reason) from error
