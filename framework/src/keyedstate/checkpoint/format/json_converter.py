"""Data classes as JSON values and back, strictly by their fields and annotations.

A value of another type than its annotation is refused: nothing is converted.  A field with a default may be
missing, and unknown ones are ignored, so that files of earlier and later versions can be read.  The metadata
of a field may have its name in JSON, ``json``; ``json_omits_default`` leaves it out where it has its default.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, get_args

from cattrs.converters import BaseConverter, Converter
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from keyedstate.checkpoint.format.manifest import FailureReason
from keyedstate.keygroups import KeyGroupRange

T = TypeVar("T")


def to_json(value: object) -> Any:
    """Return a data class as a JSON object, which may have tuples in place of lists."""
    return _converter.unstructure(value)


def from_json(kind: type[T], document: object) -> T:
    """Return the data class that a JSON object describes.

    Raises `KeyError`, `TypeError` and `ValueError` where a field is missing, has another type, or a value
    that it must not have.
    """
    return _converter.structure(document, kind)


def _of_type(*kinds: type) -> Callable[[Any, Any], Any]:
    def check(value: Any, _: Any) -> Any:
        # Not by isinstance: a truth value is no number.
        if type(value) not in kinds:
            raise TypeError(f"{value!r} is no {kinds[0].__name__}")
        return value

    return check


def _counts(value: Any, _: Any) -> dict[str, int]:
    if type(value) is not dict or any(type(count) is not int for count in value.values()):
        raise TypeError(f"{value!r} does not map names to whole numbers")
    return value


def _is(origin: type) -> Callable[[Any], bool]:
    return lambda kind: getattr(kind, "__origin__", None) is origin


def _mapping_of(kind: Any, converter: BaseConverter) -> Callable[[Any, Any], Any]:
    of_values = get_args(kind)[1]
    hook = converter.get_structure_hook(of_values)
    check = _of_type(dict)
    return lambda value, _: {name: hook(each, of_values) for name, each in check(value, _).items()}


def _tuple_of(kind: Any, converter: BaseConverter) -> Callable[[Any, Any], Any]:
    parts = get_args(kind)
    hooks = [(converter.get_structure_hook(part), part) for part in parts if part is not Ellipsis]
    varying = Ellipsis in parts

    def structure(value: Any, _: Any) -> tuple[Any, ...]:
        if type(value) is not list and type(value) is not tuple:
            raise TypeError(f"{value!r} is no list")
        wanted = hooks * len(value) if varying else hooks
        return tuple(hook(each, part) for each, (hook, part) in zip(value, wanted, strict=True))

    return structure


def _renamed(kind: type[Any]) -> dict[str, Any]:
    """Return how fields are written that have another name, or are left out where they have their default."""
    return {
        field.name: override(
            rename=field.metadata.get("json"), omit_if_default=field.metadata.get("json_omits_default")
        )
        for field in dataclasses.fields(kind)
        if field.metadata.keys() & {"json", "json_omits_default"}
    }


def _has_renamed(kind: type[Any]) -> bool:
    return dataclasses.is_dataclass(kind) and bool(_renamed(kind))


def _build_converter() -> Converter:
    made = Converter(detailed_validation=False)
    made.register_structure_hook_factory(
        _has_renamed, lambda kind: make_dict_structure_fn(kind, made, **_renamed(kind))
    )
    made.register_unstructure_hook_factory(
        _has_renamed, lambda kind: make_dict_unstructure_fn(kind, made, **_renamed(kind))
    )
    for kind in (bool, int, str):
        made.register_structure_hook(kind, _of_type(kind))
    made.register_structure_hook(float, _of_type(float, int))
    made.register_structure_hook_factory(_is(tuple), _tuple_of)
    made.register_structure_hook_factory(_is(Mapping), _mapping_of)
    made.register_structure_hook(
        KeyGroupRange, lambda bounds, _: KeyGroupRange(*made.structure(bounds, tuple[int, int]))
    )
    made.register_unstructure_hook(KeyGroupRange, lambda groups: [groups.start, groups.end])
    made.register_structure_hook(FailureReason, lambda name, _: FailureReason[name])
    made.register_unstructure_hook(FailureReason, lambda reason: reason.name)
    # Plain JSON as it is: checkpoints of many tasks are large, and Spark waits for their publication.
    plain: dict[Any, Callable[[Any, Any], Any]] = {
        Mapping[str, Any]: _of_type(dict),
        Mapping[str, int]: _counts,
        Sequence[int]: _of_type(list),
    }
    for kind, check in plain.items():
        made.register_structure_hook_func(partial(operator.eq, kind), check)
        made.register_unstructure_hook_func(partial(operator.eq, kind), lambda value: value)
    return made


_converter = _build_converter()
