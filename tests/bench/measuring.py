"""What the benchmarks of state share: keys, backends, tables, medians, and the lines of the report."""

from __future__ import annotations

import gc
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from keyedstate import types
from keyedstate.backend import AnyStateTable, StateHandle
from keyedstate.keygroups import KeyGroupRange
from keyedstate.murmur3 import key_groups as key_groups_of
from keyedstate.options import TIMERS_QUEUE, Configuration
from keyedstate.plugins import PluginRegistry
from keyedstate.state import ValueState
from keyedstate.state.registry.chosen_backend import ChosenBackend, KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

GROUPS = 128
ALL = KeyGroupRange(0, GROUPS - 1)
BACKENDS = ("heap-cow", "nested-map")
VOID = types.VOID_NAMESPACE


@dataclass
class Result:
    """One line of the report.

    Attributes
    ----------
    what : str
    figure : str
        The median, with its unit.
    floor : str
        What it is compared with, and its median.
    ratio : float or None
        Figure to floor, or loop to bulk; None where the limit is absolute.
    limit : str
        What was asked for.
    others : dict
        Further ratios by the heading of their column.
    """

    what: str
    figure: str
    floor: str
    ratio: float | None
    limit: str = ""
    others: dict[str, float] = field(default_factory=dict)


class Keys:
    """String keys with their key groups, and an order to visit them in."""

    def __init__(self, count: int) -> None:
        self.keys = [f"customer-{number:08}" for number in range(count)]
        self.groups = key_groups_of([pa.array(self.keys)], GROUPS).tolist()
        order = list(range(count))
        random.Random(42).shuffle(order)
        # Looked up by equal strings that are other objects, as those of a new Arrow batch are.
        self.visits = [(self.groups[number], f"customer-{number:08}") for number in order]


def open_backend(
    name: str,
    key: types.TypeSerializer[Any] = types.STRING,
    *,
    key_groups: KeyGroupRange = ALL,
    handles: Sequence[StateHandle] = (),
    track_changes: bool = False,
    local_base: Path | None = None,
    **options: object,
) -> KeyedStateBackend:
    config = Configuration({"backend": name, **options})
    registry = PluginRegistry(config)
    plugin = registry.choose()
    return KeyedStateBackend.open(
        ChosenBackend(
            plugin, config.plugin_options(registry.options, plugin.name), timer_queue=config[TIMERS_QUEUE]
        ),
        KeySpace(key, key_groups, GROUPS),
        handles,
        track_changes=track_changes,
        local_base=local_base,
    )


def new_table(name: str, value: types.TypeSerializer[Any] = types.INT64, **options: object) -> AnyStateTable:
    backend = open_backend(name, **options)
    backend.get_state(ValueState("state", value))
    return backend._tables["state"]


def filled(table: Any, keys: Keys, value: Callable[[int], Any] = int) -> Any:
    for number, (group, key) in enumerate(zip(keys.groups, keys.keys, strict=True)):
        table.put(group, key, VOID, value(number))
    return table


def medians(measures: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Run all measures in turn, `rounds` times, and return the median of each."""
    times: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            gc.collect()
            times[name].append(measure())
    return {name: statistics.median(values) for name, values in times.items()}


def per_operation(
    what: str, seconds: float, operations: int, floor: str, floor_ns: float, limit: str
) -> Result:
    ns = seconds / operations * 1e9
    return Result(what, f"{ns:,.0f} ns", f"{floor} {floor_ns:,.0f} ns", ns / floor_ns, limit)
