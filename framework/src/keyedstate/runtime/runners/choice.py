"""The operator for a kind of function."""

from __future__ import annotations

from keyedstate.runtime.functions.checks import check_function
from keyedstate.runtime.functions.connected_inputs import check_inputs
from keyedstate.runtime.functions.groups import GroupedFunction
from keyedstate.runtime.functions.keyed import KeyedBroadcastProcessFunction, KeyedFunction
from keyedstate.runtime.functions.vectorized import (
    VectorizedBroadcastProcessFunction,
    VectorizedProcessFunction,
)
from keyedstate.runtime.runners.batches import BatchOperator, BroadcastBatchOperator
from keyedstate.runtime.runners.groups import GroupOperator
from keyedstate.runtime.runners.keyed_operator import KeyedOperator, OperatorSpec
from keyedstate.runtime.runners.rows import BroadcastOperator, ConnectedOperator, RowOperator
from keyedstate.state.registry.keyed_backend import KeyedStateBackend


def keyed_operator(function: KeyedFunction, backend: KeyedStateBackend, spec: OperatorSpec) -> KeyedOperator:
    """Return the operator that runs a process function over the rows of one partition.

    The backend is opened over the partition's key groups, with `key_serializer_for` the key columns.
    Raises `InvalidFunctionError`.
    """
    check_function(function)
    check_inputs(function, 1 if spec.connected is None else len(spec.connected.inputs))
    if isinstance(function, VectorizedBroadcastProcessFunction):
        return BroadcastBatchOperator(function, backend, spec)
    if isinstance(function, VectorizedProcessFunction):
        return BatchOperator(function, backend, spec)
    if isinstance(function, GroupedFunction):
        return GroupOperator(function, backend, spec)
    if spec.connected is not None:
        return ConnectedOperator(function, backend, spec)
    if isinstance(function, KeyedBroadcastProcessFunction):
        return BroadcastOperator(function, backend, spec)
    return RowOperator(function, backend, spec)
