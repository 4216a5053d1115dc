"""What is no value of a type, and what the error says about it."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import functools
import pickle
import re
import reprlib
import threading
import zoneinfo
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from keyedstate import types
from keyedstate.errors import UnsupportedTypeError, ValueTypeError
from keyedstate.types import TypeSerializer


class Pair(NamedTuple):
    a: int


class Color(enum.Enum):
    RED = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


def shown(value: Any) -> str:
    """Return a value as text for a test's name, or its type: an address is another one in each process."""
    text = reprlib.repr(value)
    return type(value).__name__ if re.search("x[0-9a-f]{8}", text) else text


@dataclass
class Click:
    url: str
    count: int | None = None

    @functools.cached_property
    def host(self) -> str:
        return self.url.split("/")[0]


@dataclass
class NamedClick(Click):
    name: str = ""


def click_with(attribute: str) -> Click:
    click = Click("a/b")
    setattr(click, attribute, 1)
    return click


def click_without(attribute: str) -> Click:
    click = Click("a/b")
    delattr(click, attribute)
    return click


ROW = types.row_of({"a": types.INT64, "b c": types.nullable(types.INT64)})


@dataclass
class SubClick(NamedClick):
    pass


DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]

UTC = dt.timezone.utc
NOON = dt.datetime(2024, 1, 1, 12)
BERLIN = NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=1)))
LONDON_IN_WINTER = NOON.replace(tzinfo=zoneinfo.ZoneInfo("Europe/London"))

