"""Metric reporters of plugins."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from keyedstate.checkpoint.storage.process_plugins import registry_of
from keyedstate.metrics import EpochMetrics
from keyedstate.options import METRICS_OPTIONS, Configuration
from keyedstate.plugins import PluginRegistry

HOOK = "keyedstate_metric_reporter"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reporter:
    """A plugin and its function that receives the metrics of epochs."""

    plugin: str
    function: Callable[[EpochMetrics], object]

    def report(self, metrics: EpochMetrics) -> None:
        """Call the function; an error is logged."""
        try:
            self.function(metrics)
        except Exception:  # whatever a plugin's function raises
            _log.exception(
                "the plugin %s cannot report epoch %d of %r", self.plugin, metrics.epoch, metrics.uid
            )


def reporters_of(config: Configuration) -> tuple[Reporter, ...]:
    """Return the reporters of all plugins, the same objects for the same options.

    Plugins that are not allowed, or broken, are skipped. Raises `InvalidPluginError` if a plugin's hook fails
    or returns no function, or a module of ``plugins.modules`` cannot be imported.
    """
    return _reporters(config[METRICS_OPTIONS], registry_of(config))


# `foreachBatch` may build an operator in each micro-batch.
@lru_cache(maxsize=8)
def _reporters(options: tuple[tuple[str, str], ...], plugins: PluginRegistry) -> tuple[Reporter, ...]:
    found: list[Reporter] = []
    for provider, call in plugins.callers(HOOK, []):
        try:
            answers = call(options=dict(options))
        except Exception as error:  # whatever a plugin's function raises
            raise provider.invalid(f"the hook {HOOK} failed with {type(error).__name__}: {error}") from error
        for answer in answers:
            if not callable(answer):
                raise provider.invalid(f"the hook {HOOK} returned {type(answer).__name__} and not a function")
            found.append(Reporter(str(provider), answer))
    return tuple(found)
