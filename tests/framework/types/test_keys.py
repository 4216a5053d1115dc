"""Keys of hash maps: what Spark holds equal is one key here."""

from __future__ import annotations

import copy
import math
import pickle
import struct
from dataclasses import dataclass

import numpy as np

from keyedstate import types
from keyedstate.types import VOID_NAMESPACE


@dataclass(frozen=True)
class Name:
    first: str


@dataclass(frozen=True)
class FullName(Name):
    last: str


def other_nan() -> float:
    value: float = struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0]
    return value


def test_every_nan_is_one_key_and_negative_zero_is_zero() -> None:
    """Spark normalises floats before it groups by them (NormalizeFloatingNumbers)."""
    for serializer in (types.FLOAT32, types.FLOAT64):
        assert serializer.needs_canonical
        counts = {serializer.canonical(value): 1 for value in (math.nan, other_nan(), float("nan"))}
        assert len(counts) == 1
        assert math.copysign(1, serializer.canonical(-0.0)) == 1.0
        assert serializer.canonical(-1.5) == -1.5
        assert serializer.canonical(math.inf) == math.inf


def test_a_32_bit_key_is_what_it_will_be_after_a_restart() -> None:
    canonical = types.FLOAT32.canonical(0.1)
    assert canonical == types.FLOAT32.from_bytes(types.FLOAT32.to_bytes(0.1)) == 0.10000000149011612
    assert math.copysign(1, types.FLOAT32.canonical(-1e-60)) == 1.0


def test_composite_keys_are_made_canonical_part_by_part() -> None:
    pair = types.tuple_of(types.nullable(types.FLOAT64), types.tuple_of(types.STRING, types.FLOAT64))
    keys = {pair.canonical((value, ("a", -0.0))) for value in (math.nan, other_nan())}
    assert len(keys) == 1
    assert {pair.canonical((None, ("a", 0.0))), pair.canonical((None, ("a", -0.0)))} == {(None, ("a", 0.0))}
    assert types.map_of(types.FLOAT64, types.FLOAT64).canonical({-0.0: None}) == {0.0: None}
    assert types.set_of(types.FLOAT64).canonical({math.nan}) == {types.FLOAT64.canonical(other_nan())}
    assert str(types.list_of(types.FLOAT64).canonical([-0.0])) == "[0.0]"


@dataclass(frozen=True)
class Reading:
    sensor: str
    value: float | None


def test_records_rows_and_numpy_numbers_are_made_canonical_too() -> None:
    record = types.record_of(Reading)
    # Whether two records with a NaN are equal is for their class to say: up to Python 3.12 they are.
    values = {id(record.canonical(Reading("a", value)).value) for value in (math.nan, other_nan())}
    assert len(values) == 1
    assert str(record.canonical(Reading("a", -0.0))) == "Reading(sensor='a', value=0.0)"
    assert record.canonical(Reading("a", None)) == Reading("a", None)
    row = types.row_of({"value": types.FLOAT64})
    assert len({row.canonical(row.make([value])) for value in (math.nan, other_nan())}) == 1
    number = types.numpy_scalar("float32")
    assert len({number.canonical(np.float32(value)) for value in (math.nan, other_nan())}) == 1
    assert str(number.canonical(np.float32(-0.0))) == "0.0"
    assert type(number.canonical(np.float32(1.5))) is np.float32
    assert not types.numpy_scalar("int8").needs_canonical


def test_types_without_floats_need_no_canonical_form() -> None:
    for serializer, value in (
        (types.STRING, "a"),
        (types.tuple_of(types.INT64, types.decimal(4, 2)), (1, None)),
        (types.list_of(types.INT64), [1]),
        (types.map_of(types.INT64, types.INT64), {1: 2}),
        (types.set_of(types.INT64), {1}),
        (types.record_of(Name), Name("a")),
        (types.record_of(Name, tagged=[FullName]), FullName("a", "b")),
        (types.row_of({"a": types.INT64}), types.row_type(("a",))(1)),
        (types.array_of(types.FLOAT64), np.array([-0.0])),
    ):
        assert not serializer.needs_canonical
        assert serializer.canonical(value) is value  # type: ignore[attr-defined]


def test_there_is_one_void_namespace_however_it_is_copied() -> None:
    assert copy.deepcopy([VOID_NAMESPACE])[0] is VOID_NAMESPACE
    assert copy.copy(VOID_NAMESPACE) is VOID_NAMESPACE
    assert pickle.loads(pickle.dumps(VOID_NAMESPACE)) is VOID_NAMESPACE
    assert types.VoidNamespace() is VOID_NAMESPACE
    assert types.VOID.copy(VOID_NAMESPACE) is VOID_NAMESPACE
