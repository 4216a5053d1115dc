"""Sampled latency of accesses to states: which calls are measured, and that nothing is when it is off."""

from __future__ import annotations

from typing import Any

import pytest

from keyedstate import types
from keyedstate.errors import InvalidOptionError, StateValueError
from keyedstate.options import Configuration
from keyedstate.state import (
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    Ttl,
    ValueState,
)
from keyedstate.state.registry.latency import LatencySampling

LAST = Ttl.of("1 day")


class Total(AggregateFunction[int, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, first: int, second: int) -> int:
        return first + second


def add(first: int, second: int) -> int:
    return first + second


#: Every kind of state, and calls of its operations.
KINDS: dict[str, tuple[Any, dict[str, tuple[Any, ...]]]] = {
    "value": (
        lambda ttl: ValueState("s", types.INT64, ttl=ttl),
        {"value": (), "update": (1,), "update_many": ([1], [2]), "get_many": ([1],), "clear": ()},
    ),
    "list": (
        lambda ttl: ListState("s", types.INT64, ttl=ttl),
        {"add": (1,), "add_all": ([1, 2],), "get": (), "update": ([3],), "clear": ()},
    ),
    "map": (
        lambda ttl: MapState("s", types.INT64, types.INT64, ttl=ttl),
        {
            "put": (1, 2),
            "get": (1,),
            "contains": (1,),
            "put_all": ({3: 4},),
            "remove": (1,),
            "is_empty": (),
            "items": (),
            "entries": (),
            "clear": (),
        },
    ),
    "reducing": (
        lambda ttl: ReducingState("s", add, types.INT64, ttl=ttl),
        {"add": (1,), "get": (), "clear": ()},
    ),
    "aggregating": (
        lambda ttl: AggregatingState("s", Total(), types.INT64, ttl=ttl),
        {"add": (1,), "get": (), "clear": ()},
    ),
}


def counts(backend: Any) -> dict[str, dict[str, int]]:
    return {
        state: {operation: len(samples) for operation, samples in operations.items()}
        for state, operations in backend.latency.samples().items()
    }


@pytest.mark.parametrize("ttl", [None, LAST], ids=["no ttl", "ttl"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_tenth_call_of_each_operation_is_measured(instances: Any, kind: str, ttl: Ttl | None) -> None:
    """MET-01: each operation has a counter of its own; what it does by way of others does not count."""
    declare, operations = KINDS[kind]
    backend = instances.open(latency=LatencySampling(interval=10))
    plain = instances.open()
    for opened in (backend, plain):
        opened.set_current_key(1)
    sampled, unsampled = backend.get_state(declare(ttl)), plain.get_state(declare(ttl))
    assert counts(backend) == {"s": {}}
    for calls, expected in ((1, 1), (9, 1), (1, 2), (10, 3)):
        for operation, arguments in operations.items():
            for _ in range(calls):
                given, wanted = (getattr(handle, operation)(*arguments) for handle in (sampled, unsampled))
                if operation not in ("items", "entries"):
                    assert given == wanted
        assert counts(backend) == {"s": dict.fromkeys(operations, expected)}
    samples = backend.latency.samples()["s"]
    assert all(nanoseconds > 0 for operation in samples.values() for nanoseconds in operation)


@pytest.mark.parametrize("ttl", [None, LAST], ids=["no ttl", "ttl"])
@pytest.mark.parametrize("made_by", ["entries", "iterator"])
def test_the_iterator_of_a_map_is_measured_too(instances: Any, made_by: str, ttl: Ttl | None) -> None:
    """MET-01"""
    backend = instances.open(latency=LatencySampling(interval=2))
    backend.set_current_key(1)
    state = backend.get_state(MapState("s", types.INT64, types.INT64, ttl=ttl))
    state.put_all({number: number for number in range(6)})
    iterator = getattr(state, made_by)()
    assert type(iterator).__mro__[1].__name__ == type(iterator).__name__ != type(iterator).__mro__[2].__name__
    while iterator.has_next():
        next(iterator)
        iterator.remove()
    assert state.is_empty()
    found = counts(backend)["s"]
    # Seven questions, six entries, six removals: the first of every two.
    assert (found["iterator_has_next"], found["iterator_next"], found["iterator_remove"]) == (4, 3, 3)
    assert found[made_by] == 1
    assert list(state.entries()) == []


def test_nothing_is_measured_unless_it_is_wanted(instances: Any) -> None:
    """SB-01, MET-01: a handle is then what it is without sampling, its class included."""
    plain = instances.open()
    assert plain.latency is None
    handle = plain.get_state(ValueState("s", types.INT64))
    assert type(handle).__dict__["value"].__module__ == "keyedstate.state.kinds.value"
    assert not hasattr(type(handle).value, "__wrapped__")
    assert LatencySampling.of(Configuration({})) is None
    assert LatencySampling.of(Configuration({"metrics.latency": True})) == LatencySampling(100, 128, True)
    chosen = {
        "metrics.latency": "true",
        "metrics.latency-interval": "7",
        "metrics.latency-history": 5,
        "metrics.latency-state-names": "false",
    }
    sampling = LatencySampling.of(Configuration(chosen))
    assert sampling == LatencySampling(7, 5, False)
    assert instances.open(latency=sampling).latency.sampling is sampling
    with pytest.raises(InvalidOptionError, match=r"metrics\.latency-interval"):
        LatencySampling.of(Configuration({"metrics.latency": True, "metrics.latency-interval": 0}))


def test_the_newest_samples_are_kept(instances: Any) -> None:
    """MET-01: the window of the histogram."""
    backend = instances.open(latency=LatencySampling(interval=1, history=3))
    backend.set_current_key(1)
    state = backend.get_state(ValueState("s", types.INT64))
    for number in range(8):
        state.update(number)
        if number == 4:
            older = backend.latency.samples()["s"]["update"]
    newest = backend.latency.samples()["s"]["update"]
    assert len(older) == len(newest) == 3 and older is not newest


def test_states_of_a_kind_may_share_their_samples(instances: Any) -> None:
    """MET-01: the state's name as a label is switched off."""
    backend = instances.open(latency=LatencySampling(interval=2, by_state=False))
    backend.set_current_key(1)
    for name in ("a", "b"):
        backend.get_state(ValueState(name, types.INT64)).update(1)
    backend.get_state(ListState("c", types.INT64)).add(1)
    assert counts(backend) == {"value": {"update": 1}, "list": {"add": 1}}


def test_an_operation_that_raises_is_not_measured_and_hides_no_later_one(instances: Any) -> None:
    backend = instances.open(latency=LatencySampling(interval=2))
    backend.set_current_key(1)
    state = backend.get_state(ValueState("s", types.INT64))
    with pytest.raises(StateValueError):
        state.update("no number")
    for number in (1, 2):
        state.update(number)
    assert counts(backend) == {"s": {"update": 1}}


def test_an_accessor_at_another_key_is_measured_with_the_others(instances: Any) -> None:
    backend = instances.open(latency=LatencySampling(interval=1))
    backend.set_current_key(1)
    backend.get_state(ValueState("s", types.INT64, default=5))
    fixed = backend.accessor_at("s", 2, backend.current.key_group_of(2))
    assert fixed.value() == 5
    assert counts(backend) == {"s": {"value": 1}}
