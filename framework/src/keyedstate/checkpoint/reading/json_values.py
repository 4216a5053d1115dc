"""Values of stored state as text: JSON for programs, and Python's spelling for people."""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from keyedstate.types import TimedDict, TimedList, TtlSerializer, TypeSerializer, VoidNamespace

#: The timestamp of a value whose time of writing is unknown.
_UNKNOWN_TIME = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def time_of(milliseconds: int | None) -> str | None:
    """Return a time since 1970 as ISO 8601 in UTC; one that no calendar has, as its milliseconds."""
    if milliseconds is None:
        return None
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return f"{milliseconds} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_value(value: Any, serializer: TypeSerializer[Any] | None = None) -> Any:
    """Return a value in types that JSON has.

    Records become objects, bytes Base64, times ISO 8601, numbers that JSON lacks their names.  A map whose
    keys are not all text becomes a list of pairs.  A value with a time to live becomes an object of the value
    and the time of its writing, where its serializer is given.
    """
    if isinstance(serializer, TtlSerializer) and value is not None:
        stamp, inner = value
        return {"value": json_value(inner), "written_at": _stamp(stamp)}
    if isinstance(value, TimedList):
        return {
            "value": [json_value(each) for each in value],
            "written_at": [_stamp(at) for at in value.stamps],
        }
    if isinstance(value, TimedDict):
        return {
            "value": json_value(dict(value)),
            "written_at": json_value(dict(zip(value, map(_stamp, value.stamps.values()), strict=True))),
        }
    for kinds, convert in _CONVERSIONS:
        if isinstance(value, kinds):
            return convert(value)
    return repr(value)


def json_converter(arrow_type: pa.DataType, leaf: Callable[[Any], Any] = json_value) -> Callable[[Any], Any]:
    """Return what converts the ``to_pylist`` values of a column to JSON values; maps come as lists of pairs.

    `leaf` converts values that are neither struct, map nor list.
    """
    if pa.types.is_map(arrow_type):
        key, item = json_converter(arrow_type.key_type, leaf), json_converter(arrow_type.item_type, leaf)
        as_object = pa.types.is_string(arrow_type.key_type)

        def of_map(value: Any) -> Any:
            if value is None:
                return None
            pairs = [[key(name), item(inner)] for name, inner in value]
            return dict(pairs) if as_object else pairs

        return of_map
    if isinstance(arrow_type, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        element = json_converter(arrow_type.value_type, leaf)
        return lambda value: None if value is None else list(map(element, value))
    if pa.types.is_struct(arrow_type):
        parts = {field.name: json_converter(field.type, leaf) for field in arrow_type}
        return lambda value: (
            None if value is None else {name: convert(value[name]) for name, convert in parts.items()}
        )
    return leaf


def shown_value(value: Any, serializer: TypeSerializer[Any] | None = None) -> str:
    """Return a value for people, never shortened: what differs may be at its end."""
    if isinstance(serializer, TtlSerializer) and value is not None:
        return f"{shown_value(value[1])} written at {_stamp(value[0])}"
    # NumPy would cut arrays and fold their lines.
    with np.printoptions(threshold=sys.maxsize, linewidth=sys.maxsize):
        return repr(value)


def _stamp(milliseconds: int) -> str | None:
    return None if milliseconds == _UNKNOWN_TIME else time_of(milliseconds)


def _float(value: float) -> float | str:
    return float(value) if math.isfinite(value) else repr(float(value))


def _mapping(value: dict[Any, Any]) -> Any:
    if all(isinstance(key, str) for key in value):
        return {key: json_value(inner) for key, inner in value.items()}
    return [[json_value(key), json_value(inner)] for key, inner in value.items()]


def _sequence(value: Any) -> Any:
    if hasattr(value, "_fields"):  # a record, as a named tuple
        return {name: json_value(inner) for name, inner in zip(value._fields, value, strict=True)}
    return [json_value(inner) for inner in value]


def _set(value: Any) -> Any:
    return sorted((json_value(inner) for inner in value), key=lambda inner: json.dumps(inner, sort_keys=True))


_CONVERSIONS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    ((type(None), bool, int, str), lambda value: value),
    (float, _float),
    (VoidNamespace, lambda value: None),
    (dict, _mapping),
    ((list, tuple), _sequence),
    ((set, frozenset), _set),
    (bytes, lambda value: base64.b64encode(value).decode("ascii")),
    (np.ndarray, lambda value: json_value(value.tolist())),
    (np.generic, lambda value: json_value(value.item())),
    ((datetime, date, time), lambda value: value.isoformat()),
    (timedelta, lambda value: value.total_seconds()),
    ((Decimal, UUID), str),
)