STRANGERS: list[tuple[TypeSerializer[Any], Any, str]] = [
    (types.BOOLEAN, 1, "Convert the value"),
    (types.BOOLEAN, np.True_, r"\.item\(\)"),
    (types.INT64, True, "BOOLEAN"),
    (types.INT64, 1.0, "Convert the value"),
    (types.INT64, "1", "Convert the value"),
    (types.INT64, None, r"nullable\(INT64\)"),
    (types.INT64, np.int64(1), r"\.item\(\)"),
    (types.INT8, 128, "wider type"),
    (types.INT16, -(2**15) - 1, "wider type"),
    (types.INT32, 2**31, "wider type"),
    (types.INT64, 2**63, "wider type"),
    (types.FLOAT64, 1, r"float\(\)"),
    (types.FLOAT64, np.float64(1), r"\.item\(\)"),
    (types.FLOAT32, 3.5e38, "Convert the value"),
    (types.STRING, b"a", "BYTES"),
    (types.STRING, np.str_("a"), r"\.item\(\)"),
    (types.STRING, "\ud800", "Lone surrogates"),
    (types.STRING, "a\udfff", "Lone surrogates"),
    (types.BYTES, "a", "STRING"),
    (types.BYTES, bytearray(b"a"), r"bytes\(\)"),
    (types.DATE, NOON, r"\.date\(\)"),
    (types.TIMESTAMP, NOON, "TIMESTAMP_NTZ"),
    (types.TIMESTAMP, BERLIN, "astimezone"),
    (types.TIMESTAMP, LONDON_IN_WINTER, "astimezone"),
    (types.TIMESTAMP, NOON.date(), "Convert the value"),
    (types.TIMESTAMP_NTZ, BERLIN, "Declare the state as TIMESTAMP"),
    (types.decimal(4, 2), Decimal("1.234"), "quantize"),
    (types.decimal(4, 2), Decimal("123"), "quantize"),
    (types.decimal(4, 2), Decimal("NaN"), "quantize"),
    (types.decimal(4, 2), Decimal("Infinity"), "quantize"),
    (types.decimal(4, 2), Decimal("1E+50"), "quantize"),
    (types.decimal(4, 2), 1.5, "FLOAT64"),
    (types.decimal(4, 2), 1, "Convert the value"),
    (types.VOID, None, "nullable"),
    (types.TIME_WINDOW, (0, 1), "Convert the value"),
    (types.TIME_WINDOW, types.TimeWindow(0, 2**63), "Convert the value"),
    (types.GLOBAL_WINDOW_TYPE, types.VOID_NAMESPACE, "Convert the value"),
    (types.list_of(types.INT64), (1,), "Convert the value"),
    (types.list_of(types.INT64), None, "nullable"),
    (types.set_of(types.INT64), frozenset({1}), "Convert the value"),
    (types.map_of(types.INT64, types.INT64), collections.Counter(), r"dict\(\)"),
    (types.map_of(types.INT64, types.INT64), collections.OrderedDict(), r"dict\(\)"),
    (types.tuple_of(types.INT64), Pair(1), r"tuple\(\)"),
    (types.tuple_of(types.INT64), (), "0 elements"),
    (types.tuple_of(types.INT64), (1, 2), "2 elements"),
    (types.TIME, dt.time(1, tzinfo=UTC), "Drop the zone"),
    (types.TIME, NOON, r"\.time\(\)"),
    (types.TIME, "12:00", "Convert the value"),
    (types.DURATION, dt.timedelta.max, "Convert the value"),
    (types.DURATION, dt.timedelta.min, "Convert the value"),
    (types.DURATION, 3, "Convert the value"),
    (types.UUID, "00112233-4455-6677-8899-aabbccddeeff", r"uuid\.UUID\(\)"),
    (types.enum_of(Color), "RED", r"Color\[\.\.\.\] by its name"),
    (types.enum_of(Color), 1, "by its value"),
    (types.enum_of(Color), Access.READ, "Convert the value"),
    (types.enum_of(Access), Access.READ | Access.WRITE, "Convert the value"),
    (types.enum_of(Color), None, r"nullable\(enum_of"),
    (types.array_of(types.INT64), [1], "Convert the value"),
    (types.array_of(types.INT64), np.array([1], np.int32), r"astype\('int64'\)"),
    (types.array_of(types.INT64), np.array([1], ">i8"), "'>i8'"),
    (types.array_of(types.INT64), np.array([[1]], np.int64), "2 dimensions"),
    (types.array_of(types.INT64), np.array(1, np.int64), "0 dimensions"),
    (types.array_of(types.INT64), np.ma.array([1], dtype=np.int64), "asarray"),
    (types.numpy_scalar("int64"), 1, r"numpy\.int64\(\)"),
    (types.numpy_scalar("int64"), np.int32(1), r"numpy\.int64\(\)"),
    (types.numpy_scalar("float64"), None, r"nullable\(numpy_scalar"),
    (types.pandas_timestamp(), NOON.replace(tzinfo=UTC), r"pandas\.Timestamp\(\)"),
    (types.pandas_timestamp(), pd.Timestamp("2024-01-01"), r"tz_localize\('UTC'\)"),
    (types.pandas_timestamp(), pd.Timestamp("2024-01-01", tz="Asia/Tokyo"), r"tz_convert\('UTC'\)"),
    (types.pandas_timestamp(None), pd.Timestamp("2024-01-01", tz="UTC"), r"tz_localize\(None\)"),
    (types.pandas_timestamp(None), pd.Timestamp("1066-10-14").as_unit("s"), "declare the state as TIMESTAMP"),
    (types.pandas_timestamp(), pd.NaT, "nullable"),
    (types.pandas_timestamp(), None, "nullable"),
    (types.TIMESTAMP_NTZ, pd.Timestamp("2024-01-01"), "plain datetime"),
    (ROW, (1, 2), "python_type"),
    (ROW, {"a": 1, "b c": 2}, "Convert the value"),
    (ROW, types.row_type(("a", "b"))(1, 2), "python_type"),
    (types.record_of(Click), NamedClick("a"), r"subclasses=\[NamedClick\]"),
    (types.record_of(Click), {"url": "a"}, "Convert the value"),
    (types.record_of(Click), None, "nullable"),
    (types.record_of(Click), click_with("hits"), "'hits' would be gone after a restart"),
    (types.record_of(Click), click_without("url"), "Set the field first"),
    (types.record_of(NamedClick, tagged=[SubClick]), Click("a"), "Convert the value"),
    (types.record_of(Click, tagged=[NamedClick]), SubClick("a"), "Declare SubClick among"),
    (types.record_of(Click, tagged=[NamedClick]), None, "nullable"),
    (types.pickled(), None, r"nullable\(pickled\(\)\)"),
    (types.pickled(), threading.Lock(), "cannot be pickled.*create it again in open"),
    (types.pickled(), {"f": (number for number in [])}, "cannot be pickled"),
    (types.pickled(), DEEP, "nested too deeply"),
]


