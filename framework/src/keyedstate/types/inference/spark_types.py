"""Types from Spark's own, by their JSON representation, without importing PySpark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from keyedstate.errors import UnsupportedTypeError
from keyedstate.types.collections.maps import map_of
from keyedstate.types.collections.nullable import nullable
from keyedstate.types.collections.sequences import list_of
from keyedstate.types.contract.serializer import TypeSerializer
from keyedstate.types.records.rows import row_of
from keyedstate.types.scalars.decimals import decimal
from keyedstate.types.scalars.numbers import BOOLEAN, FLOAT32, FLOAT64, INT8, INT16, INT32, INT64
from keyedstate.types.scalars.temporal import DATE, DURATION, TIME, TIMESTAMP, TIMESTAMP_NTZ
from keyedstate.types.scalars.text import BYTES, STRING

_SIMPLE: dict[str, TypeSerializer[Any]] = {
    "boolean": BOOLEAN,
    "byte": INT8,
    "short": INT16,
    "integer": INT32,
    "long": INT64,
    "float": FLOAT32,
    "double": FLOAT64,
    "string": STRING,
    "binary": BYTES,
    "date": DATE,
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_TEXT = re.compile(r"string collate .+|(?:var)?char\(\d+\)")
_TIME = re.compile(r"time(?:\(\d\))?")
_DAY_TIME_INTERVAL = re.compile(r"interval (?:day|hour|minute|second)(?: to (?:hour|minute|second))?")


def is_spark_type(declared: object) -> bool:
    """Return whether an object is one of ``pyspark.sql.types``."""
    return any(cls.__module__ == "pyspark.sql.types" for cls in type(declared).__mro__)


def from_spark_type(declared: Any) -> TypeSerializer[Any]:
    """Return the type of the values that a Spark type describes; a ``StructType`` gives rows.

    Raises
    ------
    UnsupportedTypeError
        For a type whose values have none, such as intervals of months; a nested one is named.
    """
    return _from_json(declared.jsonValue(), declared.simpleString())


def _from_json(document: Any, shown: str) -> TypeSerializer[Any]:
    if isinstance(document, str):
        found = _from_name(document)
        if found is not None:
            return found
    elif isinstance(document, Mapping):
        kind = document.get("type")
        if kind == "array":
            element = _from_json(document["elementType"], shown)
            return list_of(nullable(element) if document["containsNull"] else element)
        if kind == "map":
            return map_of(_from_json(document["keyType"], shown), _from_json(document["valueType"], shown))
        if kind == "struct":
            fields = {}
            for field in document["fields"]:
                inner = _from_json(field["type"], f"{field['name']} in {shown}")
                fields[field["name"]] = nullable(inner) if field["nullable"] else inner
            return row_of(fields)
    name = document if isinstance(document, str) else document.get("type")
    raise UnsupportedTypeError(
        f"the Spark type {name} ({shown})" if name != shown else f"the Spark type {name}",
        "its values have no type here",
        "Cast the column, for example to a string.",
    )


def _from_name(name: str) -> TypeSerializer[Any] | None:
    if name in _SIMPLE:
        return _SIMPLE[name]
    digits = _DECIMAL.fullmatch(name)
    if digits is not None:
        return decimal(int(digits[1]), int(digits[2]))
    if _TEXT.fullmatch(name):
        return STRING
    if _TIME.fullmatch(name):
        return TIME
    return DURATION if _DAY_TIME_INTERVAL.fullmatch(name) else None
