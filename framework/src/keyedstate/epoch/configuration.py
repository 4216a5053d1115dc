"""The configuration of a keyed operator and its backend: chosen by the driver, read by its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from keyedstate.backend import Capability
from keyedstate.checkpoint import BaseRules, CheckpointStorage, SavepointRestore
from keyedstate.config import TIMERS_QUEUE, TYPES_GENERIC, Configuration
from keyedstate.plugins import Backend, PluginRegistry
from keyedstate.state import LatencySampling
from keyedstate.time import check_timer_queue


@dataclass(frozen=True)
class ChosenBackend:
    """A backend with the values of its options, and what concerns states on every backend.

    Attributes
    ----------
    backend : Backend
    options : mapping
    generic_types : bool
        The option ``types.generic``.
    base_rules : BaseRules
        When a task writes its whole state.
    latency : LatencySampling or None
        How accesses to states are sampled, where they are.
    timer_queue : str
        The option ``timers.queue``.
    """

    backend: Backend
    options: Mapping[str, Any]
    generic_types: bool
    base_rules: BaseRules
    latency: LatencySampling | None
    timer_queue: str


def choose_backend(config: Configuration) -> ChosenBackend:
    """Return the configured backend and check the names of all plugin options.

    Raises
    ------
    PluginError, UnknownOptionError, InvalidOptionError, UnorderedTimersError
    """
    registry = PluginRegistry(config)
    backend = registry.choose()
    options = config.plugin_options(registry.options, backend.name)
    in_order = backend.description.level(Capability.TIMERS_IN_ORDER).usable
    check_timer_queue(config[TIMERS_QUEUE], backend.name, in_order=in_order)
    return ChosenBackend(
        backend,
        options,
        config[TYPES_GENERIC] == "allow",
        BaseRules.of(config),
        LatencySampling.of(config),
        config[TIMERS_QUEUE],
    )


@lru_cache(maxsize=8)
def configuration_in_task(settings: tuple[tuple[str, Any], ...]) -> Configuration:
    """Return the options that the driver has resolved, from ``frozen(config)`` of them.

    A worker process serves many tasks, so the last few configurations are kept, here and below.
    """
    return Configuration(dict(settings))


@lru_cache(maxsize=8)
def backend_in_task(settings: tuple[tuple[str, Any], ...]) -> ChosenBackend:
    """Return the backend of settings; a backend holds no state.

    Discovering plugins takes milliseconds.
    """
    return choose_backend(configuration_in_task(settings))


@lru_cache(maxsize=8)
def restore_in_task(settings: tuple[tuple[str, Any], ...]) -> SavepointRestore:
    """Return what the options ``restore.*`` say."""
    return SavepointRestore.of(configuration_in_task(settings))


@lru_cache(maxsize=8)
def storage_in_task(uri: str, settings: tuple[tuple[str, Any], ...]) -> CheckpointStorage:
    """Return the storage of a URI.

    Raises
    ------
    CheckpointError, PluginError
    """
    return CheckpointStorage.open(uri, configuration_in_task(settings))


def frozen(config: Configuration) -> tuple[tuple[str, Any], ...]:
    """Return the settings in a form that can be hashed and sent to tasks."""
    settings = config.to_dict()
    return tuple((name, _hashable(value)) for name, value in sorted(settings.items()))


def _hashable(value: object) -> object:
    if isinstance(value, Mapping):
        return tuple(value.items())
    return tuple(value) if isinstance(value, list) else value
