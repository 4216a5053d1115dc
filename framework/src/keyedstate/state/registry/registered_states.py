"""The states of one keyed backend by name: their tables, and the accessors that functions have of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar, cast

from keyedstate.backend import AnyStateTable, BackendContext, Capability, ExpiryCleanup, StateKind, StateMeta
from keyedstate.errors import NullNamespaceError, StateKindMismatchError, StateMigrationError
from keyedstate.ordered.object_cache import weight_of
from keyedstate.state.clock import UNKNOWN_TIME
from keyedstate.state.context import KeyContext
from keyedstate.state.kinds.accessor import StateAccessor, StateDescriptor, check_value
from keyedstate.state.registry.change_tracking import ChangeTracker
from keyedstate.state.registry.chosen_backend import ChosenBackend
from keyedstate.state.registry.latency import LatencyTracker
from keyedstate.state.registry.restored_tables import adapted, adopt
from keyedstate.state.ttl.expiring_states import ExpiringStates
from keyedstate.state.ttl_kinds import create_ttl_accessor
from keyedstate.types import VOID, TypeSerializer, refuse_generic

H = TypeVar("H", bound=StateAccessor)


class RegisteredStates:
    """The registered states, over tables that are new or were restored.

    Parameters
    ----------
    chosen : ChosenBackend
    context : BackendContext
    key_serializer : TypeSerializer
    tables : dict
        Every table by the name of its state; those of newly registered states are added.
    tracker : ChangeTracker or None
        What notes the changes of tables, where that is asked for.
    latency : LatencyTracker or None
    current : KeyContext
        Whose key the accessors read and write.
    expiring : ExpiringStates

    Attributes
    ----------
    handles : dict
        The accessors by name.
    cached : list of StateAccessor
        The accessors with a write-behind cache.  The table gives them back the very values that were put, and
        only `update` changes those.
    """

    def __init__(
        self,
        chosen: ChosenBackend,
        context: BackendContext,
        key_serializer: TypeSerializer[Any],
        tables: dict[str, AnyStateTable],
        *,
        tracker: ChangeTracker | None,
        latency: LatencyTracker | None,
        current: KeyContext,
        expiring: ExpiringStates,
    ) -> None:
        self._backend = chosen.backend
        self._context = context
        self._key_serializer = key_serializer
        self._tables = tables
        self._tracker = tracker
        #: The tables through which accessors change state: those above, or what notes their changes.
        self._changed = tables
        if tracker is not None:
            self._changed = {name: tracker.track(table) for name, table in tables.items()}
        self._generic_types = chosen.generic_types
        self._latency = latency
        self.current = current
        self._expiring = expiring
        self.accessors: dict[str, StateAccessor] = {}
        self.cached: list[StateAccessor] = []
        #: What was asked for at the first look-up; a reconfigured serializer may stand in its place.
        self._requested: dict[str, StateMeta] = {}

    def get(
        self, descriptor: StateDescriptor[H], namespace: object, namespace_serializer: TypeSerializer[Any]
    ) -> H:
        """Return the accessor of a state; see `KeyedStateBackend.get_state`."""
        if namespace is None or namespace_serializer is None:
            raise NullNamespaceError(descriptor.name)
        if not namespace_serializer.is_value(namespace):
            check_value(descriptor.name, namespace_serializer, namespace, "the namespace")
        handle = self.accessors.get(descriptor.name)
        meta = StateMeta(
            descriptor.name,
            descriptor.kind,
            self._key_serializer,
            namespace_serializer,
            descriptor.serializer,
        )
        if handle is None:
            handle = self._register(descriptor, meta)
        else:
            _check_same_state(self._requested[descriptor.name], meta)
            self._expiring.check_same(descriptor.name, descriptor.ttl)
        handle.set_namespace(namespace)
        return cast(H, handle)

    def _register(self, descriptor: StateDescriptor[Any], meta: StateMeta) -> StateAccessor:
        self._backend.require(meta.kind, meta.name)
        if not self._generic_types:
            refuse_generic(meta.name, meta.value_serializer)
        expiry = None
        if descriptor.ttl is not None:
            expiry = self._expiring.expiry_of(meta.name, descriptor.ttl, meta.kind)
            meta = replace(meta, expiry=expiry.for_backend())
        table, changed = self._table_for(meta, UNKNOWN_TIME if expiry is None else expiry.time.stamp)
        handle: StateAccessor
        if expiry is None:
            handle = descriptor.create_accessor(changed, self.current)
        else:
            handle = create_ttl_accessor(descriptor, changed, self.current, expiry)
            expiry.attach(changed, cleans_itself=isinstance(table, ExpiryCleanup))
        if self._latency is not None:
            self._latency.track(handle, meta)
        # Only now: a refused registration leaves everything as it was.
        self._tables[meta.name] = table
        self._changed[meta.name] = changed
        self.accessors[meta.name] = handle
        self._requested[meta.name] = meta
        if expiry is not None:
            self._expiring.add(meta.name, expiry)
        elif self._comes_back(meta.value_serializer):
            self.cached.append(handle)
        return handle

    def internal_table(self, name: str, namespace_serializer: TypeSerializer[Any]) -> AnyStateTable:
        """Return the table of a set that the framework keeps; see `KeyedStateBackend.internal_table`."""
        meta = StateMeta(name, StateKind.VALUE, self._key_serializer, namespace_serializer, VOID)
        self._backend.require(meta.kind, name)
        self._tables[name], self._changed[name] = self._table_for(meta, UNKNOWN_TIME)
        return self._changed[name]

    def _table_for(self, meta: StateMeta, stamp: int) -> tuple[AnyStateTable, AnyStateTable]:
        """Return the table of a state, new or as it was restored, and the one through which it is changed."""
        table = self._tables.get(meta.name)
        if table is None:
            table = self._backend.create_state_table(meta, self._context)
        else:
            table = self._adopted(table, meta, stamp)
        changed = self._changed.get(meta.name)
        if changed is None or table is not self._tables[meta.name]:
            changed = table if self._tracker is None else self._tracker.track(table)
        return table, changed

    def _comes_back(self, serializer: TypeSerializer[Any]) -> bool:
        """Return whether a table gives back the very values that were put, which nobody can have changed."""
        by_reference = self._backend.description.level(Capability.OBJECTS_BY_REFERENCE).usable
        return serializer.immutable if by_reference else weight_of(serializer) is not None

    def _adopted(self, restored: AnyStateTable, meta: StateMeta, stamp: int) -> AnyStateTable:
        """Return the table under which a restored state goes on."""
        new = adapted(restored.meta, meta)
        return adopt(restored, new, stamp, lambda: self._backend.create_state_table(new, self._context))


def _check_same_state(registered: StateMeta, requested: StateMeta) -> None:
    """Refuse a second look-up that asks for something else than the first registered."""
    if registered.kind is not requested.kind:
        raise StateKindMismatchError(
            requested.name, registered.kind.value, requested.kind.value, restored=False
        )
    parts = (
        ("namespace", registered.namespace_serializer, requested.namespace_serializer),
        ("value", registered.value_serializer, requested.value_serializer),
    )
    for part, old, new in parts:
        if old != new:
            reason = "one state has one type within a run"
            raise StateMigrationError(requested.name, part, old, new, reason)
