"""Keyed and operator state: declarations, handles and the backends that register states by name."""

from keyedstate.durations import InvalidDurationError
from keyedstate.state.aggregating import (
    AggregateFunction,
    AggregatingState,
    AggregatingStateHandle,
    FoldingState,
)
from keyedstate.state.base import StateDescriptor, StateHandle, declared_states
from keyedstate.state.broadcast_state import BroadcastState, BroadcastStateHandle
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME, Clock, ManualClock, system_clock
from keyedstate.state.context import KeyContext, KeysInTurn
from keyedstate.state.errors import (
    InvalidDescriptorError,
    InvalidTtlError,
    MergeError,
    MissingEventTimeError,
    NoCurrentKeyError,
    NothingToRemoveError,
    NullNamespaceError,
    ReadOnlyBroadcastStateError,
    SnapshotCancelledError,
    StateConversionError,
    StateError,
    StateKindMismatchError,
    StateMigrationError,
    StateNotBoundError,
    StateValueError,
    UnknownChangesError,
    UnorderedKeyError,
    WorkingFolderError,
)
from keyedstate.state.keyed_backend import KeyedStateBackend
from keyedstate.state.latency import LatencySampling
from keyedstate.state.list import ListState, ListStateHandle
from keyedstate.state.map import MapState, MapStateHandle
from keyedstate.state.map_iterator import MapStateEntry, MapStateIterator
from keyedstate.state.merging import AccumulatingStateHandle, MergingStateHandle
from keyedstate.state.operator_backend import OperatorStateBackend
from keyedstate.state.operator_state import (
    OperatorListState,
    OperatorListStateHandle,
    OperatorStateDescriptor,
    OperatorStateHandle,
    UnionListState,
    declared_operator_states,
)
from keyedstate.state.reducing import ReducingState, ReducingStateHandle
from keyedstate.state.snapshots import SnapshotTask
from keyedstate.state.ttl import IncrementalCleanup, Ttl, TtlClock, UpdateType, Visibility
from keyedstate.state.value import ValueState, ValueStateHandle

__all__ = [
    "BEFORE_TIME",
    "END_OF_TIME",
    "AccumulatingStateHandle",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateHandle",
    "BroadcastState",
    "BroadcastStateHandle",
    "Clock",
    "FoldingState",
    "IncrementalCleanup",
    "InvalidDescriptorError",
    "InvalidDurationError",
    "InvalidTtlError",
    "KeyContext",
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
    "MergeError",
    "MergingStateHandle",
    "MissingEventTimeError",
    "NoCurrentKeyError",
    "NothingToRemoveError",
    "NullNamespaceError",
    "OperatorListState",
    "OperatorListStateHandle",
    "OperatorStateBackend",
    "OperatorStateDescriptor",
    "OperatorStateHandle",
    "ReadOnlyBroadcastStateError",
    "ReducingState",
    "ReducingStateHandle",
    "SnapshotCancelledError",
    "SnapshotTask",
    "StateConversionError",
    "StateDescriptor",
    "StateError",
    "StateHandle",
    "StateKindMismatchError",
    "StateMigrationError",
    "StateNotBoundError",
    "StateValueError",
    "Ttl",
    "TtlClock",
    "UnionListState",
    "UnknownChangesError",
    "UnorderedKeyError",
    "UpdateType",
    "ValueState",
    "ValueStateHandle",
    "Visibility",
    "WorkingFolderError",
    "declared_operator_states",
    "declared_states",
    "system_clock",
]