@pytest.mark.parametrize(("serializer", "value", "way_out"), STRANGERS, ids=shown)
def test_a_value_that_a_restart_would_change_is_refused(
    serializer: TypeSerializer[Any], value: Any, way_out: str
) -> None:
    assert not serializer.is_value(value)
    with pytest.raises(ValueTypeError, match=way_out) as raised:
        serializer.check(value)
    assert repr(serializer) in raised.value.expected
    assert raised.value.path == ""


@pytest.mark.parametrize(
    ("serializer", "value"), [(serializer, value) for serializer, value, _ in STRANGERS], ids=shown
)
def test_a_value_that_is_refused_has_no_bytes_either(serializer: TypeSerializer[Any], value: Any) -> None:
    with pytest.raises(ValueTypeError):
        serializer.to_bytes(value)


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (types.TIMESTAMP, NOON.replace(tzinfo=zoneinfo.ZoneInfo("UTC"))),
        (types.FLOAT32, float("inf")),
        (types.decimal(4, 2), Decimal("1.5000")),
        (types.decimal(4, 2), Decimal("0E+99")),
        (types.decimal(4, 2), Decimal("1.5" + "0" * 60)),
        (types.decimal(4, 2), Decimal("1E+1")),
        (types.decimal(4, 2), Decimal("-0")),
        (types.decimal(38, 38), Decimal("-0." + "9" * 38)),
        (types.map_of(types.INT64, types.INT64), {1: None}),
        (types.set_of(types.nullable(types.INT64)), {None}),
        (types.DURATION, dt.timedelta(microseconds=-(2**63))),
        (types.DURATION, dt.timedelta(microseconds=2**63 - 1)),
        (types.TIME, dt.time.max),
        (types.enum_of(Access), Access.WRITE),
        (types.pandas_timestamp(None), pd.Timestamp("2024-01-01").as_unit("s")),
        (types.pandas_timestamp(), pd.Timestamp(-(2**63) + 1, tz="UTC")),
        (types.pandas_timestamp(), pd.Timestamp(NOON, tz=UTC)),
        (types.record_of(Click, tagged=[NamedClick]), NamedClick("a", None, "b")),
        (types.pickled(), Click("a")),
    ],
    ids=shown,
)
def test_a_value_that_a_restart_keeps_is_accepted(serializer: TypeSerializer[Any], value: Any) -> None:
    serializer.check(value)
    assert serializer.is_value(value)
    assert serializer.from_bytes(serializer.to_bytes(value)) == value
    assert serializer.from_arrow(serializer.to_arrow([value, None])) == [value, None]


def test_a_float_is_rounded_alike_by_both_representations_of_32_bits() -> None:
    types.FLOAT32.check(0.1)
    rounded = 0.10000000149011612
    assert types.FLOAT32.from_bytes(types.FLOAT32.to_bytes(0.1)) == rounded
    assert types.FLOAT32.from_arrow(types.FLOAT32.to_arrow([0.1, None])) == [rounded, None]


