"""A backend with its options, as tests open it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keyedstate.options import Configuration
from keyedstate.plugins import PluginRegistry
from keyedstate.state.registry.chosen_backend import ChosenBackend


def backend_of(name: str, options: Mapping[str, object] | None = None, **settings: Any) -> ChosenBackend:
    """Return an installed backend with options by their full names; `settings` are those of `ChosenBackend`.

    Raises PluginError and ConfigError.
    """
    config = Configuration({**(options or {}), "backend": name})
    registry = PluginRegistry(config)
    backend = registry.choose()
    return ChosenBackend(backend, config.plugin_options(registry.options, backend.name), **settings)
