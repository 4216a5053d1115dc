"""Types of state values, keys and namespaces: their serializers and what these are compatible with."""

from keyedstate.types.accumulators import AccumulatorsSerializer, accumulators_of
from keyedstate.types.annotations import record_of
from keyedstate.types.arrays import ArraySerializer, array_of
from keyedstate.types.compatibility import Compatibility, Outcome, compose
from keyedstate.types.decimals import DecimalSerializer, decimal
from keyedstate.types.enums import EnumSerializer, enum_of
from keyedstate.types.errors import (
    ColumnSizeError,
    ColumnTypeError,
    CorruptDataError,
    DuplicateSerializerError,
    GenericTypeForbiddenError,
    InvalidSnapshotError,
    UnknownEnumConstantError,
    UnknownSerializerError,
    UnreadableGenericValueError,
    UnsupportedTypeError,
    ValueTypeError,
)
from keyedstate.types.generic import PickledSerializer, generic_parts, pickled, refuse_generic
from keyedstate.types.hierarchies import HierarchySerializer
from keyedstate.types.inference import from_arrow_type, infer
from keyedstate.types.maps import MapSerializer, map_of
from keyedstate.types.nullable import NullableSerializer, nullable
from keyedstate.types.numbers import BOOLEAN, FLOAT32, FLOAT64, INT8, INT16, INT32, INT64
from keyedstate.types.numpy_scalars import NumpyScalarSerializer, numpy_scalar
from keyedstate.types.pandas_times import PandasTimestampSerializer, pandas_timestamp
from keyedstate.types.record_code import value_checker
from keyedstate.types.records import DataclassSerializer, RecordSerializer
from keyedstate.types.rows import RowSerializer, row_of, row_type
from keyedstate.types.sequences import ListSerializer, SetSerializer, list_of, set_of
from keyedstate.types.serializer import SerializerSnapshot, TypeSerializer, register_serializer_type
from keyedstate.types.temporal import DATE, DURATION, TIME, TIMESTAMP, TIMESTAMP_NTZ
from keyedstate.types.text import BYTES, STRING
from keyedstate.types.ttl import TimedDict, TimedList, TtlListSerializer, TtlMapSerializer, TtlSerializer
from keyedstate.types.tuples import TupleSerializer, tuple_of
from keyedstate.types.uuids import UUID
from keyedstate.types.void import VOID, VOID_NAMESPACE, VoidNamespace
from keyedstate.types.windows import (
    GLOBAL_WINDOW,
    GLOBAL_WINDOW_TYPE,
    TIME_WINDOW,
    GlobalWindow,
    TimeWindow,
)

__all__ = [
    "BOOLEAN",
    "BYTES",
    "DATE",
    "DURATION",
    "FLOAT32",
    "FLOAT64",
    "GLOBAL_WINDOW",
    "GLOBAL_WINDOW_TYPE",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "STRING",
    "TIME",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "TIME_WINDOW",
    "UUID",
    "VOID",
    "VOID_NAMESPACE",
    "AccumulatorsSerializer",
    "ArraySerializer",
    "ColumnSizeError",
    "ColumnTypeError",
    "Compatibility",
    "CorruptDataError",
    "DataclassSerializer",
    "DecimalSerializer",
    "DuplicateSerializerError",
    "EnumSerializer",
    "GenericTypeForbiddenError",
    "GlobalWindow",
    "HierarchySerializer",
    "InvalidSnapshotError",
    "ListSerializer",
    "MapSerializer",
    "NullableSerializer",
    "NumpyScalarSerializer",
    "Outcome",
    "PandasTimestampSerializer",
    "PickledSerializer",
    "RecordSerializer",
    "RowSerializer",
    "SerializerSnapshot",
    "SetSerializer",
    "TimeWindow",
    "TimedDict",
    "TimedList",
    "TtlListSerializer",
    "TtlMapSerializer",
    "TtlSerializer",
    "TupleSerializer",
    "TypeSerializer",
    "UnknownEnumConstantError",
    "UnknownSerializerError",
    "UnreadableGenericValueError",
    "UnsupportedTypeError",
    "ValueTypeError",
    "VoidNamespace",
    "accumulators_of",
    "array_of",
    "compose",
    "decimal",
    "enum_of",
    "from_arrow_type",
    "generic_parts",
    "infer",
    "list_of",
    "map_of",
    "nullable",
    "numpy_scalar",
    "pandas_timestamp",
    "pickled",
    "record_of",
    "refuse_generic",
    "register_serializer_type",
    "row_of",
    "row_type",
    "set_of",
    "tuple_of",
    "value_checker",
]
