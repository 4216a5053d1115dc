"""Rows as instances of a class of the user: ``class Visits(KeyedProcessFunction[Visit])``.

`Visit` is a dataclass or a NamedTuple with a field for each column that the function needs. Columns become
lists of values as for plain rows, and those without a field are skipped; a row costs its instance. A function
that names no class has plain rows.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import types as python_types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import pyarrow as pa

from keyedstate.errors import RowClassError, did_you_mean
from keyedstate.row_path import tuples_of
from keyedstate.runtime.rows import row_values, rows_of
from keyedstate.types.contract.arrow_columns import spread

#: The Python types of values by Arrow type.
_VALUES: tuple[tuple[Callable[[pa.DataType], bool], type], ...] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_string, str),
    (pa.types.is_large_string, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_large_binary, bytes),
    (pa.types.is_date, dt.date),
    (pa.types.is_timestamp, dt.datetime),
    (pa.types.is_time, dt.time),
    (pa.types.is_duration, dt.timedelta),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_list, list),
    (pa.types.is_large_list, list),
    (pa.types.is_map, dict),
    (pa.types.is_struct, tuple),
)


class RowClass:
    """A dataclass or NamedTuple whose instances are rows.

    Raises `RowClassError` for a class that is neither, has no field, or has annotations that cannot be
    resolved.
    """

    def __init__(self, given: Any) -> None:
        self._name = getattr(given, "__name__", repr(given))
        if not is_row_class(given):
            raise RowClassError(
                self._name,
                "it is neither a dataclass nor a NamedTuple; give one of these, or no class at all",
            )
        try:
            hints = typing.get_type_hints(given, include_extras=True)
        except (NameError, TypeError) as error:
            raise RowClassError(
                self._name, f"its annotations cannot be read ({error}); define what they name in its module"
            ) from error
        make: Any = given
        self._make: Callable[[Sequence[list[Any]]], Iterator[Any]] = lambda columns: map(make, *columns)
        if dataclasses.is_dataclass(given):
            fields = [field for field in dataclasses.fields(given) if field.init]
            names = [field.name for field in fields]
            if any(field.kw_only for field in fields):
                self._make = lambda columns: (
                    make(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)
                )
        else:
            names = list(given._fields)
            if given.__bases__ == (tuple,):
                self._make = partial(tuples_of, given)
        if not names:
            raise RowClassError(self._name, "it has no field; give it one for each column that is needed")
        #: The columns that are needed, each with its annotation.
        self.fields = {name: hints.get(name, Any) for name in names}
        self._nested = {name: _nested(annotation) for name, annotation in self.fields.items()}
        self._needs_value = [name for name, annotation in self.fields.items() if not _takes_none(annotation)]

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that the class does not fit.

        Raises `RowClassError` for a field without a column, and an annotation that does not fit the column's
        values.
        """
        for name, annotation in self.fields.items():
            indices = schema.get_all_field_indices(name)
            if len(indices) != 1:
                has = f"the rows have {len(indices)} columns of that name, of {', '.join(schema.names)}"
                hint = did_you_mean(name, schema.names).rstrip("?")
                raise RowClassError(self._name, f"it has the field {name!r}, and {has}.{hint}".rstrip("."))
            column = schema.field(indices[0])
            nested = self._nested[name]
            if nested is not None and pa.types.is_struct(column.type):
                nested.check(pa.schema(list(column.type)))
            elif not _fits(annotation, column.type):
                raise RowClassError(
                    self._name,
                    f"its field {name!r} is {_shown(annotation)}, and the column has the type {column.type}, "
                    f"whose values are {_value_type(column.type).__name__}; change the annotation, or cast "
                    "the column",
                )

    def rows(self, columns: Mapping[str, pa.Array | list[Any]]) -> Iterator[Any]:
        """Iterate over instances, from columns by name that are arrays or lists of values.

        Raises `RowClassError` for a null in a field that does not take None.
        """
        return self._make([self._values(name, columns[name]) for name in self.fields])

    def _values(self, name: str, column: pa.Array | list[Any]) -> list[Any]:
        has_null = (None in column) if isinstance(column, list) else column.null_count > 0
        if has_null and name in self._needs_value:
            raise RowClassError(
                self._name,
                f"its field {name!r} does not take None, and there is a null in the column; annotate it with "
                f"{_shown(self.fields[name])} | None, or leave such rows out before",
            )
        if isinstance(column, list):
            return column
        nested = self._nested[name]
        if nested is None:
            return row_values(column)
        present = column.drop_null() if has_null else column
        parts = dict(zip((field.name for field in column.type), present.flatten(), strict=True))
        made = list(nested.rows(parts))
        return spread(made, column) if has_null else made


