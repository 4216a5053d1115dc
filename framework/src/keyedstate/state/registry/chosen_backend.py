"""What a keyed backend is opened with: the chosen plugin and its options, and the keys of one instance."""

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
    """A backend with the values of its options, and what concerns states on every backend.

    Attributes
    ----------
    backend : Backend
        The plugin.
    options : mapping
        The plugin's options, as `Configuration.plugin_options` gives them.
    generic_types : bool
        Whether states whose values are pickled may be registered: the option ``types.generic``.
    latency : LatencySampling or None
        How accesses to states are sampled, where they are.
    timer_queue : {"auto", "heap", "ordered"}
        Where the order of timers is kept: the option ``timers.queue``.
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
        Of the key; where it has several columns, a tuple's.
    key_groups : KeyGroupRange
        Those of the instance.
    max_parallelism : int
        The number of all key groups.
    """

    key_serializer: TypeSerializer[Any]
    key_groups: KeyGroupRange
    max_parallelism: int
