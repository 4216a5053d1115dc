"""Keyed state: declarations, handles and the backend that registers states by name."""

from keyedstate.state.base import StateDescriptor, StateHandle, declared_states
from keyedstate.state.context import KeyContext
from keyedstate.state.errors import (
    InvalidDescriptorError,
    NoCurrentKeyError,
    NullNamespaceError,
    StateError,
    StateKindMismatchError,
    StateMigrationError,
    StateNotBoundError,
    StateValueError,
)
from keyedstate.state.keyed_backend import KeyedStateBackend, SnapshotTask
from keyedstate.state.map import MapState, MapStateHandle
from keyedstate.state.value import ValueState, ValueStateHandle

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
