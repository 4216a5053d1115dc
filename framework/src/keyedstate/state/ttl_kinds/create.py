"""The handle of a state with a time to live."""

from __future__ import annotations

from typing import Any

from keyedstate.backend import AnyStateTable, StateKind
from keyedstate.state.context import KeyContext
from keyedstate.state.kinds.handles import StateDescriptor, StateHandle
from keyedstate.state.ttl.expiry import StateExpiry
from keyedstate.state.ttl_kinds.accumulating import TtlAggregatingStateHandle, TtlReducingStateHandle
from keyedstate.state.ttl_kinds.list import TtlListStateHandle
from keyedstate.state.ttl_kinds.map import TtlMapStateHandle
from keyedstate.state.ttl_kinds.value import TtlValueStateHandle

_HANDLES: dict[StateKind, Any] = {
    StateKind.VALUE: TtlValueStateHandle,
    StateKind.LIST: TtlListStateHandle,
    StateKind.MAP: TtlMapStateHandle,
    StateKind.REDUCING: TtlReducingStateHandle,
    StateKind.AGGREGATING: TtlAggregatingStateHandle,
}


def create_ttl_handle(
    descriptor: StateDescriptor[Any], table: AnyStateTable, context: KeyContext, expiry: StateExpiry
) -> StateHandle:
    """Return the handle over a table of a state that was declared with a time to live."""
    handle: StateHandle = _HANDLES[descriptor.kind](descriptor, table, context, expiry)
    return handle
