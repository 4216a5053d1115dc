"""The differences between two snapshots of an operator, entry by entry."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keyedstate.backend import StateHandle, StateMeta
from keyedstate.checkpoint.format.segment import SegmentHandle
from keyedstate.checkpoint.protocol.recovery import opened_handles
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.errors import IncomparableStateError
from keyedstate.operator_state import OPERATOR_KEY_GROUP, OperatorStateKind, OperatorStateMeta
from keyedstate.types import TimedDict, TimedList, TypeSerializer

#: Takes the entries that were read since it was called last.
Advance = Callable[[int], None]
_MISSING: Any = object()


class Change(str, enum.Enum):
    """What happened to a state, or to an entry, from the first snapshot to the second."""

    NONE = "none"
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    #: Of a state; its entries are compared all the same.
    TYPE_CHANGED = "type changed"


@dataclass(frozen=True)
class Example:
    """One entry that differs."""

    change: Change
    #: None in operator state.
    key_group: int | None
    #: For the elements of a list of the operator, their number.
    namespace: Any
    key: Any
    #: None before an entry that was added; for one that was removed, `after` is None.
    before: Any
    after: Any


@dataclass
class StateDifference:
    """The differences in one state."""

    name: str
    kind: str
    #: The types of key, namespace and value; None where the state is not there.
    before: Mapping[str, TypeSerializer[Any]] | None
    after: Mapping[str, TypeSerializer[Any]] | None
    entries_before: int = 0
    entries_after: int = 0
    #: Entries.
    added: int = 0
    removed: int = 0
    changed: int = 0
    examples: list[Example] = field(default_factory=list)

    @property
    def change(self) -> Change:
        """What happened to the state."""
        if self.before is None:
            return Change.ADDED
        if self.after is None:
            return Change.REMOVED
        if self.before != self.after:
            return Change.TYPE_CHANGED
        return Change.CHANGED if self.added or self.removed or self.changed else Change.NONE


@dataclass(frozen=True)
class Comparison:
    """Two snapshots of an operator and their differences."""

    first: OperatorSnapshot
    second: OperatorSnapshot
    #: Every state that either has, by name.
    states: tuple[StateDifference, ...]
    operator_states: tuple[StateDifference, ...]

    @property
    def equal(self) -> bool:
        """Whether they have no difference."""
        both = (*self.states, *self.operator_states)
        return all(state.change is Change.NONE for state in both)


def compare(
    first: OperatorSnapshot,
    second: OperatorSnapshot,
    *,
    names: Sequence[str] = (),
    limit: int = 0,
    advance: Advance = lambda done: None,
) -> Comparison:
    """Compare all states of two snapshots, or those of some names, with up to `limit` examples of each.

    Memory has the entries of one state in one key group, and the changes of one state by deltas.  Raises
    `IncomparableStateError` for different numbers of key groups, and a `CheckpointError` where a file, which
    is named, cannot be read.
    """
    groups = first.metadata.max_parallelism, second.metadata.max_parallelism
    if groups[0] != groups[1]:
        reason = f"the keys are in {groups[0]} key groups in one and in {groups[1]} in the other"
        raise IncomparableStateError(first.location, second.location, reason)
    keyed = {
        name: StateDifference(name, _kind(before, after), _types(before), _types(after))
        for name, before, after in _matched(first.states(), second.states(), names)
    }
    of_operator = []
    for name, before, after in _matched(first.operator_states(), second.operator_states(), names):
        difference = StateDifference(name, _kind(before, after), _types(before), _types(after))
        old = {} if before is None else dict(_elements(first, before))
        _compare_entries(difference, None, old, () if after is None else _elements(second, after), limit)
        of_operator.append(difference)
    for part in first.metadata.parts if keyed else ():
        with (
            opened_handles(first.metadata, first.storage, part.key_groups) as handles,
            opened_handles(second.metadata, second.storage, part.key_groups) as others,
        ):
            for difference, group in itertools.product(keyed.values(), part.key_groups):
                old = dict(_entries(handles, difference.name, group, advance))
                _compare_entries(
                    difference, group, old, _entries(others, difference.name, group, advance), limit
                )
    return Comparison(first, second, tuple(keyed.values()), tuple(of_operator))


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, NaN being equal to NaN; times to live count too."""
    if one is other:
        return True
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        if type(one) is not type(other) or one.dtype != other.dtype or one.shape != other.shape:
            return False
        return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, (TimedList, TimedDict)) and type(one) is type(other) and one.stamps != other.stamps:
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


def _matched(
    first: Mapping[str, Any], second: Mapping[str, Any], names: Sequence[str]
) -> Iterator[tuple[str, Any, Any]]:
    for name in sorted({*first, *second}):
        if not names or name in names:
            yield name, first.get(name), second.get(name)


def _kind(before: Any, after: Any) -> str:
    kinds = dict.fromkeys(str(meta.kind.value) for meta in (before, after) if meta is not None)
    return ", now ".join(kinds)


def _types(meta: StateMeta | OperatorStateMeta | None) -> dict[str, TypeSerializer[Any]] | None:
    if meta is None:
        return None
    types = {"key": meta.key_serializer, "value": meta.value_serializer}
    if isinstance(meta, StateMeta):
        types["namespace"] = meta.namespace_serializer
    return types


def _entries(
    handles: Sequence[StateHandle], state: str, group: int, advance: Advance
) -> Iterator[tuple[tuple[Any, Any], Any]]:
    """Yield the entries of a key group, each as its address and its value."""
    for handle in handles:
        if group in handle.key_groups and any(meta.name == state for meta in handle.states):
            for batch in handle.entries(state, group):
                advance(len(batch))
                yield from zip(zip(batch.namespaces, batch.keys, strict=True), batch.values, strict=True)


def _compare_entries(
    difference: StateDifference,
    group: int | None,
    old: dict[tuple[Any, Any], Any],
    new: Iterable[tuple[tuple[Any, Any], Any]],
    limit: int,
) -> None:
    """Count the differences; empties `old`."""

    def note(change: Change, address: tuple[Any, Any], before: Any, after: Any) -> None:
        if len(difference.examples) < limit:
            difference.examples.append(Example(change, group, *address, before, after))

    difference.entries_before += len(old)
    for address, value in new:
        difference.entries_after += 1
        before = old.pop(address, _MISSING)
        if before is _MISSING:
            difference.added += 1
            note(Change.ADDED, address, None, value)
        elif not is_same(before, value):
            difference.changed += 1
            note(Change.CHANGED, address, before, value)
    difference.removed += len(old)
    for address, value in old.items():
        note(Change.REMOVED, address, value, None)


def _elements(snapshot: OperatorSnapshot, meta: OperatorStateMeta) -> Iterator[tuple[tuple[Any, Any], Any]]:
    """Yield the entries of a map, or the elements of a list by their position in that of all tasks."""
    is_map = meta.kind is OperatorStateKind.BROADCAST
    following = itertools.count()
    for part in snapshot.metadata.parts:
        file = part.operator_state
        if file is None or meta.name not in file.segment.entries:
            continue
        with closing(SegmentHandle.open(snapshot.storage, file.segment)) as handle:
            for batch in handle.entries(meta.name, OPERATOR_KEY_GROUP):
                keys = batch.keys if is_map else itertools.islice(following, len(batch))
                yield from zip(zip(batch.namespaces, keys, strict=True), batch.values, strict=True)
        if is_map:
            # Every task has written the same one.
            return
