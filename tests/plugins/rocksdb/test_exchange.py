"""Canonical state goes from any backend to any other: what one wrote, the next one continues."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from keyedstate import types
from keyedstate.state import (
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    Ttl,
    ValueState,
)
from keyedstate.testing.contract.keyed import KeyedInstances

BACKENDS = ("heap-cow", "nested-map", "rocksdb")


class Total(AggregateFunction[int, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator


TTL = Ttl.of("1 day")
STATES: dict[str, Any] = {
    "value": ValueState("value", types.STRING),
    "list": ListState("list", types.INT64),
    "map": MapState("map", types.STRING, types.nullable(types.INT64)),
    "reducing": ReducingState("reducing", max, types.INT64),
    "aggregating": AggregatingState("aggregating", Total(), types.INT64),
    "timed list": ListState("timed list", types.INT64, ttl=TTL),
    "timed map": MapState("timed map", types.STRING, types.INT64, ttl=TTL),
}


def write(backend: Any, key: int, number: int) -> None:
    backend.set_current_key(key)
    handles = {name: backend.get_state(state) for name, state in STATES.items()}
    handles["value"].update(f"{key}:{number}")
    for name in ("list", "reducing", "aggregating", "timed list"):
        handles[name].add(number)
    handles["map"].put(f"entry-{number}", None if number % 2 else number)
    handles["timed map"].put(f"entry-{number}", number)


def shown(backend: Any, key: int) -> dict[str, Any]:
    backend.set_current_key(key)
    handles = {name: backend.get_state(state) for name, state in STATES.items()}
    return {
        name: dict(handle.items())
        if name.endswith("map")
        else (handle.value() if name == "value" else handle.get())
        for name, handle in handles.items()
    }


@pytest.mark.parametrize("route", list(permutations(BACKENDS)), ids=">".join)
def test_state_goes_through_all_backends_in_every_order(tmp_path: Path, route: tuple[str, ...]) -> None:
    """Each continues with what the one before wrote, by another number of instances."""
    opened: list[KeyedInstances] = []
    handles: list[Any] = []
    for number, name in enumerate((*route, route[0])):
        keyed = KeyedInstances(name, tmp_path / str(number), {})
        opened.append(keyed)
        instances = keyed.open_all(1 + number % 3, handles)
        for instance in instances:
            for key in range(20):
                if instance.current.key_group_of(key) in instance.key_groups:
                    write(instance, key, number)
                    numbers = list(range(number + 1))
                    assert shown(instance, key) == {
                        "value": f"{key}:{number}",
                        "list": numbers,
                        "timed list": numbers,
                        "reducing": number,
                        "aggregating": sum(numbers),
                        "map": {f"entry-{n}": None if n % 2 else n for n in numbers},
                        "timed map": {f"entry-{n}": n for n in numbers},
                    }
        assert sum(instance.num_entries() for instance in instances) == 20 * len(STATES)
        handles = [keyed.snapshot(instance) for instance in instances]
    for keyed in opened:
        keyed.close()
