"""The order of a type's values: that in which Spark sorts them ascending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyedstate.types import NullableSerializer, RowSerializer, TupleSerializer, TypeSerializer

SortKey = Callable[[Any], Any]


def sort_key(serializer: TypeSerializer[Any]) -> SortKey | None:
    """Return the function by whose results a type's values are compared, or None where the type has no order.

    Nulls come first and NaN comes last; tuples and rows are compared field by field.
    """
    if isinstance(serializer, NullableSerializer):
        inner = sort_key(serializer.inner_serializer)
        return None if inner is None else lambda value: () if value is None else (inner(value),)
    if isinstance(serializer, (TupleSerializer, RowSerializer)):
        fields = [sort_key(field) for field in serializer.field_serializers]
        known = [field for field in fields if field is not None]
        if len(known) < len(fields):
            return None
        return lambda value: tuple([field(part) for field, part in zip(known, value, strict=True)])
    python_type: Any = getattr(serializer, "python_type", object)
    if python_type is float:
        # One NaN equals another.
        return lambda value: (True, 0.0) if value != value else (False, value)
    # Sets can be compared too, but of two neither need come first.
    compares = any("__lt__" in vars(cls) for cls in python_type.__mro__[:-1])
    if not compares or python_type in (set, frozenset):
        return None
    return lambda value: value