def rows_from(
    row_class: RowClass | None, names: Sequence[str], columns: Sequence[pa.Array | list[Any]]
) -> Iterator[Any]:
    """Iterate over rows: instances of a class or, without one, plain rows."""
    if row_class is not None:
        return row_class.rows(dict(zip(names, columns, strict=True)))
    return rows_of(names, [column if isinstance(column, list) else row_values(column) for column in columns])


def row_class_of(function: object, base: type, index: int = 0) -> RowClass | None:
    """Return the class that a function names for rows; None for plain rows.

    The class is the type parameter `index` of the generic class `base`.  Raises `RowClassError`.
    """
    given = _arguments(type(function), base)[index]
    return None if given is Any or isinstance(given, TypeVar) else RowClass(given)


def is_row_class(given: object) -> bool:
    """Return whether something is a dataclass or a NamedTuple."""
    if not isinstance(given, type):
        return False
    return dataclasses.is_dataclass(given) or (issubclass(given, tuple) and hasattr(given, "_fields"))


def _arguments(own: type, base: type) -> tuple[Any, ...]:
    """Return the arguments of a class for the type parameters of its generic base class."""
    if own is base:
        return tuple(base.__parameters__)  # type: ignore[attr-defined]
    for parent in vars(own).get("__orig_bases__", own.__bases__):
        origin = get_origin(parent) or parent
        if isinstance(origin, type) and issubclass(origin, base):
            given = dict(zip(getattr(origin, "__parameters__", ()), get_args(parent), strict=False))
            return tuple(
                given.get(argument, Any) if isinstance(argument, TypeVar) else argument
                for argument in _arguments(origin, base)
            )
    raise AssertionError(f"{own} does not derive from {base}")


def _alternatives(annotation: Any) -> list[Any]:
    """Return the plain types that an annotation stands for: several for a union."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return [type(value) for value in get_args(annotation)]
    if get_origin(annotation) in (Union, python_types.UnionType):
        return [one for argument in get_args(annotation) for one in _alternatives(argument)]
    # Of a NewType; and of what a `type` statement defines.
    meant = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
    return [annotation] if meant is None else _alternatives(meant)


def _nested(annotation: Any) -> RowClass | None:
    found = [one for one in _alternatives(annotation) if is_row_class(one)]
    return RowClass(found[0]) if found else None


def _takes_none(annotation: Any) -> bool:
    return any(one in (None, type(None), Any, object) for one in _alternatives(annotation))


def _fits(annotation: Any, arrow_type: pa.DataType) -> bool:
    """Return whether an annotation fits the values of an Arrow type."""
    value = _value_type(arrow_type)
    return any(_is_of(one, value, arrow_type) for one in _alternatives(annotation))


def _is_of(annotation: Any, value: type, arrow_type: pa.DataType) -> bool:
    if annotation in (Any, object) or isinstance(annotation, TypeVar) or value is object:
        return True
    kind = get_origin(annotation) or annotation
    if not isinstance(kind, type) or is_row_class(kind):
        return False
    if not issubclass(value, kind) and not (kind is float and value is int):
        return False
    arguments = get_args(annotation)
    if value is list and len(arguments) == 1:
        return _fits(arguments[0], arrow_type.value_type)
    if value is dict and len(arguments) == 2:
        return _fits(arguments[0], arrow_type.key_type) and _fits(arguments[1], arrow_type.item_type)
    return True


def _value_type(arrow_type: pa.DataType) -> type:
    if pa.types.is_dictionary(arrow_type):
        return _value_type(arrow_type.value_type)
    return next((value for is_type, value in _VALUES if is_type(arrow_type)), object)


def _shown(annotation: Any) -> str:
    return (
        annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    )
