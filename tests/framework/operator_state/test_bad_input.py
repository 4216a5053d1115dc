"""What a user may do wrong with operator and broadcast state: refused by its name, and nothing changes."""

from __future__ import annotations

import pytest

from keyedstate import types
from keyedstate.errors import StateValueError
from keyedstate.state import BroadcastState, OperatorListState, UnionListState
from keyedstate.state.operator.backend import OperatorStateBackend

STRING = "expected STRING (a str without lone surrogates)"
CONVERT = "Convert the value, or declare the state with the type that it has."
NULLABLE = "Declare the type as nullable(STRING) if None is a value."


@pytest.fixture
def backend() -> OperatorStateBackend:
    return OperatorStateBackend()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda h: h.get(None), f"{STRING} at the map key, got None. {NULLABLE}"),
        (lambda h: h.get(5), f"{STRING} at the map key, got int 5. {CONVERT}"),
        (lambda h: h.get(["a"]), f"{STRING} at the map key, got list ['a']. {CONVERT}"),
        (lambda h: h.contains(5), f"{STRING} at the map key, got int 5. {CONVERT}"),
        (lambda h: h.contains({}), f"{STRING} at the map key, got dict {{}}. {CONVERT}"),
        (lambda h: h.put(None, 1), f"{STRING} at the map key, got None. {NULLABLE}"),
        (lambda h: h.remove(5), f"{STRING} at the map key, got int 5. {CONVERT}"),
        (
            lambda h: h.put_all(None),
            "a dict of entries is needed, got None. Give a dict; put() takes one entry.",
        ),
        (
            lambda h: h.put_all([("a", 1)]),
            "a dict of entries is needed, got [('a', 1)]. Give a dict; put() takes one entry.",
        ),
    ],
)
def test_a_broadcast_map_refuses_what_cannot_be_in_it_by_name(backend, call, message):
    handle = backend.get_state(BroadcastState("rules", types.STRING, types.INT64))
    with backend.broadcast_side():
        handle.put("a", None)
        with pytest.raises(StateValueError) as caught:
            call(handle)
    assert str(caught.value) == f"the state 'rules' refuses the value: {message}"
    assert dict(handle.items()) == {"a": None}
    assert handle.get("a") is None and handle.get("b") is None


def test_none_and_what_is_empty_are_no_zero_of_a_broadcast_map(backend):
    handle = backend.get_state(BroadcastState("weights", types.FLOAT64, types.STRING))
    with backend.broadcast_side():
        handle.put(-0.0, "zero")
        for stranger in (None, "", [], 0, False):
            for call in (handle.get, handle.contains, handle.remove):
                with pytest.raises(StateValueError, match=r"'weights' refuses the value: .* at the map key"):
                    call(stranger)
    assert handle.get(0.0) == "zero"


@pytest.mark.parametrize("declare", [OperatorListState, UnionListState])
def test_an_operator_list_refuses_what_is_no_list_by_name(backend, declare):
    handle = backend.get_state(declare("parts", types.INT64))
    handle.add(1)
    for call in (handle.add_all, handle.update):
        with pytest.raises(StateValueError) as caught:
            call(5)
        assert str(caught.value) == (
            "the state 'parts' refuses the value: a list of elements is needed, got 5. Give a list, also for "
            "one."
        )
    assert list(handle.get()) == [1]
