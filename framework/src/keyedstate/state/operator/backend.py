"""The operator states of one task, registered by name (Flink's ``DefaultOperatorStateBackend``).

They are plain Python lists and dicts, whatever backend keeps the keyed state, and small: a snapshot copies
them in its synchronous part.  A restore reads them at once with the serializers that wrote them, and they are
written with those that the program registers, so unlike in keyed state even keys may migrate.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar, cast

from keyedstate.backend import EntryBatch, Snapshot, SnapshotSink
from keyedstate.errors import KeyedStateError, StateConversionError, StateMigrationError
from keyedstate.operator_state import (
    OPERATOR_KEY_GROUP,
    OperatorStateKind,
    OperatorStateMeta,
    RestoredOperatorState,
)
from keyedstate.state.operator.list_states import (
    BroadcastSide,
    OperatorStateAccessor,
    OperatorStateDescriptor,
)
from keyedstate.state.registry.registered_states import check_same_type
from keyedstate.state.registry.restored_tables import Conversion, check_same_kind
from keyedstate.state.registry.running_snapshot import SnapshotTask
from keyedstate.state.registry.serializer_provider import SerializerProvider
from keyedstate.tables import converted
from keyedstate.types import VOID_NAMESPACE, TypeSerializer
from keyedstate.types.contract.transposing import transposed

A = TypeVar("A", bound=OperatorStateAccessor)

#: Entries per batch of a snapshot.
_BATCH_ENTRIES = 4096


class _State:
    """One state."""

    def __init__(self, meta: OperatorStateMeta) -> None:
        self.meta = meta
        self.is_map = meta.kind is OperatorStateKind.BROADCAST
        #: Its elements or entries; always the same object, which the accessor has, too.
        self.content: Any = {} if self.is_map else []
        #: What was restored with other types, until the state is registered: some tasks may have registered a
        #: state whose type has changed, and others not.
        self.others: list[_State] = []

    @property
    def entries(self) -> int:
        return len(self.content) + sum(len(other.content) for other in self.others)

    def add(self, values: Iterable[Any], keys: Iterable[Any]) -> None:
        if self.is_map:
            self.content.update(zip(keys, values, strict=True))
        else:
            self.content.extend(values)

    def restore(self, meta: OperatorStateMeta, batches: Sequence[EntryBatch[Any, Any, Any]]) -> None:
        form = next((form for form in (self, *self.others) if form.meta == meta), None)
        if form is None and not batches:
            return
        if form is None and not self.content:
            self.meta, form = meta, self
        elif form is None:
            form = _State(meta)
            self.others.append(form)
        for batch in batches:
            form.add(batch.values, batch.keys)

    def captured(self) -> tuple[OperatorStateMeta, Any]:
        """Return meta and content for a snapshot, which no later change reaches."""
        if self.others:
            written, requested = self.others[0].meta, self.meta
            reason = "tasks have written it in both forms, and this one has not registered it"
            raise StateMigrationError(
                self.meta.name, "value", written.value_serializer, requested.value_serializer, reason
            )
        meta = self.meta.duplicate()
        if self.is_map or self.meta.value_serializer.immutable:
            # The values of a map are copied on their way in and out.
            return meta, self.content.copy()
        return meta, list(map(self.meta.value_serializer.copy, self.content))

    def convert_to(self, requested: OperatorStateMeta) -> None:
        """Convert what was restored to the types of another meta; on an error, change nothing."""
        converted = [form.converted(requested) for form in (self, *self.others)]
        self.others.clear()
        self.content.clear()
        self.meta = converted[0][0]
        for _, keys, values in converted:
            self.add(values, keys)

    def converted(
        self, requested: OperatorStateMeta
    ) -> tuple[OperatorStateMeta, Sequence[Any], Sequence[Any]]:
        """Return the meta with which the state continues, and its keys and values converted to that."""
        name, old = requested.name, self.meta
        key, of_keys = _resolved(name, "key", old.key_serializer, requested.key_serializer)
        part = "value" if self.is_map else "element"
        value, of_values = _resolved(name, part, old.value_serializer, requested.value_serializer)
        try:
            keys = converted(list(self.content), of_keys) if self.is_map else []
            values = converted(list(self.content.values() if self.is_map else self.content), of_values)
        except KeyedStateError as error:
            raise StateConversionError(name, str(error)) from error
        return OperatorStateMeta(name, requested.kind, key, value), keys, values


class OperatorStateBackend:
    """The operator states of one task; everything but `SnapshotTask.run` belongs to one owner thread.

    `restored` is this task's part of a checkpoint, as `keyedstate.checkpoint.read_operator_state` returns it,
    with the pieces of one list in its order. `generic_types` is the option ``types.generic``. Raises
    `StateKindMismatchError` where tasks have written states of two kinds under one name.
    """

    def __init__(self, restored: Iterable[RestoredOperatorState] = (), *, generic_types: bool = True) -> None:
        #: Every state, also restored ones that the program has not registered: each snapshot has them, so
        #: that a state survives a program that does not use it.
        self._states: dict[str, _State] = {}
        self._accessors: dict[str, OperatorStateAccessor] = {}
        #: The meta of the first look-up; a state may have reconfigured serializers instead.
        self._requested: dict[str, OperatorStateMeta] = {}
        self._generic_types = generic_types
        self._side = BroadcastSide()
        self._snapshots: list[SnapshotTask] = []
        for meta, batches in restored:
            state = self._states.setdefault(meta.name, _State(meta))
            check_same_kind(state.meta, meta, restored=True)
            state.restore(meta, batches)

    def get_state(self, descriptor: OperatorStateDescriptor[A]) -> A:
        """Return the accessor of a state, the same at every look-up; the first one registers the state.

        Raises `StateKindMismatchError`, `StateMigrationError`, `StateConversionError` and
        `GenericTypeForbiddenError` as `KeyedStateBackend.get_state`.
        """
        meta = descriptor.meta
        known = self._requested.get(meta.name)
        if known is not None:
            _check_same(known, meta)
            return cast(A, self._accessors[meta.name])
        if not self._generic_types:
            meta.refuse_generic()
        state = self._states.get(meta.name)
        if state is None:
            state = _State(meta)
        else:
            check_same_kind(state.meta, meta, restored=True)
            state.convert_to(meta)
        # Only now: a refused registration changes nothing.
        accessor = descriptor.create_accessor(state.meta, state.content, self._side)
        self._states[meta.name] = state
        self._accessors[meta.name] = accessor
        self._requested[meta.name] = meta
        return accessor

    def remove_state(self, name: str) -> None:
        """Remove a registered state and its elements; its accessor must not be used any more."""
        del self._states[name], self._accessors[name], self._requested[name]

    @contextmanager
    def broadcast_side(self) -> Iterator[None]:
        """Allow changes of broadcast states inside the ``with`` block."""
        before, self._side.current = self._side.current, True
        try:
            yield
        finally:
            self._side.current = before

    def metas(self) -> list[OperatorStateMeta]:
        """Return the meta of each state, restored ones included."""
        return [state.meta for state in self._states.values()]

    def entries_by_state(self) -> dict[str, int]:
        """Return the number of elements or entries of each state on this task."""
        return {name: state.entries for name, state in self._states.items()}

    def snapshot(self, checkpoint_id: int) -> SnapshotTask | None:
        """Copy every state, and return a task that writes the copies; None without any state.

        The task must be run or cancelled.  It writes each state under `OperatorStateMeta.entries_meta`, all
        of it in the key group `OPERATOR_KEY_GROUP`.

        Raises `StateMigrationError` where a restored state has two types, and the program has not registered
        it.
        """
        if not self._states:
            return None
        started = time.perf_counter()
        captured = _CapturedStates([state.captured() for state in self._states.values()])
        synchronous_ms = (time.perf_counter() - started) * 1000.0
        task = SnapshotTask(checkpoint_id, captured, synchronous_ms, asynchronous=True)
        self._snapshots = [other for other in self._snapshots if not other.done]
        self._snapshots.append(task)
        return task

    def close(self) -> None:
        """Cancel running snapshots; calling it again does nothing."""
        for task in self._snapshots:
            task.cancel()


class _CapturedStates(Snapshot):
    def __init__(self, states: list[tuple[OperatorStateMeta, Any]]) -> None:
        self._states = states

    def write(self, sink: SnapshotSink) -> None:
        for meta, content in self._states:
            sink.begin_state(meta.entries_meta)
            is_map = meta.kind is OperatorStateKind.BROADCAST
            entries = content.items() if is_map else enumerate(content)
            sink.write_entries(OPERATOR_KEY_GROUP, _batches(iter(entries)))

    def release(self) -> None:
        self._states = []


def _batches(entries: Iterator[tuple[Any, Any]]) -> Iterator[EntryBatch[Any, Any, Any]]:
    while some := list(islice(entries, _BATCH_ENTRIES)):
        keys, values = transposed(some, 2)
        yield EntryBatch([VOID_NAMESPACE] * len(some), keys, values)


def _resolved(
    state: str, part: str, written: TypeSerializer[Any], requested: TypeSerializer[Any]
) -> tuple[TypeSerializer[Any], Conversion]:
    """Return the serializer with which a part continues, and the conversion to it, or refuse it."""
    serializer = SerializerProvider(state, part, restored=written, registered=requested).current
    return serializer, serializer.conversion_from(written)


def _check_same(registered: OperatorStateMeta, requested: OperatorStateMeta) -> None:
    """Refuse a second look-up that asks for something else than the first one registered."""
    check_same_kind(registered, requested, restored=False)
    part = "value" if requested.kind is OperatorStateKind.BROADCAST else "element"
    check_same_type(requested.name, "key", registered.key_serializer, requested.key_serializer)
    check_same_type(requested.name, part, registered.value_serializer, requested.value_serializer)
