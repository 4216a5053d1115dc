"""Types from Python annotations, dataclasses, Spark types and Arrow types."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import inspect
import subprocess
import sys
import typing
import uuid
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from typing import Annotated, Any, ClassVar, NamedTuple, NewType, Optional, TypedDict, Union

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pytest

from keyedstate import types
from keyedstate.errors import UnsupportedTypeError
from keyedstate.types import TypeSerializer

UserId = NewType("UserId", int)
Price = Annotated[Decimal, types.decimal(10, 2)]


class Color(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Point:
    x: float
    y: float = 0.0


@dataclass
class Visit:
    user: UserId
    at: dt.datetime
    where: Point | None
    price: Price
    pages: list[str] = field(default_factory=list)
    colors: dict[str, Color] = field(default_factory=dict)
    samples: npt.NDArray[np.float32] | None = None
    extra: Any = None
    limit: ClassVar[int] = 3
    seed: InitVar[int] = 0


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (bool, types.BOOLEAN),
        (int, types.INT64),
        (float, types.FLOAT64),
        (str, types.STRING),
        (bytes, types.BYTES),
        (dt.date, types.DATE),
        (dt.datetime, types.TIMESTAMP),
        (dt.time, types.TIME),
        (dt.timedelta, types.DURATION),
        (uuid.UUID, types.UUID),
        (types.VoidNamespace, types.VOID),
        (Optional[int], types.nullable(types.INT64)),  # noqa: UP045 - the old spelling
        (int | None, types.nullable(types.INT64)),
        (Union[None, str], types.nullable(types.STRING)),  # noqa: UP007 - the old spelling
        (list[int], types.list_of(types.INT64)),
        (typing.List[int], types.list_of(types.INT64)),  # noqa: UP006 - the old spelling
        (list[int | None], types.list_of(types.nullable(types.INT64))),
        (set[str], types.set_of(types.STRING)),
        (dict[str, int], types.map_of(types.STRING, types.INT64)),
        (dict[str, list[int]], types.map_of(types.STRING, types.list_of(types.INT64))),
        (dict[str, Any], types.map_of(types.STRING, types.pickled())),
        (tuple[int, float], types.tuple_of(types.INT64, types.FLOAT64)),
        (Any, types.pickled()),
        (object, types.pickled()),
        (list[Any], types.list_of(types.nullable(types.pickled()))),
        (Any | None, types.nullable(types.pickled())),
        (Price, types.decimal(10, 2)),
        (Annotated[int, "a comment", types.INT8], types.INT8),
        (Annotated[int, ["a comment"]], types.INT64),
        (UserId, types.INT64),
        (Color, types.enum_of(Color)),
        (Point, types.record_of(Point)),
        (npt.NDArray[np.int32], types.array_of(types.INT32)),
        (npt.NDArray[np.bool_], types.array_of(types.BOOLEAN)),
        (np.int16, types.numpy_scalar("int16")),
        (np.uint64, types.numpy_scalar("uint64")),
        (np.bool_, types.numpy_scalar("bool")),
        (pd.Timestamp, types.pandas_timestamp("UTC")),
        (types.INT8, types.INT8),
    ],
    ids=str,
)  # fmt: skip
def test_an_annotation_has_the_type_of_its_values(annotation: Any, expected: TypeSerializer[Any]) -> None:
    assert types.infer(annotation) == expected


def test_a_dataclass_has_the_types_of_its_annotations() -> None:
    serializer: Any = types.infer(Visit)
    assert dict(zip(serializer.names, serializer.field_serializers, strict=True)) == {
        "user": types.INT64,
        "at": types.TIMESTAMP,
        "where": types.nullable(types.record_of(Point)),
        "price": types.decimal(10, 2),
        "pages": types.list_of(types.STRING),
        "colors": types.map_of(types.STRING, types.enum_of(Color)),
        "samples": types.nullable(types.array_of(types.FLOAT32)),
        "extra": types.nullable(types.pickled()),
    }
    assert serializer.defaults == {"pages", "colors", "samples", "extra"}


@dataclass(frozen=True)
class FrozenOfList:
    values: list[int]


@dataclass(frozen=True, eq=False)
class FrozenByIdentity:
    value: int


def test_a_frozen_dataclass_of_immutable_fields_is_immutable_and_may_be_a_key() -> None:
    assert types.record_of(Point).immutable
    types.set_of(types.record_of(Point))
    # A list inside can change, and what is equal to itself alone is not found again after a restart.
    for cls in (Visit, FrozenOfList, FrozenByIdentity):
        serializer = types.record_of(cls)
        assert not serializer.immutable
        with pytest.raises(UnsupportedTypeError, match="no hash"):
            types.set_of(serializer)


class Pair(NamedTuple):
    a: int


class Options(TypedDict):
    a: int


class Plain:
    pass


@dataclass
class Node:
    value: int
    next: Node | None


@dataclass
class Tree:
    branches: list[Node]


@dataclass
class Unresolved:
    value: Missing  # type: ignore[name-defined]  # noqa: F821
    name: str = ""


@dataclass
class Imprecise:
    amount: Decimal


@dataclass
class Holder:
    inner: Imprecise


@dataclass
class OfUnhashable:
    values: set[list[int]]


T = typing.TypeVar("T")


@dataclass
class Generic(typing.Generic[T]):
    value: T


def not_yet() -> int:
    raise LookupError("not yet")


@dataclass
class OfUnreadyDefault:
    """Its default can be made while the program runs, and not before."""

    count: int = field(default_factory=not_yet)


@dataclass
class OfDict(dict):  # type: ignore[type-arg]
    a: int = 0


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (Decimal, r"decimal\.Decimal is not supported: its number of digits.*Annotated\[Decimal, types"),
        (Imprecise, r"the field 'amount' of .*Imprecise, decimal\.Decimal, .*digits"),
        (Holder, r"the field 'amount' of .*Imprecise"),
        (Node, r"the field 'next' of .*Node, .*Node, .*a record that holds itself"),
        (Tree, r"the field 'next' of .*Node"),
        (Unresolved, r"the field 'value' of .*'Missing' cannot be resolved \(name 'Missing' is.*fields=\{"),
        (OfUnhashable, r"the field 'values' of .*OfUnhashable, list_of\(INT64\) as the element of a set"),
        (OfDict, "derives from a class that has one, such as dict"),
        (list, r"list is not supported: .*Write list\[int\]"),
        (typing.List, "does not say what its elements are"),  # noqa: UP006 - the old spelling
        (set, r"Write set\[int\]"),
        (dict, r"Write dict\[str, int\]"),
        (tuple, r"Write tuple\[str, int\]"),
        (tuple[int, ...], r"a fixed number of fields.*Write list"),
        (frozenset, "what is read is a set"),
        (bytearray, "changes in place"),
        (np.ndarray, r"NDArray\[numpy.int64\]"),
        (npt.NDArray[np.uint8], r"NDArray\[numpy.int64\]"),
        (np.datetime64, "no type is known"),
        (int | str, "a value of several types"),
        (int | str | None, "a value of several types"),
        (None, "it holds nothing"),
        (type(None), "it holds nothing"),
        (collections.abc.Sequence, "Write list"),
        (typing.Mapping[str, int], "Write dict"),
        (Pair, "a named tuple would come back without its class"),
        (Options, "it is a plain dict"),
        (Plain, "no type is known for it. Make it a dataclass"),
        (complex, "no type is known"),
        (typing.Callable[[int], int], "no type is known"),
        (
            Generic,
            r"the field 'value' of .*Generic, ~T, is not supported: fields of a generic dataclass have",
        ),
        (Generic[int], r"Give their types: types\.record_of\(TheClass, fields=\{...\}\)"),
        (list[Generic[int]], r"fields of a generic dataclass"),
        (OfUnreadyDefault, r"OfUnreadyDefault is not supported: making it raised LookupError: not yet. Give"),
        (typing.Literal["a", "b"], "names some values and not their type. Write the type of the values"),
        ("Plain", r"'Plain' is not supported: Spark's syntax has no such type \(.*\). Give the class itself"),
        ("", "'' is not supported: Spark's syntax has no such type"),
        ("n long, m", "it ends where the type of 'm' was expected"),
        ("array<int", "'>' was expected at its end"),
        (list["Plain"], "it names a type and is none"),
        ([], "no type is known"),
        (3, "no type is known"),
    ],
    ids=str,
)
def test_what_has_no_type_is_refused_with_its_place_and_a_way_out(annotation: Any, message: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=message):
        types.infer(annotation)


def test_a_string_in_the_syntax_of_spark_is_a_type_or_the_columns_of_a_row() -> None:
    assert types.infer("long") is types.INT64
    assert types.infer("map<string, array<double>>") == types.infer(
        pa.map_(pa.string(), pa.list_(pa.float64()))
    )
    columns = pa.schema([("n", pa.int64()), ("when", pa.timestamp("us", "UTC"))])
    assert types.infer("n long, when timestamp") == types.infer(columns)
    assert types.infer("date date") == types.infer(pa.schema([("date", pa.date32())]))


def test_a_generic_dataclass_is_a_record_with_the_types_that_are_given() -> None:
    numbers = types.record_of(Generic, fields={"value": types.INT64})
    assert numbers.is_value(Generic(5)) and not numbers.is_value(Generic("a"))
    assert numbers.from_bytes(numbers.to_bytes(Generic(5))) == Generic(5)


def test_a_field_whose_annotation_does_not_say_enough_can_be_given() -> None:
    serializer: Any = types.record_of(Imprecise, fields={"amount": types.decimal(4, 2)})
    assert serializer.field_serializers == (types.decimal(4, 2),)
    # What is given need not be resolved.
    given: Any = types.record_of(Unresolved, fields={"value": types.INT8})
    assert given.field_serializers == (types.INT8, types.STRING)
    with pytest.raises(UnsupportedTypeError, match=r"the field 'amuont'.*no such field. It has amount"):
        types.record_of(Imprecise, fields={"amuont": types.decimal(4, 2)})
    with pytest.raises(UnsupportedTypeError, match="no dataclass"):
        types.record_of(Plain)


# -- Arrow and Spark --------------------------------------------------------------------------------

ARROW: list[tuple[Any, TypeSerializer[Any]]] = [
    (pa.int16(), types.INT16),
    (pa.large_string(), types.STRING),
    (pa.dictionary(pa.int8(), pa.string()), types.STRING),
    (pa.timestamp("us", "Europe/Berlin"), types.TIMESTAMP),
    (pa.time64("us"), types.TIME),
    (pa.duration("us"), types.DURATION),
    (pa.list_(pa.int64()), types.list_of(types.nullable(types.INT64))),
    (pa.large_list(pa.field("item", pa.int64(), nullable=False)), types.list_of(types.INT64)),
    (pa.map_(pa.string(), pa.float64()), types.map_of(types.STRING, types.FLOAT64)),
    (
        pa.struct([pa.field("a b", pa.int8(), nullable=False), pa.field("c", pa.list_(pa.bool_()))]),
        types.row_of({"a b": types.INT8, "c": types.nullable(types.list_of(types.nullable(types.BOOLEAN)))}),
    ),
    (
        pa.schema([("a", pa.int8()), ("b", pa.struct([("c", pa.date32())]))]),
        types.row_of(
            {
                "a": types.nullable(types.INT8),
                "b": types.nullable(types.row_of({"c": types.nullable(types.DATE)})),
            }
        ),
    ),
]


@pytest.mark.parametrize(("arrow", "expected"), ARROW, ids=str)
def test_an_arrow_type_or_schema_has_the_type_of_its_values(
    arrow: Any, expected: TypeSerializer[Any]
) -> None:
    assert types.infer(arrow) == expected


@pytest.mark.parametrize(
    ("arrow", "message"),
    [
        (pa.uint8(), "signed integer"),
        (pa.timestamp("ns"), "microseconds"),
        (pa.null(), "Cast the column"),
        (pa.struct([]), "Cast the column"),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), "two of its fields have one name"),
        (pa.list_(pa.month_day_nano_interval()), "Cast the column"),
    ],
    ids=str,
)
def test_an_arrow_type_without_values_here_is_refused(arrow: Any, message: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=message):
        types.infer(arrow)


def test_spark_types_have_the_types_that_their_arrow_schema_has() -> None:
    """Two ways to the same: Spark's JSON representation, and PySpark's own conversion to Arrow."""
    spark = pytest.importorskip("pyspark.sql.types")
    to_arrow = pytest.importorskip("pyspark.sql.pandas.types").to_arrow_schema
    # Up to 4.2 PySpark always puts UTC; later it must be given.
    zone = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow).parameters else {}
    inner = spark.StructType([spark.StructField("x", spark.DoubleType(), nullable=False)])
    schema = spark.StructType(
        [
            spark.StructField("flag", spark.BooleanType()),
            spark.StructField("byte", spark.ByteType()),
            spark.StructField("short", spark.ShortType()),
            spark.StructField("int", spark.IntegerType(), nullable=False),
            spark.StructField("long", spark.LongType()),
            spark.StructField("float", spark.FloatType()),
            spark.StructField("text", spark.StringType()),
            spark.StructField("bytes", spark.BinaryType()),
            spark.StructField("day", spark.DateType()),
            spark.StructField("instant", spark.TimestampType()),
            spark.StructField("wall clock", spark.TimestampNTZType()),
            spark.StructField("price", spark.DecimalType(12, 3)),
            spark.StructField("span", spark.DayTimeIntervalType()),
            spark.StructField("list", spark.ArrayType(spark.LongType(), containsNull=False)),
            spark.StructField("lists", spark.ArrayType(spark.ArrayType(inner))),
            spark.StructField("map", spark.MapType(spark.StringType(), inner)),
            spark.StructField("inner", inner, nullable=False),
        ]
    )
    inferred = types.infer(schema)
    assert inferred == types.infer(to_arrow(schema, **zone))
    assert types.infer(schema["price"].dataType) == types.decimal(12, 3)
    for name in ("VarcharType", "CharType"):
        assert types.infer(getattr(spark, name)(5)) == types.STRING
    assert types.infer(spark.DayTimeIntervalType(0, 0)) == types.DURATION
    if hasattr(spark, "TimeType"):
        assert types.infer(spark.TimeType()) == types.TIME


def test_a_spark_type_without_values_here_is_refused_with_its_field() -> None:
    spark = pytest.importorskip("pyspark.sql.types")
    for declared in (spark.NullType(), spark.YearMonthIntervalType()):
        with pytest.raises(UnsupportedTypeError, match="Cast the column"):
            types.infer(declared)
    schema = spark.StructType([spark.StructField("months", spark.ArrayType(spark.YearMonthIntervalType()))])
    with pytest.raises(UnsupportedTypeError, match=r"months in struct<months:array"):
        types.infer(schema)


def test_neither_spark_nor_pandas_is_imported_for_types_that_do_not_need_them() -> None:
    code = (
        "import sys\n"
        "from keyedstate import types\n"
        "types.infer(dict[str, int]); types.pandas_timestamp().is_value(3)\n"
        "assert not {'pyspark', 'pandas'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
