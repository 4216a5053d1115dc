"""Types of state values, keys and namespaces: their serializers and what these are compatible with."""

from keyedstate.types.compatibility import Compatibility, Outcome, compose
from keyedstate.types.decimals import DecimalSerializer, decimal
from keyedstate.types.errors import (
    ColumnSizeError,
    ColumnTypeError,
    CorruptDataError,
    DuplicateSerializerError,
    InvalidSnapshotError,
    UnknownSerializerError,
    UnsupportedTypeError,
    ValueTypeError,
)
from keyedstate.types.inference import from_arrow_type
from keyedstate.types.maps import MapSerializer, map_of
from keyedstate.types.nullable import NullableSerializer, nullable
from keyedstate.types.numbers import BOOLEAN, FLOAT32, FLOAT64, INT8, INT16, INT32, INT64
from keyedstate.types.sequences import ListSerializer, SetSerializer, list_of, set_of
from keyedstate.types.serializer import SerializerSnapshot, TypeSerializer, register_serializer_type
from keyedstate.types.temporal import DATE, TIMESTAMP, TIMESTAMP_NTZ
from keyedstate.types.text import BYTES, STRING
from keyedstate.types.tuples import TupleSerializer, tuple_of
from keyedstate.types.void import VOID, VOID_NAMESPACE, VoidNamespace

__all__ = [
    "BOOLEAN",
    "BYTES",
    "DATE",
    "FLOAT32",
    "FLOAT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "STRING",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "VOID",
    "VOID_NAMESPACE",
    "ColumnSizeError",
    "ColumnTypeError",
    "Compatibility",
    "CorruptDataError",
    "DecimalSerializer",
    "DuplicateSerializerError",
    "InvalidSnapshotError",
    "ListSerializer",
    "MapSerializer",
    "NullableSerializer",
    "Outcome",
    "SerializerSnapshot",
    "SetSerializer",
    "TupleSerializer",
    "TypeSerializer",
    "UnknownSerializerError",
    "UnsupportedTypeError",
    "ValueTypeError",
    "VoidNamespace",
    "compose",
    "decimal",
    "from_arrow_type",
    "list_of",
    "map_of",
    "nullable",
    "register_serializer_type",
    "set_of",
    "tuple_of",
]
