"""Properties that hold for the values of every type, nested in any way."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal as pydecimal
import enum
import json
import math
import pickle
import uuid
from dataclasses import dataclass
from typing import Annotated, Any

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyedstate import errors, types
from keyedstate.errors import CorruptDataError
from keyedstate.memory import MIN_PAGE_BYTES, ListedPages, PagedInputView, PagedOutputView, heap_segment
from keyedstate.types import SerializerSnapshot, TypeSerializer

#: The same examples in every run; the first of them are slow where strategies are built.
COMMON = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@dataclass(frozen=True)
class Typed:
    """A type, and the values to try it with."""

    serializer: TypeSerializer[Any]
    values: st.SearchStrategy[Any]

    def __repr__(self) -> str:
        return repr(self.serializer)


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decimals(precision: int, scale: int) -> Typed:
    wide = pydecimal.Context(prec=80)
    unscaled = st.integers(-(10**precision) + 1, 10**precision - 1)
    return Typed(
        types.decimal(precision, scale),
        unscaled.map(lambda number: wide.scaleb(pydecimal.Decimal(number), -scale)),
    )


class Color(enum.Enum):
    RED = 1
    GREEN = "green"
    GRÜN = "green"  # noqa: PIE796 - an alias
    BLUE = (1, 2)


@dataclass(frozen=True)
class Point:
    y: int
    x: Annotated[int | None, types.nullable(types.INT16)]


@dataclass
class Path:
    points: list[Point]
    color: Color = Color.RED
    name: str | None = None


@dataclass(slots=True)
class Slotted:
    values: list[float]


@dataclass
class NamedPath(Path):
    owner: str = ""


@dataclass(frozen=True)
class Marked(Point):
    color: Color


def records(cls: type[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(cls, **fields)


POINTS = {"y": integers(64), "x": st.none() | integers(16)}
PATHS = {
    "points": st.lists(records(Point, **POINTS), max_size=3),
    "color": st.sampled_from(Color),
    "name": st.none() | TEXT,
}


def arrays(element: TypeSerializer[Any], dtype: str, values: st.SearchStrategy[Any]) -> Typed:
    made = st.lists(values, max_size=4).map(lambda elements: np.array(elements, dtype))
    return Typed(types.array_of(element), made)


def stamps(tz: str | None) -> Typed:
    nanoseconds = st.integers(-(2**63) + 10**14, 2**63 - 10**14)
    return Typed(types.pandas_timestamp(tz), nanoseconds.map(lambda value: pd.Timestamp(value, tz=tz)))


FLOATS = [
    Typed(types.FLOAT32, st.floats(width=32)),
    Typed(types.FLOAT64, st.floats()),
    Typed(types.numpy_scalar("float32"), st.floats(width=32).map(np.float32)),
    arrays(types.FLOAT64, "float64", st.floats()),
    arrays(types.INT16, "int16", integers(16)),
    arrays(types.BOOLEAN, "bool", st.booleans()),
]
#: Types whose values are equal to what is read back; a NaN is not.
KEYS = [
    Typed(types.BOOLEAN, st.booleans()),
    Typed(types.INT8, integers(8)),
    Typed(types.INT16, integers(16)),
    Typed(types.INT32, integers(32)),
    Typed(types.INT64, integers(64)),
    Typed(types.STRING, TEXT),
    Typed(types.BYTES, st.binary(max_size=20)),
    Typed(types.DATE, st.dates()),
    Typed(types.TIMESTAMP, st.datetimes(timezones=st.just(dt.timezone.utc))),
    Typed(types.TIMESTAMP_NTZ, st.datetimes()),
    *(decimals(*digits) for digits in [(1, 0), (1, 1), (10, 2), (18, 0), (19, 3), (38, 0), (38, 38)]),
    Typed(types.TIME, st.times()),
    Typed(types.DURATION, st.timedeltas(dt.timedelta(-(10**8)), dt.timedelta(10**8))),
    Typed(types.UUID, st.uuids()),
    Typed(types.TIME_WINDOW, st.builds(types.TimeWindow, integers(64), integers(64))),
    Typed(types.numpy_scalar("uint64"), st.integers(0, 2**64 - 1).map(np.uint64)),
    Typed(types.numpy_scalar("int16"), integers(16).map(np.int16)),
    Typed(types.numpy_scalar("bool"), st.booleans().map(np.bool_)),
    stamps(None),
    stamps("Europe/Berlin"),
]
#: The same with classes of the user, which a snapshot does not have.
CLASS_KEYS = [
    Typed(types.enum_of(Color), st.sampled_from(Color)),
    Typed(types.record_of(Point), records(Point, **POINTS)),
    Typed(
        types.record_of(Point, tagged=[Marked]),
        records(Point, **POINTS) | records(Marked, color=st.sampled_from(Color), **POINTS),
    ),
]
CLASSES = [
    Typed(types.record_of(Path), records(Path, **PATHS)),
    Typed(
        types.record_of(Path, subclasses=[NamedPath]),
        records(Path, **PATHS) | records(NamedPath, owner=TEXT, **PATHS),
    ),
    Typed(types.record_of(Slotted), records(Slotted, values=st.lists(st.floats(), max_size=3))),
]


def row(fields: list[Typed]) -> Typed:
    serializer = types.row_of({f"a {index}": field.serializer for index, field in enumerate(fields)})
    return Typed(serializer, st.tuples(*(field.values for field in fields)).map(serializer.make))


def nested(inner: st.SearchStrategy[Typed], keys: list[Typed]) -> st.SearchStrategy[Typed]:
    key = st.sampled_from(keys)
    return st.one_of(
        inner.map(lambda e: Typed(types.list_of(e.serializer), st.lists(e.values, max_size=4))),
        key.map(lambda e: Typed(types.set_of(e.serializer), st.sets(e.values, max_size=4))),
        st.tuples(key, inner).map(
            lambda kv: Typed(
                types.map_of(kv[0].serializer, kv[1].serializer),
                st.dictionaries(kv[0].values, st.none() | kv[1].values, max_size=4),
            )
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda fields: Typed(
                types.tuple_of(*(field.serializer for field in fields)),
                st.tuples(*(field.values for field in fields)),
            )
        ),
        inner.map(lambda e: Typed(types.nullable(e.serializer), st.none() | e.values)),
        st.lists(inner, min_size=1, max_size=8).map(row),
    )


PLAIN_TYPES = st.recursive(st.sampled_from(KEYS + FLOATS), lambda inner: nested(inner, KEYS), max_leaves=4)
TYPES = st.recursive(
    st.sampled_from(KEYS + FLOATS + CLASS_KEYS + CLASSES),
    lambda inner: nested(inner, KEYS + CLASS_KEYS),
    max_leaves=4,
)
ONE_VALUE = TYPES.flatmap(lambda typed: st.tuples(st.just(typed.serializer), typed.values))


def column_of(typed: Typed) -> st.SearchStrategy[tuple[TypeSerializer[Any], list[Any]]]:
    return st.tuples(st.just(typed.serializer), st.lists(st.none() | typed.values, max_size=8))


COLUMN = TYPES.flatmap(column_of)
#: Without subclasses, whose columns are pyarrow's structs of structs.
PLAIN_COLUMN = (
    PLAIN_TYPES | st.sampled_from([CLASS_KEYS[0], CLASS_KEYS[1], CLASSES[0], CLASSES[2]])
).flatmap(column_of)


def same(left: Any, right: Any) -> bool:
    """Equal and of one type all the way down; NaN is the same as NaN, and -0.0 is not 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and all(map(same, left.tolist(), right.tolist()))
    if dataclasses.is_dataclass(left):
        return all(
            same(getattr(left, field.name), getattr(right, field.name)) for field in dataclasses.fields(left)
        )
    if isinstance(left, (float, np.floating)):
        return (left == right and math.copysign(1, left) == math.copysign(1, right)) or (
            left != left and right != right
        )
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(map(same, left.values(), right.values()))
    return bool(left == right)


