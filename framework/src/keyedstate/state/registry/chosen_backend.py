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
    """A backend, its options, and the options of states on every backend.

    Attributes
    ----------
    backend : Backend
    options : mapping
        The plugin's options, as `Configuration.plugin_options` returns them.
    generic_types : bool
        The option ``types.generic``: whether states with pickled values may be registered.
    latency : LatencySampling or None
        How accesses to states are sampled; None for not at all.
    timer_queue : {"auto", "heap", "ordered"}
        The option ``timers.queue``.
    """

    backend: Backend
    options: Mapping[str, Any]
    generic_types: bool = True
    latency: LatencySampling | None = None
    timer_queue: str = "auto"


@dataclass(frozen=True)
class KeySpace:
    """The keys of one parallel instance.

    Attributes
    ----------
    key_serializer : TypeSerializer
        A tuple's where the key has several columns.
    key_groups : KeyGroupRange
    max_parallelism : int
        The number of all key groups.
    """

    key_serializer: TypeSerializer[Any]
    key_groups: KeyGroupRange
    max_parallelism: int
