"""Keyed and operator state: declarations, handles and the backends that register states by name."""

from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME, Clock, ManualClock, system_clock
from keyedstate.state.context import KeyContext, KeysInTurn
from keyedstate.state.kinds.aggregating import (
    AggregateFunction,
    AggregatingState,
    AggregatingStateHandle,
    FoldingState,
)
from keyedstate.state.kinds.handles import StateDescriptor, StateHandle, declared_states
from keyedstate.state.kinds.list import ListState, ListStateHandle
from keyedstate.state.kinds.map import MapState, MapStateHandle
from keyedstate.state.kinds.map_iterator import MapStateEntry, MapStateIterator
from keyedstate.state.kinds.merging import AccumulatingStateHandle, MergingStateHandle
from keyedstate.state.kinds.reducing import ReducingState, ReducingStateHandle
from keyedstate.state.kinds.value import ValueState, ValueStateHandle
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.operator.broadcast import BroadcastState, BroadcastStateHandle
from keyedstate.state.operator.list_states import (
    OperatorListState,
    OperatorListStateHandle,
    OperatorStateDescriptor,
    OperatorStateHandle,
    UnionListState,
    declared_operator_states,
)
from keyedstate.state.registry.chosen_backend import ChosenBackend, KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.state.registry.latency import LatencySampling
from keyedstate.state.registry.running_snapshot import SnapshotTask
from keyedstate.state.ttl import IncrementalCleanup, Ttl, TtlClock, UpdateType, Visibility

__all__ = [
    "BEFORE_TIME",
    "END_OF_TIME",
    "AccumulatingStateHandle",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateHandle",
    "BroadcastState",
    "BroadcastStateHandle",
    "ChosenBackend",
    "Clock",
    "FoldingState",
    "IncrementalCleanup",
    "KeyContext",
    "KeySpace",
    "KeyedStateBackend",
    "KeysInTurn",
    "LatencySampling",
    "ListState",
    "ListStateHandle",
    "ManualClock",
    "MapState",
    "MapStateEntry",
    "MapStateHandle",
    "MapStateIterator",
    "MergingStateHandle",
    "OperatorListState",
    "OperatorListStateHandle",
    "OperatorStateBackend",
    "OperatorStateDescriptor",
    "OperatorStateHandle",
    "ReducingState",
    "ReducingStateHandle",
    "SnapshotTask",
    "StateDescriptor",
    "StateHandle",
    "Ttl",
    "TtlClock",
    "UnionListState",
    "UpdateType",
    "ValueState",
    "ValueStateHandle",
    "Visibility",
    "declared_operator_states",
    "declared_states",
    "system_clock",
]
