"""Keyed and operator state: declarations, handles and the backends that register states by name."""

from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME, Clock, ManualClock, system_clock
from keyedstate.state.context import KeyContext, KeySequence
from keyedstate.state.kinds.accessor import StateAccessor, StateDescriptor, declared_states
from keyedstate.state.kinds.aggregating import (
    AggregateFunction,
    AggregatingState,
    AggregatingStateAccessor,
    FoldingState,
)
from keyedstate.state.kinds.list import ListState, ListStateAccessor
from keyedstate.state.kinds.map import MapState, MapStateAccessor
from keyedstate.state.kinds.map_iterator import MapStateEntry, MapStateIterator
from keyedstate.state.kinds.merging import AccumulatingStateAccessor, MergingStateAccessor
from keyedstate.state.kinds.reducing import ReducingState, ReducingStateAccessor
from keyedstate.state.kinds.value import ValueState, ValueStateAccessor
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.operator.broadcast import BroadcastState, BroadcastStateAccessor
from keyedstate.state.operator.list_states import (
    OperatorListState,
    OperatorListStateAccessor,
    OperatorStateAccessor,
    OperatorStateDescriptor,
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
    "AccumulatingStateAccessor",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateAccessor",
    "BroadcastState",
    "BroadcastStateAccessor",
    "ChosenBackend",
    "Clock",
    "FoldingState",
    "IncrementalCleanup",
    "KeyContext",
    "KeySequence",
    "KeySpace",
    "KeyedStateBackend",
    "LatencySampling",
    "ListState",
    "ListStateAccessor",
    "ManualClock",
    "MapState",
    "MapStateAccessor",
    "MapStateEntry",
    "MapStateIterator",
    "MergingStateAccessor",
    "OperatorListState",
    "OperatorListStateAccessor",
    "OperatorStateAccessor",
    "OperatorStateBackend",
    "OperatorStateDescriptor",
    "ReducingState",
    "ReducingStateAccessor",
    "SnapshotTask",
    "StateAccessor",
    "StateDescriptor",
    "Ttl",
    "TtlClock",
    "UnionListState",
    "UpdateType",
    "ValueState",
    "ValueStateAccessor",
    "Visibility",
    "declared_operator_states",
    "declared_states",
    "system_clock",
]
