"""The accessors of states with a time to live, by kind."""

from __future__ import annotations

from typing import Any, cast

from keyedstate.backend import AnyStateTable, StateKind
from keyedstate.state.context import KeyContext
from keyedstate.state.kinds.accessor import StateAccessor, StateDescriptor
from keyedstate.state.ttl.expiry import StateExpiry
from keyedstate.state.ttl_kinds.accumulating import TtlAggregatingStateAccessor, TtlReducingStateAccessor
from keyedstate.state.ttl_kinds.list import TtlListStateAccessor
from keyedstate.state.ttl_kinds.map import TtlMapStateAccessor
from keyedstate.state.ttl_kinds.value import TtlValueStateAccessor

_ACCESSORS: dict[StateKind, Any] = {
    StateKind.VALUE: TtlValueStateAccessor,
    StateKind.LIST: TtlListStateAccessor,
    StateKind.MAP: TtlMapStateAccessor,
    StateKind.REDUCING: TtlReducingStateAccessor,
    StateKind.AGGREGATING: TtlAggregatingStateAccessor,
}


def create_ttl_accessor(
    descriptor: StateDescriptor[Any], table: AnyStateTable, context: KeyContext, expiry: StateExpiry
) -> StateAccessor:
    """Return the accessor over a table of a state that was declared with a time to live."""
    accessor = _ACCESSORS[descriptor.kind](descriptor, table, context)
    accessor._expire_by(expiry)
    return cast(StateAccessor, accessor)
