"""One type for each restored state, where the tasks of a checkpoint have written it with several.

A task that has not used a state since its type changed keeps the old type.  After a change of parallelism one
task may get entries of both types, and a table has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from keyedstate.backend import EntryBatch, StateHandle, StateMeta
from keyedstate.errors import StateError, StateMigrationError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state.clock import UNKNOWN_TIME
from keyedstate.state.registry.restored_tables import adapted
from keyedstate.state.ttl.config import TtlClock
from keyedstate.state.ttl.layout import conversion_between
from keyedstate.types.collections.ttl import TimedSerializer, plain_type


def with_one_type_each(handles: Sequence[StateHandle], now: int) -> Sequence[StateHandle]:
    """Return handles that agree on the type of each state: the one that reads the others and drops nothing.

    Values that get a time to live have the processing time `now` as their timestamp.

    Raises `StateMigrationError` where none of the types can read all others.
    """
    found: dict[str, list[StateMeta]] = {}
    for meta in (meta for handle in handles for meta in handle.states):
        metas = found.setdefault(meta.name, [])
        if meta not in metas:
            metas.append(meta)
    chosen = {name: _widest(name, metas) for name, metas in found.items() if len(metas) > 1}
    return [_ConvertedHandle(handle, chosen, now) for handle in handles] if chosen else handles


def _widest(name: str, metas: list[StateMeta]) -> StateMeta:
    # Of two that differ in the time to live alone, the one with timestamps.
    for meta in sorted(metas, key=lambda meta: not isinstance(meta.value_serializer, TimedSerializer)):
        if all(_reads(meta, other) and _fields(other) <= _fields(meta) for other in metas):
            return meta
    reason = (
        "its tasks have written it with both types, of which neither can replace the other, and with another "
        "parallelism a task gets both; let all tasks use it once with the parallelism as it was"
    )
    raise StateMigrationError(name, "value", metas[0].value_serializer, metas[1].value_serializer, reason)


def _reads(meta: StateMeta, other: StateMeta) -> bool:
    try:
        return adapted(other, meta) == meta
    except StateError:
        return False


def _fields(meta: StateMeta) -> set[str]:
    return set(_paths(plain_type(meta.value_serializer).arrow_type, ""))


def _paths(arrow_type: pa.DataType, above: str) -> Iterator[str]:
    for number in range(arrow_type.num_fields):
        field = arrow_type.field(number)
        path = f"{above}.{field.name}"
        yield path
        yield from _paths(field.type, path)


def _stamp_of(meta: StateMeta, now: int) -> int:
    """Return the timestamp of values that get a time to live; the watermark is not known yet."""
    serializer = meta.value_serializer
    if isinstance(serializer, TimedSerializer) and serializer.clock == TtlClock.PROCESSING_TIME.value:
        return now
    return UNKNOWN_TIME


class _ConvertedHandle(StateHandle):
    """A snapshot whose values are converted to the chosen types."""

    def __init__(self, handle: StateHandle, chosen: dict[str, StateMeta], now: int) -> None:
        self._handle = handle
        self._states = [chosen.get(meta.name, meta) for meta in handle.states]
        self._conversions: dict[str, Callable[[Any], Any] | None] = {
            old.name: conversion_between(
                old.kind, old.value_serializer, new.value_serializer, _stamp_of(new, now)
            )
            for old, new in zip(handle.states, self._states, strict=True)
            if old != new
        }

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._handle.key_groups

    @property
    def states(self) -> Sequence[StateMeta]:
        return self._states

    def occupied(self, state: str, key_groups: KeyGroupRange) -> Iterable[int]:
        return self._handle.occupied(state, key_groups)

    def entries(self, state: str, key_group: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        convert = self._conversions.get(state)
        for batch in self._handle.entries(state, key_group):
            if convert is None:
                yield batch
            else:
                values = [None if value is None else convert(value) for value in batch.values]
                yield EntryBatch(batch.namespaces, batch.keys, values)
