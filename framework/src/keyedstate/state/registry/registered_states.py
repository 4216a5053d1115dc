"""The states of one keyed backend by name: their tables and their accessors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar, cast

from keyedstate.backend import AnyStateTable, BackendContext, Capability, ExpiryCleanup, StateKind, StateMeta
from keyedstate.errors import NullNamespaceError, StateMigrationError
from keyedstate.state.clock import UNKNOWN_TIME
from keyedstate.state.context import KeyContext
from keyedstate.state.kinds.accessor import StateAccessor, StateDescriptor
from keyedstate.state.kinds.checks import check_value
from keyedstate.state.registry.change_tracking import ChangeTracker
from keyedstate.state.registry.chosen_backend import ChosenBackend
from keyedstate.state.registry.latency import LatencyTracker
from keyedstate.state.registry.restored_tables import adapted, adopt, check_same_kind
from keyedstate.state.ttl.expiring_states import ExpiringStates
from keyedstate.state.ttl_kinds import create_ttl_accessor
from keyedstate.types import VOID, TypeSerializer, refuse_generic
from keyedstate.types.weights import weight_of

A = TypeVar("A", bound=StateAccessor)


class RegisteredStates:
    """The registered states, over tables that are new or were restored.

    `tables` has every table by the name of its state; those of newly registered states are added.
    """

    def __init__(
        self,
        chosen: ChosenBackend,
        context: BackendContext,
        tables: dict[str, AnyStateTable],
        *,
        tracker: ChangeTracker | None,
        latency: LatencyTracker | None,
        current: KeyContext,
        expiring: ExpiringStates,
    ) -> None:
        self._backend = chosen.backend
        self._generic_types = chosen.generic_types
        self._context = context
        self._tables = tables
        self._tracker = tracker
        #: The tables through which accessors change state: those above, or wrappers that note the changes.
        self._changed = tables
        if tracker is not None:
            self._changed = {name: tracker.track(table) for name, table in tables.items()}
        self._latency = latency
        self._current = current
        self._expiring = expiring
        #: By the name of the state.
        self.accessors: dict[str, StateAccessor] = {}
        #: Those with a write-behind cache: the table returns the very values that were put, and only `update`
        #: changes them.
        self.cached: list[StateAccessor] = []
        #: The meta of the first look-up; a table may have reconfigured serializers instead.
        self._requested: dict[str, StateMeta] = {}

    def get(
        self, descriptor: StateDescriptor[A], namespace: object, namespace_serializer: TypeSerializer[Any]
    ) -> A:
        """Return the accessor of a state; see `KeyedStateBackend.get_state`."""
        if namespace is None or namespace_serializer is None:
            raise NullNamespaceError(descriptor.name)
        if not namespace_serializer.is_value(namespace):
            check_value(descriptor.name, namespace_serializer, namespace, "the namespace")
        accessor = self.accessors.get(descriptor.name)
        meta = StateMeta(
            descriptor.name,
            descriptor.kind,
            self._current.serializer,
            namespace_serializer,
            descriptor.serializer,
        )
        if accessor is None:
            accessor = self._register(descriptor, meta)
        else:
            _check_same_state(self._requested[descriptor.name], meta)
            self._expiring.check_same(descriptor.name, descriptor.ttl)
        accessor.set_namespace(namespace)
        return cast(A, accessor)

    def _register(self, descriptor: StateDescriptor[Any], meta: StateMeta) -> StateAccessor:
        self._backend.require(meta.kind, meta.name)
        if not self._generic_types:
            refuse_generic(meta.name, meta.value_serializer)
        expiry = None
        if descriptor.ttl is not None:
            expiry = self._expiring.expiry_of(meta.name, descriptor.ttl, meta.kind)
            meta = replace(meta, expiry=expiry.for_backend())
        table, changed = self._table_for(meta, UNKNOWN_TIME if expiry is None else expiry.time.stamp)
        accessor: StateAccessor
        if expiry is None:
            accessor = descriptor.create_accessor(changed, self._current)
        else:
            accessor = create_ttl_accessor(descriptor, changed, self._current, expiry)
            expiry.attach(changed, cleans_itself=isinstance(table, ExpiryCleanup))
        if self._latency is not None:
            self._latency.track(accessor, meta)
        # Only now: a refused registration changes nothing.
        self._tables[meta.name] = table
        self._changed[meta.name] = changed
        self.accessors[meta.name] = accessor
        self._requested[meta.name] = meta
        if expiry is not None:
            self._expiring.add(meta.name, expiry)
        elif self._can_be_cached(meta.value_serializer):
            self.cached.append(accessor)
        return accessor

    def internal_table(self, name: str, namespace_serializer: TypeSerializer[Any]) -> AnyStateTable:
        """Return the table of a set that the framework keeps; see `KeyedStateBackend.internal_table`."""
        meta = StateMeta(name, StateKind.VALUE, self._current.serializer, namespace_serializer, VOID)
        self._backend.require(meta.kind, name)
        self._tables[name], self._changed[name] = self._table_for(meta, UNKNOWN_TIME)
        return self._changed[name]

    def _table_for(self, meta: StateMeta, stamp: int) -> tuple[AnyStateTable, AnyStateTable]:
        """Return the table of a state, new or restored, and the one through which it is changed."""
        table = self._tables.get(meta.name)
        if table is None:
            table = self._backend.create_state_table(meta, self._context)
        else:
            new = adapted(table.meta, meta)
            table = adopt(table, new, stamp, lambda: self._backend.create_state_table(new, self._context))
        changed = self._changed.get(meta.name)
        if changed is None or table is not self._tables[meta.name]:
            changed = table if self._tracker is None else self._tracker.track(table)
        return table, changed

    def _can_be_cached(self, serializer: TypeSerializer[Any]) -> bool:
        """Return whether a table returns the very values that were put, and they cannot change in place."""
        by_reference = self._backend.description.level(Capability.OBJECTS_BY_REFERENCE).usable
        return serializer.immutable if by_reference else weight_of(serializer) is not None


def _check_same_state(registered: StateMeta, requested: StateMeta) -> None:
    """Refuse a second look-up that asks for something else than the first one registered."""
    check_same_kind(registered, requested, restored=False)
    name = requested.name
    check_same_type(name, "namespace", registered.namespace_serializer, requested.namespace_serializer)
    check_same_type(name, "value", registered.value_serializer, requested.value_serializer)


def check_same_type(state: str, part: str, old: TypeSerializer[Any], new: TypeSerializer[Any]) -> None:
    """Refuse a second look-up of a state that declares another type than the first one."""
    if old != new:
        raise StateMigrationError(state, part, old, new, "one state has one type within a run")
