"""Functions generated for one dataclass or kind of tuple, as the dataclass decorator generates ``__init__``.

A loop over the fields costs several times as much as the fields themselves, and each record is checked on
every write, copied for a snapshot and made on every restore.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from keyedstate.row_path import checker

if TYPE_CHECKING:
    from keyedstate.types.contract.serializer import TypeSerializer


def record_maker(cls: type[Any], names: Sequence[str]) -> Callable[[Sequence[Any]], Any]:
    """Return a function from fields' values to an instance, without ``__init__`` and ``__post_init__``."""
    values = [f"v{index}" for index in range(len(names))]
    lines = [f"{', '.join(values)}, = values"] if values else []
    return generated_function("make", ["values"], [*lines, *_construction(cls, names, values)], {"cls": cls})


def record_copier(
    cls: type[Any], names: Sequence[str], copies: Sequence[Callable[[Any], Any] | None]
) -> Callable[[Any], Any]:
    """Return a function that copies an instance; fields with a function are copied by it."""
    values = [
        f"value.{name}" if copy is None else f"c{index}(value.{name})"
        for index, (name, copy) in enumerate(zip(names, copies, strict=True))
    ]
    given = {f"c{index}": copy for index, copy in enumerate(copies)}
    return generated_function("copy", ["value"], _construction(cls, names, values), {**given, "cls": cls})


def record_checker(
    cls: type[Any], fields: Sequence[tuple[str, TypeSerializer[Any]]]
) -> Callable[[Any], bool]:
    """Return a quick check, which is True for most instances with nothing but fields of the right types.

    Where it is False, or raises KeyError or AttributeError, the caller checks the instance in full.
    """
    conditions = ["value.__class__ is cls"]
    read = "value.{}"
    if cls.__dictoffset__:
        # As many as there are fields, and all fields among them: so there is no other.
        conditions.append(f"len(fields := value.__dict__) == {len(fields)}")
        read = "fields[{!r}]"
    given: dict[str, Any] = {"cls": cls}
    condition = all_of(conditions, [(read.format(name), field) for name, field in fields], given)
    return generated_function("is_value", ["value"], [f"return {condition}"], given)


def value_checker(serializer: TypeSerializer[Any]) -> Callable[[Any], bool]:
    """Return a function that does the same as the `is_value` of a serializer."""
    if checker is not None:
        parts = serializer.check_parts()
        return serializer.is_value if parts[0] == "call" else checker(parts)
    given: dict[str, Any] = {}
    condition = serializer.condition("value", "value", given)
    if condition == "is_value0(value)":
        return serializer.is_value
    return generated_function("is_value", ["value"], [f"return {condition}"], given)


def all_of(
    conditions: Sequence[str], parts: Sequence[tuple[str, TypeSerializer[Any]]], given: dict[str, Any]
) -> str:
    """Return an expression for some conditions, and for the types of parts of a value.

    `given` is that of `TypeSerializer.condition`.
    """
    every = list(conditions)
    for expression, serializer in parts:
        name = f"part{len(given)}"
        given[name] = None
        every.append(serializer.condition(f"({name} := {expression})", name, given))
    return f"({' and '.join(every)})"


def _construction(cls: type[Any], names: Sequence[str], values: Sequence[str]) -> list[str]:
    # A frozen class forbids to set attributes, another class may do more than that.
    setter: object = cls.__setattr__
    plain = setter is object.__setattr__
    lines = [
        f"made.{name} = {value}" if plain else f"put(made, {name!r}, {value})"
        for name, value in zip(names, values, strict=True)
    ]
    return ["made = new(cls)", *lines, "return made"]


def generated_function(
    name: str, parameters: list[str], lines: list[str], given: dict[str, Any]
) -> Callable[..., Any]:
    """Return a function with these parameters and lines, in which `given` has the objects of names."""
    source = f"def {name}({', '.join(parameters)}):\n" + "".join(f"    {line}\n" for line in lines)
    scope: dict[str, Any] = {**given, "new": object.__new__, "put": object.__setattr__}
    exec(source, scope)
    made: Callable[..., Any] = scope[name]
    return made
