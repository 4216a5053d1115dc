"""Types of state values, keys and namespaces: their serializers and what these are compatible with."""

from keyedstate.types.collections.arrays import ArraySerializer, array_of
from keyedstate.types.collections.maps import MapSerializer, map_of
from keyedstate.types.collections.nullable import NullableSerializer, nullable
from keyedstate.types.collections.sequences import ListSerializer, SetSerializer, list_of, set_of
from keyedstate.types.collections.ttl import (
    TimedDict,
    TimedList,
    TtlListSerializer,
    TtlMapSerializer,
    TtlSerializer,
)
from keyedstate.types.collections.tuples import TupleSerializer, tuple_of
from keyedstate.types.contract.composite import compose
from keyedstate.types.contract.record_code import value_checker
from keyedstate.types.contract.registry import register_serializer_type
from keyedstate.types.contract.serializer import Compatibility, Outcome, SerializerSnapshot, TypeSerializer
from keyedstate.types.inference.annotations import record_of
from keyedstate.types.inference.schemas import from_arrow_type, infer
from keyedstate.types.records.hierarchies import HierarchySerializer
from keyedstate.types.records.records import DataclassSerializer, RecordSerializer
from keyedstate.types.records.rows import (
    AccumulatorsSerializer,
    RowSerializer,
    accumulators_of,
    row_of,
    row_type,
)
from keyedstate.types.scalars.decimals import DecimalSerializer, decimal
from keyedstate.types.scalars.enums import EnumSerializer, enum_of
from keyedstate.types.scalars.generic import PickledSerializer, generic_parts, pickled, refuse_generic
from keyedstate.types.scalars.namespaces import (
    GLOBAL_WINDOW,
    GLOBAL_WINDOW_TYPE,
    TIME_WINDOW,
    VOID,
    VOID_NAMESPACE,
    GlobalWindow,
    TimeWindow,
    VoidNamespace,
)
from keyedstate.types.scalars.numbers import BOOLEAN, FLOAT32, FLOAT64, INT8, INT16, INT32, INT64
from keyedstate.types.scalars.numpy_scalars import NumpyScalarSerializer, numpy_scalar
from keyedstate.types.scalars.pandas_times import PandasTimestampSerializer, pandas_timestamp
from keyedstate.types.scalars.temporal import DATE, DURATION, TIME, TIMESTAMP, TIMESTAMP_NTZ
from keyedstate.types.scalars.text import BYTES, STRING, UUID

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
    "Compatibility",
    "DataclassSerializer",
    "DecimalSerializer",
    "EnumSerializer",
    "GlobalWindow",
    "HierarchySerializer",
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