@COMMON
@given(ONE_VALUE)
def test_a_value_survives_its_bytes(typed: tuple[TypeSerializer[Any], Any]) -> None:
    serializer, value = typed
    serializer.check(value)
    data = serializer.to_bytes(value)
    assert data
    assert same(serializer.from_bytes(data), value)
    assert same(serializer.from_bytes(memoryview(bytearray(data))), value)


@COMMON
@given(ONE_VALUE)
def test_a_value_survives_pages_wherever_the_first_one_ends(typed: tuple[TypeSerializer[Any], Any]) -> None:
    """MEM-04."""
    serializer, value = typed
    size = len(serializer.to_bytes(value))
    pages = [heap_segment(MIN_PAGE_BYTES) for _ in range(2 + size // MIN_PAGE_BYTES)]
    for start in range(max(0, MIN_PAGE_BYTES - size), MIN_PAGE_BYTES + 1):
        out = PagedOutputView(ListedPages(pages))
        out.write(bytes(start))
        serializer.serialize(value, out)
        assert out.commit()
        source = PagedInputView(out.pages, out.size)
        source.seek(start)
        assert same(serializer.deserialize(source), value)
        assert source.remaining == 0


@COMMON
@given(ONE_VALUE, ONE_VALUE)
def test_is_value_agrees_with_check(
    mine: tuple[TypeSerializer[Any], Any], other: tuple[TypeSerializer[Any], Any]
) -> None:
    """Of its own values, of those of other types, and of such as parts of it."""
    serializer, own = mine
    written_out = types.value_checker(serializer)
    assert serializer.is_value(own) and written_out(own)
    for value in (other[1], [other[1]], (other[1],), {0: other[1]}, [own, other[1]], None):
        assert written_out(value) is serializer.is_value(value)
        try:
            serializer.check(value)
        except errors.ValueTypeError:
            assert not serializer.is_value(value)
        else:
            assert serializer.is_value(value)
        column = [own, value, own]
        assert serializer.are_values(column) is all(map(serializer.is_value, column))
        assert serializer.are_values(dict.fromkeys(range(3), value).values()) is serializer.is_value(value)


@COMMON
@given(COLUMN)
def test_values_survive_an_arrow_column_whole_and_in_slices(
    typed: tuple[TypeSerializer[Any], list[Any]],
) -> None:
    serializer, values = typed
    array = serializer.to_arrow(values)
    array.validate(full=True)
    assert array.type == serializer.arrow_type
    assert same(serializer.from_arrow(array), values)
    middle = slice(len(values) // 3, len(values) - len(values) // 4)
    assert same(serializer.from_arrow(array[middle]), values[middle])
    chunks = pa.chunked_array([array[:2], array[2:]], array.type)
    assert same(serializer.from_arrow(chunks), values)


@COMMON
@given(PLAIN_COLUMN)
def test_a_column_equals_that_of_pyarrow(typed: tuple[TypeSerializer[Any], list[Any]]) -> None:
    serializer, values = typed

    def plain(value: Any) -> Any:
        """What pyarrow converts: it takes structs from dicts, maps from pairs, and no sets inside of them."""
        if isinstance(value, enum.Enum):
            return value.name
        if isinstance(value, np.ndarray):
            return value.tolist()
        if isinstance(value, uuid.UUID):
            # Older versions of pyarrow do not take the object.
            return value.bytes
        if dataclasses.is_dataclass(value):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if hasattr(value, "as_dict"):
            return {name: plain(part) for name, part in value.as_dict().items()}
        if hasattr(value, "_asdict"):
            return {name: plain(part) for name, part in value._asdict().items()}
        if isinstance(value, tuple):
            return {f"f{index}": plain(element) for index, element in enumerate(value)}
        if isinstance(value, dict):
            return [(plain(key), plain(item)) for key, item in value.items()]
        return list(map(plain, value)) if isinstance(value, (list, set)) else value

    expected = pa.array(list(map(plain, values)), serializer.arrow_type)
    assert repr(serializer.to_arrow(values).to_pylist()) == repr(expected.to_pylist())


@COMMON
@given(ONE_VALUE)
def test_a_copy_is_the_same_object_exactly_where_nothing_can_change(
    typed: tuple[TypeSerializer[Any], Any],
) -> None:
    serializer, value = typed

    def changeable_parts(part: Any) -> list[Any]:
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, (list, tuple)) else ()
        own = [part] if isinstance(part, (list, dict, set, np.ndarray)) else []
        if dataclasses.is_dataclass(part) and not isinstance(part, Point):
            inner = [getattr(part, field.name) for field in dataclasses.fields(part)]
            own = [part]
        return own + [leaf for element in inner for leaf in changeable_parts(element)]

    copied = serializer.copy(value)
    assert same(copied, value)
    if serializer.immutable:
        assert copied is value
    assert not {id(part) for part in changeable_parts(value)} & {
        id(part) for part in changeable_parts(copied)
    }


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (types.list_of(types.list_of(types.INT64)), [[1]]),
        (types.map_of(types.STRING, types.list_of(types.INT64)), {"a": [1], "b": None}),
        (types.map_of(types.STRING, types.INT64), {"a": 1}),
        (types.tuple_of(types.INT64, types.set_of(types.INT64)), (1, {2})),
        (types.nullable(types.list_of(types.INT64)), [1]),
    ],
    ids=str,
)
def test_a_copy_does_not_follow_changes_of_the_original(serializer: TypeSerializer[Any], value: Any) -> None:
    before = repr(value)
    copied = serializer.copy(value)

    def empty(part: Any) -> None:
        for inner in part.values() if isinstance(part, dict) else part:
            if isinstance(inner, (list, dict, set, tuple)):
                empty(inner)
        if not isinstance(part, tuple):
            part.clear()

    empty(value)
    assert repr(value) != before
    assert repr(copied) == before


