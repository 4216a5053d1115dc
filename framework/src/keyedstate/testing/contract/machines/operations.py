"""The operations of the contract kit's state machine on states, and their model on a plain dict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keyedstate import types
from keyedstate.backend import StateKind
from keyedstate.state import (
    AggregatingState,
    FoldingState,
    IncrementalCleanup,
    ListState,
    MapState,
    ReducingState,
    StateDescriptor,
    Ttl,
    ValueState,
)
from keyedstate.testing.contract.suites.kind_rules import Listed

#: Writes numbers with a handle, and returns what is stored then: nothing (None), or the value, list, map,
#: reduced value or accumulator.  It is given what was stored before.
Operation = Callable[[Any, Any, Sequence[int]], Any]
#: Writes one number at each of several keys with a handle.
BulkOperation = Callable[[Any, Sequence[Any], Sequence[int]], None]

DEFAULT = [7]
MODULUS = 1009


def reduce(first: int, second: int) -> int:
    """Return two numbers as one; neither commutative nor associative, so that every order shows."""
    return (2 * first - second) % MODULUS


def fold(folded: int, value: int) -> int:
    """Return a fold with one number more."""
    return (3 * folded - value) % MODULUS


#: One with a clean-up that looks at few entries at a time, so that a round of it lasts over other changes.
TTL = Ttl(100, incremental=IncrementalCleanup(2))
INDEXED_TTL = Ttl(100, expiry_index=True)
#: What the names of the states with a time to live begin with.
TIMED = "timed "


def _states(prefix: str, ttl: Ttl | None, other_ttl: Ttl | None) -> dict[str, Any]:
    states: list[StateDescriptor[Any]] = [
        ValueState(f"{prefix}value", types.list_of(types.INT64), default=DEFAULT, ttl=ttl),
        ListState(f"{prefix}list", types.INT64, ttl=other_ttl),
        MapState(f"{prefix}map", types.INT64, types.nullable(types.INT64), ttl=ttl),
        ReducingState(f"{prefix}reducing", reduce, types.INT64, ttl=other_ttl),
        AggregatingState(f"{prefix}aggregating", Listed(), types.list_of(types.INT64), ttl=ttl),
        FoldingState(
            f"{prefix}folding",
            100,
            lambda folded, value: (3 * folded - value) % MODULUS,
            types.INT64,
            ttl=other_ttl,
        ),
    ]
    return {state.name: state for state in states}


#: By name, the states that the machine writes.
STATES: dict[str, Any] = {**_states("", None, None), **_states(TIMED, TTL, INDEXED_TTL)}
#: Those whose namespaces merge.
MERGING = tuple(prefix + name for prefix in ("", TIMED) for name in ("list", "reducing", "aggregating"))


def shown(state: str, stored: Any) -> Any:
    """Return what a handle shows of what is stored."""
    match state.removeprefix(TIMED):
        case "value":
            return DEFAULT if stored is None else stored
        case "list":
            return stored or []
        case "map":
            return stored or {}
        case "aggregating":
            return None if stored is None else tuple(stored)
        case _:
            return stored


def read(state: str, handle: Any) -> Any:
    """Return what a handle shows, as an object of the caller's own."""
    match STATES[state].kind:
        case StateKind.VALUE:
            return list(handle.value())
        case StateKind.MAP:
            return dict(handle.items())
        case _:
            return handle.get()


def merge(state: str, merged: Any, stored: Any) -> Any:
    """Return two stored forms as one."""
    return reduce(merged, stored) if state.endswith("reducing") else [*merged, *stored]


def _update(handle: Any, stored: Any, numbers: Sequence[int]) -> Any:
    handle.update(list(numbers))
    return list(numbers)


def _update_to_none(handle: Any, stored: Any, numbers: Sequence[int]) -> Any:
    handle.update(None)


def _update_in_place(handle: Any, stored: Any, numbers: Sequence[int]) -> Any:
    value = handle.value()
    value.extend(numbers)
    handle.update(value)
    return [*shown("value", stored), *numbers]


def _add_each(handle: Any, stored: Any, numbers: Sequence[int]) -> Any:
    for number in numbers:
        handle.add(number)
    return [*(stored or []), *numbers] or None


def _add_all(handle: Any, stored: Any, numbers: Sequence[int]) -> Any:
    handle.add_all(numbers)
    return [*(stored or []), *numbers] or None


def _replace(handle: Any, stored: Any, numbers: Sequence[int]) -> Any:
    handle.update(numbers)
    return list(numbers) or None


def _overwrite(handle: Any, stored: Any, numbers: Sequence[int]) -> Any:
    handle.update_internal(list(numbers) or None)
    return list(numbers) or None


def _put(handle: Any, stored: Any, numbers: Sequence[int]) -> Any:
    for number in numbers:
        handle.put(number % 5, number)
    return {**(stored or {}), **{number % 5: number for number in numbers}} or None


def _put_all(handle: Any, stored: Any, numbers: Sequence[int]) -> Any:
    entries = {number: None if number % 2 else -number for number in numbers}
    handle.put_all(entries)
    return {**(stored or {}), **entries} or None


def _remove(handle: Any, stored: Any, numbers: Sequence[int]) -> Any:
    for number in numbers:
        handle.remove(number)
    return {key: value for key, value in (stored or {}).items() if key not in numbers} or None


def _remove_all(handle: Any, stored: Any, numbers: Sequence[int]) -> Any:
    handle.remove_all(numbers)
    return {key: value for key, value in (stored or {}).items() if key not in numbers} or None


