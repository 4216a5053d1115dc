"""Checks of a function against the inputs of its operator, before any task runs it."""

from __future__ import annotations

from keyedstate.epoch.event_time import EventTimes
from keyedstate.errors import InvalidFunctionError, MissingEventTimeError
from keyedstate.joins import IntervalJoinFunction
from keyedstate.runtime import KeyedFunction
from keyedstate.runtime.functions.connected_inputs import check_inputs
from keyedstate.state import TtlClock
from keyedstate.state.kinds.accessor import declared_states
from keyedstate.state.operator.list_states import declared_operator_states
from keyedstate.types import refuse_generic
from keyedstate.windows import WindowedFunction


def check_sides(function: KeyedFunction, *, inputs: int, broadcast: bool) -> None:
    """Raise `InvalidFunctionError` for a function with other inputs than the operator has."""
    check_inputs(function, inputs)
    name = type(function).__name__
    two_sided = function._has_broadcast_side
    if two_sided and not broadcast:
        raise InvalidFunctionError(
            name, "it has a broadcast side; give it rows with keyed(...).broadcast(rows)"
        )
    if broadcast and not two_sided:
        raise InvalidFunctionError(
            name,
            "it has no broadcast side; derive its class from KeyedBroadcastProcessFunction or "
            "VectorizedBroadcastProcessFunction, or leave out .broadcast()",
        )


def check_states(function: KeyedFunction, *, generic_types: bool, event_times: EventTimes) -> None:
    """Refuse states that no task could register: `GenericTypeForbiddenError`, `MissingEventTimeError`."""
    states = declared_states(function)
    if isinstance(function, (WindowedFunction, IntervalJoinFunction)):
        states += function.states()
    for state in states:
        if not generic_types:
            refuse_generic(state.name, state.serializer)
        if not event_times and state.ttl is not None and state.ttl.clock is TtlClock.EVENT_TIME:
            raise MissingEventTimeError(state.name)
    if not generic_types:
        for operator_state in declared_operator_states(function):
            operator_state.meta.refuse_generic()
