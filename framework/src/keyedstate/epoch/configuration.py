"""The configuration of a keyed operator and its backend: chosen by the driver, read by its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from keyedstate.backend import Capability
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.savepoint.restore import SavepointRestore
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import check_parallelism, default_max_parallelism
from keyedstate.options import (
    MAX_PARALLELISM,
    TIMERS_QUEUE,
    TYPES_GENERIC,
    Configuration,
    managed_memory,
)
from keyedstate.plugins import PluginRegistry
from keyedstate.state.registry.chosen_backend import ChosenBackend
from keyedstate.state.registry.latency import LatencySampling
from keyedstate.time import check_timer_queue


def choose_backend(config: Configuration) -> ChosenBackend:
    """Return the configured backend and check all plugin options; raises `PluginError`, `ConfigError`."""
    registry = PluginRegistry(config)
    backend = registry.choose()
    options = config.plugin_options(registry.options, backend.name)
    in_order = backend.description.level(Capability.TIMERS_IN_ORDER).usable
    check_timer_queue(config[TIMERS_QUEUE], backend.name, in_order=in_order)
    return ChosenBackend(
        backend, options, config[TYPES_GENERIC] == "allow", LatencySampling.of(config), config[TIMERS_QUEUE]
    )


def choose_max_parallelism(config: Configuration, parallelism: int, folder: OperatorFolder | None) -> int:
    """Return the number of key groups, which existing state decides: that of the folder or of the savepoint.

    Raises `InvalidParallelismError`, and as `SavepointRestore.expected_owner`.
    """
    asked = config.get(MAX_PARALLELISM)
    owner = None
    if folder is not None:
        owner = folder.read_owner() or SavepointRestore.of(config).expected_owner(folder, asked)
    stored = None if owner is None else owner.max_parallelism
    max_parallelism = asked or stored or default_max_parallelism(parallelism)
    check_parallelism(parallelism, max_parallelism)
    return max_parallelism


@lru_cache(maxsize=8)
def configuration_in_task(settings: tuple[tuple[str, Any], ...]) -> Configuration:
    """Return the options that the driver has resolved and `frozen`.

    A worker process serves many tasks, so each function of this module caches its last results.
    """
    return Configuration(dict(settings))


@lru_cache(maxsize=8)
def backend_in_task(settings: tuple[tuple[str, Any], ...]) -> ChosenBackend:
    """Return the backend that the settings choose, and divide the managed memory of the process as they say.

    Discovering plugins takes milliseconds.
    """
    config = configuration_in_task(settings)
    managed_memory(config)
    return choose_backend(config)


@lru_cache(maxsize=8)
def storage_in_task(uri: str, settings: tuple[tuple[str, Any], ...]) -> CheckpointStorage:
    """Return the storage of a URI; raises `CheckpointError` and `PluginError`."""
    return CheckpointStorage.open(uri, configuration_in_task(settings))


def frozen(config: Configuration) -> tuple[tuple[str, Any], ...]:
    """Return the settings in a form that can be hashed and sent to tasks."""
    return tuple((name, _hashable(value)) for name, value in sorted(config.to_dict().items()))


def _hashable(value: object) -> object:
    if isinstance(value, Mapping):
        return tuple(value.items())
    return tuple(value) if isinstance(value, list) else value