@pytest.mark.parametrize(
    ("serializer", "value", "path"),
    [
        (types.list_of(types.INT64), [0, 1, 2, "x"], "[3]"),
        (types.set_of(types.INT64), {"x"}, ".element"),
        (types.map_of(types.STRING, types.INT64), {"a": 1, "b": "x"}, "['b'].value"),
        (types.map_of(types.STRING, types.INT64), {1: 1}, ".key"),
        (types.tuple_of(types.INT64, types.INT64), (1, "x"), "[1]"),
        (types.nullable(types.list_of(types.INT64)), ["x"], "[0]"),
        (
            types.map_of(types.STRING, types.list_of(types.tuple_of(types.INT8, types.STRING))),
            {"k": [(1, "a"), (2, 3)]},
            "['k'].value[1][1]",
        ),
        (ROW, ROW.make((1, "x")), ".b c"),
        (ROW, ROW.make((None, 1)), ".a"),
        (types.record_of(Click), Click("a", 1.5), ".count"),  # type: ignore[arg-type]
        (types.record_of(Click), Click(None), ".url"),  # type: ignore[arg-type]
        (types.list_of(types.record_of(Click)), [Click("a"), Click(b"a")], "[1].url"),  # type: ignore[arg-type]
        (types.record_of(Click, tagged=[NamedClick]), NamedClick("a", 1, 2), ".name"),  # type: ignore[arg-type]
    ],
    ids=shown,
)
def test_a_wrong_part_is_named_by_its_path(serializer: TypeSerializer[Any], value: Any, path: str) -> None:
    assert not serializer.is_value(value)
    with pytest.raises(ValueTypeError) as raised:
        serializer.check(value)
    assert raised.value.path == path
    assert f" at {path}," in str(raised.value)
    with pytest.raises(ValueTypeError) as raised:
        serializer.to_arrow([None, value])
    assert (raised.value.path, raised.value.row) == (path, 1)
    with pytest.raises(ValueTypeError):
        serializer.to_bytes(value)


def test_a_message_has_both_types_and_the_start_of_the_value() -> None:
    with pytest.raises(ValueTypeError) as raised:
        types.INT64.check("x" * 10_000)
    message = str(raised.value)
    assert message.startswith(
        "expected INT64 (an int from -9223372036854775808 to 9223372036854775807), got str 'xxx"
    )
    assert len(message) < 300
    assert raised.value.given == "str"


def test_the_error_of_a_value_survives_the_way_from_worker_to_driver() -> None:
    with pytest.raises(ValueTypeError) as raised:
        types.list_of(types.INT64).check([None])
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.path, copy.given) == (str(raised.value), "[0]", "None")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: types.decimal(39, 0), "precision from 1 to 38"),
        (lambda: types.decimal(0, 0), "precision from 1 to 38"),
        (lambda: types.decimal(4, 5), "scale from 0 to the precision"),
        (lambda: types.decimal("4", 2), "precision from 1 to 38"),  # type: ignore[arg-type]
        (lambda: types.set_of(types.list_of(types.INT64)), "no hash"),
        (lambda: types.map_of(types.set_of(types.INT64), types.INT64), "no hash"),
        (lambda: types.map_of(types.tuple_of(types.list_of(types.INT64)), types.INT64), "no hash"),
        (lambda: types.map_of(types.nullable(types.INT64), types.INT64), "no null keys"),
        (lambda: types.map_of(types.VOID, types.INT64), "no null keys"),
        (lambda: types.map_of(types.INT64, types.VOID), "set_of"),
        (lambda: types.nullable(types.VOID), "already"),
        (lambda: types.tuple_of(), "no columns"),
        (lambda: types.row_of({}), "no columns"),
        (lambda: types.array_of(types.STRING), r"list_of\(STRING\)"),
        (lambda: types.array_of(types.nullable(types.INT64)), "fixed width"),
        (lambda: types.numpy_scalar("datetime64[ns]"), "at most 64 bits"),
        (lambda: types.numpy_scalar(">i8"), "byte order"),
        (lambda: types.numpy_scalar("no dtype"), "at most 64 bits"),
        (lambda: types.pandas_timestamp("Mars/Olympus"), "tzdata"),
        (lambda: types.enum_of(Click), "no subclass of enum.Enum"),
        (lambda: types.enum_of(enum.Enum), "no constants"),
        (lambda: types.set_of(types.record_of(Click)), "no hash"),
        (lambda: types.map_of(types.array_of(types.INT64), types.INT64), "no hash"),
        (lambda: types.set_of(types.pickled()), "no hash"),
    ],
)
def test_a_type_that_cannot_be_stored_is_refused_when_it_is_made(make: Any, reason: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=reason):
        make()


def test_what_is_nullable_already_stays_as_it_is() -> None:
    once = types.nullable(types.INT64)
    assert types.nullable(once) is once


