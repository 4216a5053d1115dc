"""Types from Python annotations, and records from the annotations of dataclasses."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import decimal
import enum
import inspect
import sys
import types as python_types
import typing
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Union, cast, get_args, get_origin

import numpy as np

from keyedstate.errors import UnsupportedTypeError
from keyedstate.types.collections.arrays import ELEMENT_DTYPES, array_of
from keyedstate.types.collections.maps import map_of
from keyedstate.types.collections.nullable import nullable
from keyedstate.types.collections.sequences import list_of, set_of
from keyedstate.types.collections.tuples import tuple_of
from keyedstate.types.contract.serializer import TypeSerializer
from keyedstate.types.records.hierarchies import HierarchySerializer
from keyedstate.types.records.records import RecordSerializer, dataclass_record
from keyedstate.types.scalars.enums import class_name, enum_of
from keyedstate.types.scalars.generic import pickled
from keyedstate.types.scalars.namespaces import VOID, VoidNamespace
from keyedstate.types.scalars.numbers import BOOLEAN, FLOAT64, INT64
from keyedstate.types.scalars.numpy_scalars import numpy_scalar
from keyedstate.types.scalars.pandas_times import pandas_timestamp
from keyedstate.types.scalars.temporal import DATE, DURATION, TIME, TIMESTAMP
from keyedstate.types.scalars.text import BYTES, STRING, UUID

_PLAIN: dict[object, TypeSerializer[Any]] = {
    bool: BOOLEAN,
    int: INT64,
    float: FLOAT64,
    str: STRING,
    bytes: BYTES,
    dt.date: DATE,
    dt.datetime: TIMESTAMP,
    dt.time: TIME,
    dt.timedelta: DURATION,
    uuid.UUID: UUID,
    VoidNamespace: VOID,
}
_ARRAY_ELEMENTS: dict[object, TypeSerializer[Any]] = {
    dtype.type: element for element, dtype in ELEMENT_DTYPES.items()
}
#: Why a class or form has no type, and what to do.
_REFUSALS: dict[object, tuple[str, str]] = {
    decimal.Decimal: (
        "its number of digits is not known",
        "Give it: types.decimal(10, 2), in a dataclass as Annotated[Decimal, types.decimal(10, 2)].",
    ),
    list: ("it does not say what its elements are", "Write list[int], say."),
    set: ("it does not say what its elements are", "Write set[int], say."),
    dict: ("it does not say what its keys and values are", "Write dict[str, int], say."),
    tuple: ("it does not say what its fields are", "Write tuple[str, int], say."),
    np.ndarray: ("it does not say what its elements are", "Write numpy.typing.NDArray[numpy.int64], say."),
    frozenset: ("what is read is a set", "Write set[...]."),
    bytearray: ("it changes in place", "Write bytes."),
    None: ("it holds nothing", "Use VOID for no value."),
    type(None): ("it holds nothing", "Use VOID for no value."),
    Union: (
        "a value of several types has no column",
        "Use one dataclass with record_of(..., subclasses=[...]), or pickled().",
    ),
    typing.Literal: (
        "it names some values and not their type",
        "Write the type of the values, such as str, or make them an enum.",
    ),
    collections.abc.Sequence: ("several classes are sequences", "Write list[...]."),
    collections.abc.Iterable: ("several classes are iterables", "Write list[...]."),
    collections.abc.Mapping: ("several classes are mappings", "Write dict[..., ...]."),
}
_OTHERWISE = (
    "no type is known for it",
    "Make it a dataclass, give the type with Annotated[..., types....], or use pickled().",
)


def from_annotation(annotation: Any, where: str = "", within: tuple[type, ...] = ()) -> TypeSerializer[Any]:
    """Return the type of the values that a Python annotation describes, or raise `UnsupportedTypeError`.

    ``int``, ``list[str]``, ``Optional[float]``, a dataclass, an enum ...; ``Annotated[...]`` with a type of
    this package is that type. `where` names the owner of the annotation in errors; `within` are the
    dataclasses around it.
    """

    def part(inner: Any) -> TypeSerializer[Any]:
        return _of_part(inner, where, within)

    if isinstance(annotation, TypeSerializer):
        return annotation
    if isinstance(annotation, (str, typing.ForwardRef)):
        raise _named(where, repr(annotation), "it names a type and is none", "Give the class itself.")
    if annotation is Any or annotation is object:
        return pickled()
    plain: TypeSerializer[Any] | None = _looked_up(_PLAIN, annotation)
    if plain is not None:
        return plain
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        given = [extra for extra in arguments[1:] if isinstance(extra, TypeSerializer)]
        return given[0] if given else part(arguments[0])
    if origin in (Union, python_types.UnionType):
        others = [argument for argument in arguments if argument is not type(None)]
        if len(others) == 1 and len(others) < len(arguments):
            inner = part(others[0])
            return inner if inner.null_is_value else nullable(inner)
        raise _refused(annotation, Union, where)
    if not arguments:
        origin = None  # typing.List without its element is list
    if origin is list:
        return _made(where, list_of, part(arguments[0]))
    if origin is set:
        return _made(where, set_of, part(arguments[0]))
    if origin is dict:
        return _made(where, map_of, part(arguments[0]), from_annotation(arguments[1], where, within))
    if origin is tuple:
        if Ellipsis in arguments:
            raise _named(
                where, _shown(annotation), "a tuple has a fixed number of fields", "Write list[...]."
            )
        return tuple_of(*map(part, arguments))
    if origin is np.ndarray:
        element = _looked_up(_ARRAY_ELEMENTS, (get_args(arguments[-1]) or (None,))[0])
        if element is not None:
            return array_of(element)
    if isinstance(annotation, type) and origin is None:
        found = _of_class(annotation, where, within)
        if found is not None:
            return found
    generic = isinstance(origin, type) and dataclasses.is_dataclass(origin)
    if generic or isinstance(annotation, typing.TypeVar):
        raise _named(
            where,
            _shown(annotation),
            "fields of a generic dataclass have no types of their own",
            "Give their types: types.record_of(TheClass, fields={...}).",
        )
    # NewType, the type statement of Python 3.12, and what that makes generic, such as newer NDArray[...].
    meant = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
    if meant is not None:
        return part(meant[arguments] if arguments else meant)
    raise _refused(annotation, get_origin(annotation) or annotation, where)


def _of_part(annotation: Any, where: str, within: tuple[type, ...]) -> TypeSerializer[Any]:
    found = from_annotation(annotation, where, within)
    # None is one of the objects of Any, and a part can be None where a whole value cannot.
    return nullable(found) if annotation is Any or annotation is object else found


def record_of(
    cls: type[Any],
    *,
    fields: Mapping[str, TypeSerializer[Any]] | None = None,
    subclasses: Iterable[Any] = (),
    tagged: Iterable[Any] = (),
    name: str | None = None,
) -> TypeSerializer[Any]:
    """Return the type of a dataclass's instances.

    Parameters
    ----------
    cls : type
    fields : mapping, optional
        Types of fields whose annotations are not enough; ``Annotated`` in the class does the same.
    subclasses : iterable of type, optional
        Dataclasses derived from `cls` whose instances are values, too, written with their names.  Give
        ``record_of(...)`` for one that needs arguments of its own.
    tagged : iterable of type, optional
        The same, written with a byte instead of the name: the position in this list, which checkpoints keep.
    name : str, optional
        The name of the class in snapshots, by default its module and name.  Give the old one of a class that
        has moved.

    Raises
    ------
    UnsupportedTypeError
        For anything but a dataclass, and for fields without a type, which are named.
    """
    base = _record(cls, fields or {}, name, "", ())
    tagged_records = [_subclass(cls, declared) for declared in tagged]
    named_records = [_subclass(cls, declared) for declared in subclasses]
    if not tagged_records and not named_records:
        return base
    return HierarchySerializer(base, tagged_records, named_records)


def _subclass(cls: type, declared: Any) -> RecordSerializer[Any]:
    record = declared if isinstance(declared, RecordSerializer) else _record(declared, {}, None, "", ())
    if not issubclass(record.python_type, cls) or record.python_type is cls:
        raise UnsupportedTypeError(
            f"{record!r} as a subclass of {class_name(cls)}", "it is not derived from it", "Leave it out."
        )
    return record


def _record(
    cls: Any,
    given: Mapping[str, TypeSerializer[Any]],
    name: str | None,
    where: str,
    within: tuple[type, ...],
) -> RecordSerializer[Any]:
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise _named(where, f"record_of({_shown(cls)})", "it is no dataclass", "Decorate it with @dataclass.")
    if cls in within:
        raise _named(
            where,
            class_name(cls),
            "a record that holds itself has no column",
            "Keep its parts by an identifier in a map state, or declare the field as Any, which pickles it.",
        )
    declared = dataclasses.fields(cls)
    unknown = given.keys() - {field.name for field in declared}
    if unknown:
        raise UnsupportedTypeError(
            f"the field {min(unknown)!r} of {class_name(cls)}",
            "the dataclass has no such field",
            f"It has {', '.join(field.name for field in declared) or 'none'}.",
        )
    found: dict[str, TypeSerializer[Any]] = {}
    for field in declared:
        place = f"the field {field.name!r} of {class_name(cls)}"
        if field.name in given:
            found[field.name] = given[field.name]
        else:
            found[field.name] = _of_part(_resolved(cls, field, place), place, (*within, cls))
    return dataclass_record(cls, found, name)


def _resolved(cls: type, field: dataclasses.Field[Any], place: str) -> Any:
    """Return a field's annotation, evaluated where it was written if it is a string."""
    owner = next(base for base in cls.__mro__ if field.name in inspect.get_annotations(base))
    module = sys.modules.get(owner.__module__)
    # One by one: others may be beyond typing, as InitVar is up to Python 3.10, or not be needed.
    holder = python_types.SimpleNamespace(__annotations__={field.name: field.type})
    try:
        hints = typing.get_type_hints(
            holder, vars(module) if module is not None else {}, dict(vars(owner)), include_extras=True
        )
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise UnsupportedTypeError(
            place,
            f"its annotation {field.type!r} cannot be resolved ({error})",
            "Import at module level what it names, or give the type: record_of(..., fields={...}).",
        ) from None
    return hints[field.name]


