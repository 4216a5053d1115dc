"""Keyed and operator state: descriptors, which declare states, and accessors, which read and write them."""

from keyedstate.state.clock import ManualClock
from keyedstate.state.kinds.accessor import StateAccessor, StateDescriptor
from keyedstate.state.kinds.aggregating import (
    AggregateFunction,
    AggregatingState,
    AggregatingStateAccessor,
    FoldingState,
)
from keyedstate.state.kinds.list import ListState, ListStateAccessor
from keyedstate.state.kinds.map import MapState, MapStateAccessor
from keyedstate.state.kinds.map_iterator import MapStateEntry, MapStateIterator
from keyedstate.state.kinds.reducing import ReducingState, ReducingStateAccessor
from keyedstate.state.kinds.value import ValueState, ValueStateAccessor
from keyedstate.state.operator.broadcast import BroadcastState, BroadcastStateAccessor
from keyedstate.state.operator.list_states import OperatorListState, OperatorListStateAccessor, UnionListState
from keyedstate.state.ttl import IncrementalCleanup, Ttl, TtlClock, UpdateType, Visibility

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateAccessor",
    "BroadcastState",
    "BroadcastStateAccessor",
    "FoldingState",
    "IncrementalCleanup",
    "ListState",
    "ListStateAccessor",
    "ManualClock",
    "MapState",
    "MapStateAccessor",
    "MapStateEntry",
    "MapStateIterator",
    "OperatorListState",
    "OperatorListStateAccessor",
    "ReducingState",
    "ReducingStateAccessor",
    "StateAccessor",
    "StateDescriptor",
    "Ttl",
    "TtlClock",
    "UnionListState",
    "UpdateType",
    "ValueState",
    "ValueStateAccessor",
    "Visibility",
]
