"""Functions written out for one dataclass or kind of tuple, as the dataclass decorator writes ``__init__``.

A loop over the fields costs several times what the fields themselves do, and a record is looked at on every
write, copied for a snapshot and made anew on every restore.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keyedstate.types.contract.serializer import TypeSerializer


def record_maker(cls: type[Any], names: Sequence[str]) -> Callable[[Sequence[Any]], Any]:
    """Return what makes an instance of its fields' values, without ``__init__`` and ``__post_init__``."""
    values = [f"v{index}" for index in range(len(names))]
    lines = [f"{', '.join(values)}, = values"] if values else []
    return _function("make", ["values"], [*lines, *_construction(cls, names, values)], {"cls": cls})


def record_copier(
    cls: type[Any], names: Sequence[str], copies: Sequence[Callable[[Any], Any] | None]
) -> Callable[[Any], Any]:
    """Return what makes another instance, each field copied where it has a function for that."""
    values = [
        f"value.{name}" if copy is None else f"c{index}(value.{name})"
        for index, (name, copy) in enumerate(zip(names, copies, strict=True))
    ]
    given = {f"c{index}": copy for index, copy in enumerate(copies)}
    return _function("copy", ["value"], _construction(cls, names, values), {**given, "cls": cls})


def record_checker(
    cls: type[Any], fields: Sequence[tuple[str, TypeSerializer[Any]]]
) -> Callable[[Any], bool]:
    """Return what says True of most instances that have nothing but fields, each of which has its type.

    Where it does not, or raises KeyError or AttributeError, somebody else has to look closer.
    """
    conditions = ["value.__class__ is cls"]
    read = "value.{}"
    if cls.__dictoffset__:
        # As many as there are fields, and all fields among them: so there is no other.
        conditions.append(f"len(fields := value.__dict__) == {len(fields)}")
        read = "fields[{!r}]"
    given: dict[str, Any] = {"cls": cls}
    condition = all_of(conditions, [(read.format(name), field) for name, field in fields], given)
    return _function("is_value", ["value"], [f"return {condition}"], given)


def value_checker(serializer: TypeSerializer[Any]) -> Callable[[Any], bool]:
    """Return a function that says what the `is_value` of a serializer does."""
    given: dict[str, Any] = {}
    condition = serializer.condition("value", "value", given)
    if condition == "is_value0(value)":
        return serializer.is_value
    return _function("is_value", ["value"], [f"return {condition}"], given)


def all_of(
    conditions: Sequence[str], parts: Sequence[tuple[str, TypeSerializer[Any]]], given: dict[str, Any]
) -> str:
    """Return the condition that some conditions hold, and that parts of a value have their types.

    Parameters
    ----------
    conditions : sequence of str
    parts : sequence of (str, TypeSerializer)
        Expressions, and what their values shall be.
    given : dict
        As of `TypeSerializer.condition`.
    """
    every = list(conditions)
    for expression, serializer in parts:
        name = f"part{len(given)}"
        given[name] = None
        every.append(serializer.condition(f"({name} := {expression})", name, given))
    return f"({' and '.join(every)})"


def _construction(cls: type[Any], names: Sequence[str], values: Sequence[str]) -> list[str]:
    # A frozen class forbids to set attributes, another one may do more than that.
    setter: object = cls.__setattr__
    plain = setter is object.__setattr__
    lines = [
        f"made.{name} = {value}" if plain else f"put(made, {name!r}, {value})"
        for name, value in zip(names, values, strict=True)
    ]
    return ["made = new(cls)", *lines, "return made"]


def _function(
    name: str, parameters: list[str], lines: list[str], given: dict[str, Any]
) -> Callable[..., Any]:
    source = f"def {name}({', '.join(parameters)}):\n" + "".join(f"    {line}\n" for line in lines)
    scope: dict[str, Any] = {**given, "new": object.__new__, "put": object.__setattr__}
    exec(source, scope)
    made: Callable[..., Any] = scope[name]
    return made