def test_a_value_computed_once_may_be_an_attribute_besides_the_fields() -> None:
    """``functools.cached_property`` comes back by itself after a restart."""
    click = Click("example.org/a")
    assert click.host == "example.org"
    serializer = types.record_of(Click)
    serializer.check(click)
    back = serializer.from_bytes(serializer.to_bytes(click))
    assert "host" not in vars(back)
    assert back.host == "example.org"


@pytest.mark.parametrize(
    "serializer",
    [
        types.BOOLEAN,
        types.INT8,
        types.INT16,
        types.INT32,
        types.INT64,
        types.FLOAT32,
        types.FLOAT64,
        types.STRING,
        types.BYTES,
        types.UUID,
        types.nullable(types.INT8),
        types.list_of(types.STRING),
        types.map_of(types.STRING, types.INT64),
    ],
    ids=repr,
)
def test_a_column_is_of_a_type_where_each_of_its_values_is(serializer: TypeSerializer[Any]) -> None:
    values: list[Any] = [None, True, 1.5, "a", "\u00e4", "\ud800", b"a", [], ["a"], {}, {"a": 1}, np.int64(1)]
    values += [int.__new__(type("Number", (int,), {}), 1), str.__new__(type("Text", (str,), {}), "a")]
    for bits in (7, 15, 31, 63):
        values += [-(2**bits) - 1, -(2**bits), 2**bits - 1, 2**bits]
    good = [value for value in values if serializer.is_value(value)]
    assert serializer.are_values([]) and serializer.are_values(good)
    assert serializer.are_values(dict.fromkeys(map(repr, good)).values()) == (
        not good or serializer.is_value(None)
    )
    for value in values:
        for column in ([value], [*good, value], [value, *good]):
            assert serializer.are_values(column) == all(map(serializer.is_value, column)), column


def test_a_value_that_contains_itself_is_kept_by_the_generic_type() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    serializer = types.pickled()
    serializer.check(loop)
    for back in (
        serializer.copy(loop),
        serializer.from_bytes(serializer.to_bytes(loop)),
        serializer.from_arrow(serializer.to_arrow([loop]))[0],
    ):
        assert back is not loop
        assert back[0] == 1
        assert back[1] is back


def test_a_value_that_contains_itself_is_refused_by_other_types() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueTypeError, match=r"at \[0\]\[0\], got list"):
        types.list_of(types.list_of(types.INT64)).check(loop)


@pytest.mark.parametrize("count", [1, 9, 10, 11, 200])
@pytest.mark.parametrize(
    ("serializer", "make", "bad"),
    [
        (types.list_of(types.INT16), list, 2**15),
        (types.list_of(types.nullable(types.INT16)), list, "x"),
        (types.set_of(types.INT64), set, 2**63),
        (types.map_of(types.INT32, types.INT64), lambda values: dict.fromkeys(values, 1), 2**31),
        (types.map_of(types.STRING, types.INT8), lambda values: dict(enumerate_as_text(values)), 128),
        (types.list_of(types.list_of(types.INT64)), lambda values: [[value] for value in values], None),
    ],
    ids=shown,
)
def test_one_wrong_part_among_few_or_many_is_found_wherever_it_is(
    serializer: TypeSerializer[Any], make: Any, bad: Any, count: int
) -> None:
    good = [number % 100 for number in range(count)] if make is list else list(range(min(count, 120)))
    assert serializer.is_value(make(good))
    serializer.check(make(good))
    for place in {0, len(good) // 2, len(good) - 1}:
        value = make([*good[:place], bad, *good[place + 1 :]])
        assert not serializer.is_value(value)
        with pytest.raises(ValueTypeError):
            serializer.check(value)


def enumerate_as_text(values: list[Any]) -> Any:
    return ((str(index), value) for index, value in enumerate(values))


@pytest.mark.parametrize("count", [3, 50])
def test_none_is_a_value_of_maps_of_any_size(count: int) -> None:
    serializer = types.map_of(types.INT64, types.STRING)
    value: dict[int, Any] = {number: None if number % 2 else "x" for number in range(count)}
    assert serializer.is_value(value) and serializer.is_value(dict.fromkeys(range(count)))
    value[1] = 5
    assert not serializer.is_value(value)
