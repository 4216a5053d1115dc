"""Checks of a function before a task runs it: its methods, their parameters, its states, its row classes."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType

import pyarrow as pa

from keyedstate.errors import InvalidFunctionError, closest_names
from keyedstate.runtime.functions.connected_inputs import (
    KeyedCoProcessFunction,
    input_names,
    number_of_inputs,
    process_method,
)
from keyedstate.runtime.functions.keyed import (
    KeyedBroadcastProcessFunction,
    KeyedFunction,
    KeyedProcessFunction,
    refuse_lone_broadcast_state,
)
from keyedstate.runtime.functions.row_runs import RunFunction
from keyedstate.runtime.functions.vectorized import (
    VectorizedBroadcastProcessFunction,
    VectorizedProcessFunction,
)
from keyedstate.runtime.row_classes import RowClass, row_class_of
from keyedstate.state import StateDescriptor
from keyedstate.state.operator.list_states import OperatorStateDescriptor, declared_operator_states

#: The kinds of rows that a function reads; `input_names` has those of several inputs.
ROWS, BROADCAST = "rows", "broadcast"
_PROCESS = {"process": ("row", "ctx")}
_PROCESS_BATCH = {"process_batch": ("batch", "ctx")}
#: The methods that a function of each class must define, and their parameters.
_NEEDED: tuple[tuple[type, Mapping[str, tuple[str, ...]]], ...] = (
    (KeyedBroadcastProcessFunction, {**_PROCESS, "process_broadcast": ("row", "ctx")}),
    (KeyedProcessFunction, _PROCESS),
    (KeyedCoProcessFunction, {process_method(number): ("row", "ctx") for number in range(2)}),
    (VectorizedBroadcastProcessFunction, {**_PROCESS_BATCH, "process_broadcast": ("batch", "ctx")}),
    (VectorizedProcessFunction, _PROCESS_BATCH),
)
#: The methods that it may define.
_OPTIONAL = {
    "on_timer": ("time", "ctx"),
    "on_timers": ("timers", "ctx"),
    "end_epoch": ("ctx",),
    "open": ("ctx",),
    "close": (),
}
#: The kinds of rows, the generic class that names their class, and the index of its type parameter.
_TYPE_PARAMETERS: tuple[tuple[str, type, int], ...] = (
    (ROWS, KeyedProcessFunction, 0),
    (BROADCAST, KeyedBroadcastProcessFunction, 1),
    *((name, KeyedCoProcessFunction, index) for index, name in enumerate(input_names(2))),
)
_BASES = (KeyedFunction, *(base for base, _ in _NEEDED))
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
_ENCLOSING = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


def check_function(function: object) -> None:
    """Refuse an object that is no process function, or one that would fail in a task.

    Raises `InvalidFunctionError` for a class in place of an instance, a method that is missing, has other
    parameters or is never called, a declared state that the function cannot have, and one that is used and
    never bound; and
    `InvalidDescriptorError` where two attributes declare states of one name.
    """
    if isinstance(function, type) and issubclass(function, KeyedFunction):
        raise InvalidFunctionError(
            function.__name__, "it is a class, and an instance is needed; did you forget ()?"
        )
    if not isinstance(function, KeyedFunction):
        raise InvalidFunctionError(
            repr(function),
            "it is not a KeyedProcessFunction, KeyedCoProcessFunction or VectorizedProcessFunction; derive "
            "its class from one of these and pass an instance",
        )
    needed = next((methods for base, methods in _NEEDED if isinstance(function, base)), {})
    check_methods(function, _BASES, needed, _OPTIONAL)
    # No base class has the methods of further inputs.
    for name in map(process_method, range(2, number_of_inputs(function))):
        if hasattr(function, name):
            _check_method(function, name, ("row", "ctx"))
    if isinstance(function, RunFunction):
        _refuse_methods_of_rows(function)
    if not isinstance(function.side_outputs, Mapping):
        raise InvalidFunctionError(
            type(function).__name__,
            f"its side_outputs is {function.side_outputs!r}; give a mapping of names to columns, as in "
            "side_outputs = {'late': 'user string, n long'}",
        )
    for state in declared_operator_states(function):
        refuse_lone_broadcast_state(function, state)
    _refuse_loose_states(function)


def row_classes(function: KeyedFunction) -> dict[str, RowClass]:
    """Return the classes that a function names for its rows, by the kind of rows; without plain rows.

    Raises `RowClassError`.
    """
    found = {
        rows: row_class_of(function, base, index)
        for rows, base, index in _TYPE_PARAMETERS
        if isinstance(function, base)
    }
    return {rows: row_class for rows, row_class in found.items() if row_class is not None}


def check_row_classes(function: KeyedFunction, columns_of: Callable[[str], pa.Schema]) -> None:
    """Refuse a function with a row class that does not fit the columns; raises `RowClassError`.

    `columns_of` returns the columns of a kind of rows: `ROWS`, `BROADCAST` or one of `input_names`.
    """
    for name, row_class in row_classes(function).items():
        row_class.check(columns_of(name))


def check_methods(
    function: object,
    bases: Sequence[type],
    needed: Mapping[str, tuple[str, ...]],
    optional: Mapping[str, tuple[str, ...]],
) -> None:
    """Refuse a user's object that lacks a needed method, or has one with other parameters.

    The methods of `bases` themselves do not count. Raises `InvalidFunctionError`.
    """
    for name in needed:
        if not _has(function, name, bases):
            raise _missing(function, name, needed[name])
    # A method whose name no base class of the function has is never called.
    called = {name for base in bases if isinstance(function, base) for name in vars(base)}
    for name, arguments in {**optional, **needed}.items():
        if name in called and _has(function, name, bases):
            _check_method(function, name, arguments)


def _has(function: object, name: str, bases: Sequence[type]) -> bool:
    """Return whether a function defines a method itself."""
    own = getattr(type(function), name, None)
    inherited = any(own is vars(base).get(name) for base in bases)
    return name in vars(function) or (own is not None and not inherited)


def _called(name: str, arguments: tuple[str, ...]) -> str:
    return f"{name}({', '.join(('self', *arguments))})"


def _missing(function: object, name: str, arguments: tuple[str, ...]) -> InvalidFunctionError:
    own = [attribute for attribute in vars(type(function)) if not attribute.startswith("_")]
    close = closest_names(name, own)
    hint = f"; did you mean it by {close[0]!r}?" if close else ""
    return InvalidFunctionError(
        type(function).__name__, f"it has no {name}(); define {_called(name, arguments)}{hint}"
    )


def _check_method(function: object, name: str, arguments: tuple[str, ...]) -> None:
    owner, method = type(function).__name__, getattr(function, name)
    if not callable(method):
        kind = type(method).__name__
        article = "an" if kind[0] in "aeiou" else "a"
        raise InvalidFunctionError(
            owner, f"its {name} is {article} {kind} and no method; define {_called(name, arguments)}"
        )
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        raise InvalidFunctionError(
            owner, f"its {name}() is asynchronous, and nothing would await it; define it without async"
        )
    try:
        # Of the decorator, which is called; the function in it may have other parameters.
        signature = inspect.signature(method, follow_wrapped=False)
    except (TypeError, ValueError):  # of a method that is not written in Python
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise InvalidFunctionError(
            owner,
            f"its {name}{signature} cannot be called as {name}({', '.join(arguments)}); define "
            f"{_called(name, arguments)}",
        ) from None


def _refuse_methods_of_rows(function: RunFunction) -> None:
    """Refuse a method for single rows in a function that handles the rows of a key in runs."""
    for name in map(process_method, range(number_of_inputs(function))):
        if _has(function, name, (RunFunction,)):
            of_runs = next(
                base.__name__
                for base in type(function).__mro__
                if getattr(base, name, None) is vars(RunFunction).get(name)
            )
            raise InvalidFunctionError(
                type(function).__name__,
                f"its {name}() is never called, because {of_runs} handles several rows of a key in one call; "
                f"remove {name}() and change the rows before the join, or derive the class from "
                "KeyedCoProcessFunction",
            )


def _refuse_loose_states(function: KeyedFunction) -> None:
    """Refuse a method that uses a state declared outside the class, which nothing binds."""
    for owner in type(function).__mro__:
        for method in vars(owner).values():
            if not isinstance(method, FunctionType) or owner.__module__.startswith("keyedstate."):
                continue
            try:
                variables = inspect.getclosurevars(method)
            except ValueError:  # of one that refers to a variable without a value
                continue
            states = {
                name: value
                for name, value in {**variables.globals, **variables.nonlocals}.items()
                if isinstance(value, (StateDescriptor, OperatorStateDescriptor))
            }
            if not states:
                continue
            for name, attribute in _attributes_of(method.__code__, set(method.__code__.co_freevars)):
                state = states.get(name)
                if state is not None and not hasattr(state, attribute):
                    raise InvalidFunctionError(
                        type(function).__name__,
                        f"{method.__name__}() calls {name}.{attribute}(), and the state {state.name!r} is "
                        "declared outside the class, where nothing binds it to a key; declare it as a class "
                        "attribute and use it as an attribute of self",
                    )


def _attributes_of(code: CodeType, free: set[str]) -> Iterator[tuple[str, str]]:
    """Yield (variable, attribute) of each lookup of an attribute on a global or on a variable in `free`."""
    before = None
    for instruction in dis.get_instructions(code):
        if (
            before is not None
            and instruction.opname in _ATTRIBUTES
            and (before.opname in _GLOBALS or (before.opname in _ENCLOSING and before.argval in free))
        ):
            yield before.argval, instruction.argval
        before = instruction
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _attributes_of(constant, free & set(constant.co_freevars))
