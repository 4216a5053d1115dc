"""What a keyed backend is opened with: the chosen plugin with its options, and the keys of one instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keyedstate.keygroups import KeyGroupRange
from keyedstate.plugins import Backend
from keyedstate.state.registry.latency import LatencySampling
from keyedstate.types import TypeSerializer


@dataclass(frozen=True)
class ChosenBackend:
    """A backend, its options, and the options of states on every backend."""

    backend: Backend
    #: The plugin's options, as `Configuration.plugin_options` returns them.
    options: Mapping[str, Any]
    #: The option ``types.generic``: whether states with pickled values may be registered.
    generic_types: bool = True
    #: How accesses to states are sampled; None for not at all.
    latency: LatencySampling | None = None
    #: The option ``timers.queue``: ``auto``, ``heap`` or ``ordered``.
    timer_queue: str = "auto"


@dataclass(frozen=True)
class KeySpace:
    """The keys of one parallel instance."""

    #: A tuple's where the key has several columns.
    key_serializer: TypeSerializer[Any]
    key_groups: KeyGroupRange
    #: The number of all key groups.
    max_parallelism: int
