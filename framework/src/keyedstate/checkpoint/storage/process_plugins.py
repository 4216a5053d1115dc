"""The plugins of a process: found once for the same options, and asked for types of serializers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

from keyedstate.errors import KeyedStateError, PluginError
from keyedstate.options import PLUGINS_ALLOW, PLUGINS_DENY, PLUGINS_MODULES, PLUGINS_PREFER, Configuration
from keyedstate.plugins import PluginRegistry, registries
from keyedstate.types.contract.registry import find_unknown_types_with


def registry_of(config: Configuration) -> PluginRegistry:
    """Return the plugins for a configuration's options ``plugins.*``; the same registry for the same options.

    Raises `InvalidPluginError` where a module of ``plugins.modules`` cannot be imported or is no plugin.
    """
    options = (PLUGINS_MODULES, PLUGINS_ALLOW, PLUGINS_DENY, PLUGINS_PREFER)
    return _registry(tuple((option.name, config[option]) for option in options))


# Finding the plugins takes milliseconds, and a worker process opens its storage in every task.
@lru_cache(maxsize=8)
def _registry(options: tuple[tuple[str, Sequence[str]], ...]) -> PluginRegistry:
    return PluginRegistry(Configuration(dict(options)))


def _register_serializers() -> Sequence[str]:
    """Register the serializers of all plugins, and return why some of them cannot be asked.

    Jobs have made a registry of their options; a process that only reads state uses its environment.
    """
    unusable: list[PluginError] = []
    try:
        for registry in {registry_of(Configuration(environ=os.environ)), *registries}:
            # Being loaded registers them.
            list(registry.callers("keyedstate_serializers", unusable))
    except KeyedStateError as error:
        return [str(error)]
    return sorted(set(map(str, unusable)))


find_unknown_types_with(_register_serializers)