def _iterate(handle: Any, stored: Any, numbers: Sequence[int]) -> Any:
    """Remove the entries of some map keys by an iterator, and write through to the others."""
    iterator, left = handle.entries(), {}
    for key, value in (tuple(entry) for entry in handle.entries()):
        assert (stored or {})[key] == value
    for entry in iterator:
        if entry.key in numbers:
            iterator.remove()
        else:
            entry.set_value(entry.key + 100)
            left[entry.key] = entry.key + 100
    assert left.keys() == (stored or {}).keys() - set(numbers)
    return left or None


def _reduce(handle: Any, stored: Any, numbers: Sequence[int]) -> Any:
    for number in numbers:
        handle.add(number)
        stored = number if stored is None else reduce(stored, number)
    return stored


def _fold(handle: Any, stored: Any, numbers: Sequence[int]) -> Any:
    for number in numbers:
        handle.add(number)
        stored = fold(100 if stored is None else stored, number)
    return stored


def _add_none(handle: Any, stored: Any, numbers: Sequence[int]) -> Any:
    handle.add(None)


def _clear(handle: Any, stored: Any, numbers: Sequence[int]) -> Any:
    handle.clear()


_OPERATIONS: dict[str, Operation] = {
    "value.update": _update,
    "value.update(None)": _update_to_none,
    "value.change and update": _update_in_place,
    "list.add": _add_each,
    "list.add_all": _add_all,
    "list.update": _replace,
    "list.update_internal": _overwrite,
    "map.put": _put,
    "map.put_all": _put_all,
    "map.remove": _remove,
    "map.remove_all": _remove_all,
    "map.entries": _iterate,
    "reducing.add": _reduce,
    "reducing.add(None)": _add_none,
    "aggregating.add": _add_each,
    "aggregating.update_internal": _overwrite,
    "folding.add": _fold,
    **{f"{state}.clear": _clear for state in _states("", None, None)},
}
#: By state and name of what is done.
OPERATIONS = _OPERATIONS | {TIMED + name: operation for name, operation in _OPERATIONS.items()}

_BULK_OPERATIONS: dict[str, tuple[BulkOperation, Operation]] = {
    "value.update_many": (
        lambda handle, keys, numbers: handle.update_many(keys, [[number] for number in numbers]),
        lambda handle, stored, numbers: list(numbers),
    ),
    "list.add_many": (
        lambda handle, keys, numbers: handle.add_many(keys, numbers),
        lambda handle, stored, numbers: [*(stored or []), *numbers],
    ),
    "list.update_many": (
        lambda handle, keys, numbers: handle.update_many(keys, [[number] * 2 for number in numbers]),
        lambda handle, stored, numbers: [*numbers, *numbers],
    ),
    "map.put_many": (
        lambda handle, keys, numbers: handle.put_many(keys, [number % 5 for number in numbers], numbers),
        lambda handle, stored, numbers: {**(stored or {}), numbers[0] % 5: numbers[0]},
    ),
    "reducing.add_many": (
        lambda handle, keys, numbers: handle.add_many(keys, numbers),
        lambda handle, stored, numbers: numbers[0] if stored is None else reduce(stored, numbers[0]),
    ),
    "aggregating.add_many": (
        lambda handle, keys, numbers: handle.add_many(keys, numbers),
        lambda handle, stored, numbers: [*(stored or []), *numbers],
    ),
    **{
        f"{state}.clear_many": (
            lambda handle, keys, numbers: handle.clear_many(keys),
            lambda handle, stored, numbers: None,
        )
        for state in _states("", None, None)
    },
}
#: By state and name of the bulk method, the method, and what it does at each key.
BULK_OPERATIONS = _BULK_OPERATIONS | {TIMED + name: operation for name, operation in _BULK_OPERATIONS.items()}


# -- the time to live ----------------------------------------------------------------------------------

#: When what is stored was written: one time of a value, a reduced value or an accumulator, one per element of
#: a list, one by each key of a map.
Stamps = Any


def stamps_after(operation: str, before: Stamps, stored: Any, numbers: Sequence[int], now: int) -> Stamps:
    """Return the times of what an operation left behind, which is something, given those of before."""
    state, _, name = operation.removeprefix(TIMED).partition(".")
    match state:
        case "list":
            kept = [] if name.startswith("update") else before or []
            return [*kept, *[now] * (len(stored) - len(kept))]
        case "map":
            if name.startswith("remove"):
                return {key: before[key] for key in stored}
            written = {
                "put": {number % 5 for number in numbers},
                "put_many": {number % 5 for number in numbers},
                "put_all": set(numbers),
                "entries": set(stored),
            }[name]
            return {key: now if key in written else before[key] for key in stored}
        case _:
            if name == "add" and not numbers:
                return before
            # What is added makes nothing older where clocks went back; what is overwritten has its own time.
            return max(before, now) if name.startswith("add") and before is not None else now


def living(state: str, stored: Any, stamps: Stamps, now: int) -> tuple[Any, Stamps] | None:
    """Return what lives of something stored and its times, or None."""
    limit = now - TTL.ms
    match state.removeprefix(TIMED):
        case "list":
            kept = [number for number, stamp in enumerate(stamps) if stamp > limit]
            return (
                ([stored[number] for number in kept], [stamps[number] for number in kept]) if kept else None
            )
        case "map":
            left = {key: stamp for key, stamp in stamps.items() if stamp > limit}
            return ({key: stored[key] for key in left}, left) if left else None
        case _:
            return (stored, stamps) if stamps > limit else None


def merged_stamps(state: str, merged: Stamps, stored: Stamps, now: int) -> Stamps:
    """Return the times of two stored forms that were merged."""
    return [*merged, *stored] if state.endswith("list") else max(merged, stored, now)