def _of_class(cls: type, where: str, within: tuple[type, ...]) -> TypeSerializer[Any] | None:
    if issubclass(cls, enum.Enum):
        return enum_of(cls)
    if dataclasses.is_dataclass(cls):
        return _record(cls, {}, None, where, within)
    if cls in _ARRAY_ELEMENTS or cls in (np.uint8, np.uint16, np.uint32, np.uint64):
        return numpy_scalar(cls)
    if cls.__name__ == "Timestamp" and cls.__module__.partition(".")[0] == "pandas":
        return pandas_timestamp()
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        raise _named(
            where,
            class_name(cls),
            "a named tuple would come back without its class",
            "Make it a dataclass, or use row_of({...}).",
        )
    if typing.is_typeddict(cls):
        raise _named(where, class_name(cls), "it is a plain dict", "Make it a dataclass.")
    return None


def _looked_up(table: Mapping[object, Any], annotation: Any) -> Any:
    """Return the entry of a table; None also for an annotation without a hash: ``Annotated[int, []]``."""
    try:
        return table.get(annotation)
    except TypeError:
        return None


def _made(where: str, make: Any, *parts: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """Return a composite; its refusal names the owner of the annotation."""
    try:
        return cast("TypeSerializer[Any]", make(*parts))
    except UnsupportedTypeError as error:
        raise _named(where, error.given, error.reason, error.way_out) from None


def _refused(annotation: Any, key: Any, where: str) -> UnsupportedTypeError:
    return _named(where, _shown(annotation), *(_looked_up(_REFUSALS, key) or _OTHERWISE))


def _named(where: str, given: str, reason: str, way_out: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(f"{where}, {given}," if where else given, reason, way_out)


def _shown(annotation: Any) -> str:
    plain = isinstance(annotation, type) and not get_args(annotation)
    return class_name(annotation) if plain else str(annotation)
