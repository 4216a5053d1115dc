"""The operator for a kind of function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from keyedstate.runtime.function import KeyedBroadcastProcessFunction, KeyedFunction
from keyedstate.runtime.function_checks import check_function
from keyedstate.runtime.function_checks import row_classes as classes_of_rows
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.row_classes import RowClass
from keyedstate.runtime.runners.batches import BatchOperator
from keyedstate.runtime.runners.keyed_operator import KeyedOperator
from keyedstate.runtime.runners.rows import BroadcastOperator, RowOperator, TwoInputOperator
from keyedstate.runtime.two_inputs import ConnectedInputs, check_inputs
from keyedstate.runtime.vectorized import VectorizedProcessFunction
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.time import EventTime


def keyed_operator(
    function: KeyedFunction,
    backend: KeyedStateBackend,
    *,
    key_columns: Sequence[str],
    key_group_column: str,
    output: OutputSchema,
    side_outputs: Mapping[str, OutputSchema] = MappingProxyType({}),
    row_classes: Mapping[str, RowClass] | None = None,
    epoch: int | None,
    operator_states: OperatorStateBackend | None = None,
    task: int = 0,
    parallelism: int = 1,
    event_time: EventTime | None = None,
    connected: ConnectedInputs | None = None,
) -> KeyedOperator:
    """Return what runs a process function over the rows of one partition.

    Parameters
    ----------
    function : KeyedProcessFunction, VectorizedProcessFunction or KeyedCoProcessFunction
    backend : KeyedStateBackend
        Opened over the partition's key groups, with `key_serializer_for` the key columns.
    key_columns : sequence of str
    key_group_column : str
        Name of the int32 column with each row's key group; it is not shown to the function.
    output : OutputSchema
    side_outputs : mapping of str to OutputSchema, optional
        Where there are any, batches of all outputs come out as `keyedstate.runtime.side_outputs` has them.
    row_classes : mapping of str to RowClass, optional
        Those that the function names for its rows, where they were looked up elsewhere.
    epoch : int or None
    operator_states : OperatorStateBackend, optional
        With what the task restores; an empty one by default.
    task, parallelism : int, optional
        Which task this is, from 0, and of how many.
    event_time : EventTime, optional
        The event time of the rows of one input.
    connected : ConnectedInputs, optional
        The two inputs of a `KeyedCoProcessFunction`, with the columns of their event times.

    Raises
    ------
    InvalidFunctionError
    """
    check_function(function)
    check_inputs(function, connected=connected is not None)
    arguments: dict[str, Any] = {
        "key_columns": key_columns,
        "key_group_column": key_group_column,
        "output": output,
        "side_outputs": side_outputs,
        "epoch": epoch,
        "operator_states": OperatorStateBackend() if operator_states is None else operator_states,
        "task": task,
        "parallelism": parallelism,
        "event_time": event_time,
    }
    if isinstance(function, VectorizedProcessFunction):
        return BatchOperator(function, backend, **arguments)
    arguments["row_classes"] = classes_of_rows(function) if row_classes is None else row_classes
    if connected is not None:
        return TwoInputOperator(function, backend, connected=connected, **arguments)
    if isinstance(function, KeyedBroadcastProcessFunction):
        return BroadcastOperator(function, backend, **arguments)
    return RowOperator(function, backend, **arguments)