@COMMON
@given(PLAIN_TYPES)
def test_a_snapshot_survives_json_and_gives_an_equal_serializer(typed: Typed) -> None:
    serializer = typed.serializer
    snapshot = SerializerSnapshot.from_json(json.loads(json.dumps(serializer.snapshot().to_json())))
    assert snapshot == serializer.snapshot()
    assert hash(snapshot) == hash(serializer.snapshot())
    restored = snapshot.restore_serializer()
    assert restored == serializer
    assert hash(restored) == hash(serializer)
    assert restored.arrow_type == serializer.arrow_type
    assert serializer.snapshot().resolve_compatibility(snapshot).is_as_is


@COMMON
@given(PLAIN_TYPES)
def test_a_repr_is_the_expression_that_makes_the_type(typed: Typed) -> None:
    assert eval(repr(typed.serializer), vars(types).copy()) == typed.serializer


@COMMON
@given(TYPES)
def test_a_serializer_survives_pickling(typed: Typed) -> None:
    assert pickle.loads(pickle.dumps(typed.serializer)) == typed.serializer
    assert cloudpickle.loads(cloudpickle.dumps(typed.serializer)) == typed.serializer


@COMMON
@given(COLUMN)
def test_what_is_read_without_the_classes_can_be_kept_and_becomes_the_same_values(
    typed: tuple[TypeSerializer[Any], list[Any]],
) -> None:
    """A restored serializer knows no classes; its values survive a further checkpoint, and a conversion."""
    serializer, values = typed
    restored = SerializerSnapshot.from_json(serializer.snapshot().to_json()).restore_serializer()
    assert restored.snapshot() == serializer.snapshot()
    assert restored.arrow_type == serializer.arrow_type
    assert serializer.resolve_compatibility(restored.snapshot()).is_as_is
    conversion = serializer.conversion_from(restored) or (lambda value: value)
    column = restored.from_arrow(serializer.to_arrow(values))
    kept = restored.from_arrow(restored.to_arrow(column))
    for value, old in zip(values, kept, strict=True):
        if value is not None:
            restored.check(old)
            assert same(conversion(old), value)
            assert same(conversion(restored.from_bytes(serializer.to_bytes(value))), value)
            assert same(conversion(restored.copy(old)), value)
            again = SerializerSnapshot.from_json(restored.snapshot().to_json()).restore_serializer()
            assert again.conversion_from(restored) is None


@COMMON
@given(ONE_VALUE, st.data())
def test_bytes_that_end_too_early_are_corrupt(
    typed: tuple[TypeSerializer[Any], Any], data: st.DataObject
) -> None:
    serializer, value = typed
    whole = serializer.to_bytes(value)
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(CorruptDataError) as raised:
        serializer.from_bytes(part)
    assert 0 <= raised.value.position <= len(part)


@COMMON
@given(TYPES, st.binary(max_size=60))
def test_any_bytes_are_read_as_a_value_of_the_type_or_refused(typed: Typed, data: bytes) -> None:
    try:
        value = typed.serializer.from_bytes(data)
    except CorruptDataError:
        return
    typed.serializer.check(value)


@COMMON
@given(ONE_VALUE, st.data())
def test_a_flipped_bit_gives_another_value_of_the_type_or_is_refused(
    typed: tuple[TypeSerializer[Any], Any], data: st.DataObject
) -> None:
    serializer, value = typed
    damaged = bytearray(serializer.to_bytes(value))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(CorruptDataError):
        serializer.check(serializer.from_bytes(damaged))
