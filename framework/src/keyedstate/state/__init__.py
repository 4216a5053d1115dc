"""Keyed state: declarations, handles and the backend that registers states by name."""

from keyedstate.state.descriptors import (
    InvalidDescriptorError,
    MapState,
    StateDescriptor,
    ValueState,
    declared_states,
)
from keyedstate.state.errors import (
    NoCurrentKeyError,
    NullNamespaceError,
    StateError,
    StateKindMismatchError,
    StateMigrationError,
    StateNotBoundError,
    StateValueError,
)
from keyedstate.state.handles import KeyContext, MapStateHandle, StateHandle, ValueStateHandle
from keyedstate.state.keyed_backend import KeyedStateBackend, SnapshotTask

__all__ = [
    "InvalidDescriptorError",
    "KeyContext",
    "KeyedStateBackend",
    "MapState",
    "MapStateHandle",
    "NoCurrentKeyError",
    "NullNamespaceError",
    "SnapshotTask",
    "StateDescriptor",
    "StateError",
    "StateHandle",
    "StateKindMismatchError",
    "StateMigrationError",
    "StateNotBoundError",
    "StateValueError",
    "ValueState",
    "ValueStateHandle",
    "declared_states",
]
