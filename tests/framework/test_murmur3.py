"""Spark's hash without Spark: answers written down from Spark, one value against columns, layouts, errors."""

from __future__ import annotations

import datetime
import math
import pickle
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyedstate.errors import (
    InvalidKeyValueError,
    InvalidParallelismError,
    KeyedStateError,
    LossyKeyTimeError,
    UnsupportedKeyTypeError,
)
from keyedstate.murmur3 import hash_columns, hash_value, key_groups

UTC = datetime.timezone.utc
INSTANT = datetime.datetime(2024, 2, 29, 12, 34, 56, 789_012)
PAIR = pa.struct({"number": pa.int32(), "text": pa.string()})

# Written down from Spark 4.3: SELECT hash(...).
SPARKS_ANSWERS = [
    (pa.bool_(), True, -559580957),
    (pa.bool_(), False, 933211791),
    (pa.int8(), 0, 933211791),
    (pa.int8(), -128, 1110053733),
    (pa.int16(), 32_767, 1249274084),
    (pa.int16(), -1, -1604776387),
    (pa.int32(), 1, -559580957),
    (pa.int32(), 2**31 - 1, 133916647),
    (pa.int32(), -(2**31), 723455942),
    (pa.int64(), 0, -1670924195),
    (pa.int64(), 1, -1712319331),
    (pa.int64(), -1, -939490007),
    (pa.int64(), 2**63 - 1, -1604625029),
    (pa.int64(), -(2**63), -853646085),
    (pa.float32(), 1.5, -221251528),
    (pa.float32(), -0.0, 933211791),
    (pa.float32(), math.nan, -349261430),
    (pa.float32(), -math.inf, 427440766),
    (pa.float64(), 1.5, 1290763749),
    (pa.float64(), -0.0, -1670924195),
    (pa.float64(), math.nan, -1281358385),
    (pa.float64(), math.inf, 833680482),
    (pa.float64(), 5e-324, -1712319331),
    (pa.string(), "", 142593372),
    (pa.string(), "a", 1485273170),
    (pa.string(), "abc", 1322437556),
    (pa.string(), "abcd", -396302900),
    (pa.string(), "abcdefg", 2132013596),
    (pa.string(), "naïve café", -1533585548),
    (pa.string(), "日本語", -1143049834),
    (pa.string(), "👍🏽", -587788628),
    (pa.string(), "ab" * 1_000, -1962792379),
    (pa.binary(), b"", 142593372),
    (pa.binary(), b"\xff", 1398487324),
    (pa.binary(), b"\x80\xff\x7f", 1911184379),
    (pa.binary(), b"\x00\x01\x02\x03\x04", -414629615),
    (pa.date32(), datetime.date(1970, 1, 1), 933211791),
    (pa.date32(), datetime.date(1969, 12, 31), -1604776387),
    (pa.date32(), datetime.date(2024, 2, 29), 653915859),
    (pa.timestamp("us", "UTC"), INSTANT.replace(tzinfo=UTC), -1367554535),
    (pa.timestamp("us"), INSTANT, -1367554535),
    (pa.timestamp("us"), datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999), -939490007),
    (pa.time64("us"), datetime.time(12, 34, 56, 789_000), -584131141),
    (pa.duration("us"), datetime.timedelta(days=1), 892267096),
    (pa.decimal128(4, 2), Decimal("12.34"), -1028144669),
    (pa.decimal128(18, 4), Decimal("-99999999999999.9999"), 1962370902),
    (pa.decimal128(19, 1), Decimal("1.5"), -357711666),
    (pa.decimal128(38, 0), Decimal(-1), 1398487324),
    (pa.decimal128(38, 0), Decimal("-12345678901234567890123456789012345678"), 988508472),
    (pa.decimal128(38, 10), Decimal(0), -783713497),
    (pa.null(), None, 42),
    (pa.string(), None, 42),
    (pa.struct({"a": pa.int32(), "b": pa.string(), "c": pa.null()}), {"a": 1, "b": "a"}, -936062819),
    (pa.list_(pa.int32()), [1, None, 3], 1066699649),
    (pa.list_(pa.int32()), [], 42),
    (pa.large_list(pa.string()), ["a", None], 1485273170),
    (pa.list_(pa.struct({"n": pa.int64(), "t": pa.string()})), [{"n": 1, "t": "x"}, None], -1438117640),
]


@pytest.mark.parametrize(("arrow_type", "value", "expected"), SPARKS_ANSWERS, ids=str)
def test_a_value_hashes_as_spark_hashes_it(arrow_type, value, expected):
    assert hash_value(value, arrow_type) == expected
    assert hash_columns([pa.array([value], type=arrow_type)]).tolist() == [expected]
    # So many rows that they are hashed together and not one by one.
    assert set(hash_columns([pa.array([value] * 500, type=arrow_type)]).tolist()) == {expected}


def test_several_columns_are_folded_in_order():
    number, text = pa.array([1], pa.int32()), pa.array(["x"])
    assert (
        hash_columns(
            [pa.array(["Spark"]), pa.array([[123]], pa.list_(pa.int32())), pa.array([2], pa.int32())]
        )[0]
        == -1321691492
    )
    assert hash_columns([number, pa.nulls(1, pa.string()), text]).tolist() == [-1305545736]
    assert hash_columns([text, number]).tolist() == [-1371604412]
    assert hash_value(1, pa.int32(), seed=hash_value("x", pa.string())) == -1371604412


# -- one value against columns ---------------------------------------------------------------------


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(lambda unscaled: Decimal(f"{unscaled}e-{scale}"))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
LEAVES = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), texts),
    (pa.large_string(), texts),
    (pa.string_view(), texts),
    (pa.binary(), st.binary(max_size=40)),
    (pa.large_binary(), st.binary(max_size=40)),
    (pa.binary_view(), st.binary(max_size=40)),
    (pa.binary(5), st.binary(min_size=5, max_size=5)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "Europe/Berlin"), st.datetimes(timezones=st.just(UTC))),
    (pa.timestamp("s"), st.datetimes().map(lambda value: value.replace(microsecond=0))),
    (pa.time64("us"), st.times()),
    (pa.duration("us"), st.timedeltas(datetime.timedelta(-100_000_000), datetime.timedelta(100_000_000))),
    (pa.decimal128(5, 2), decimals(5, 2)),
    (pa.decimal128(18, 18), decimals(18, 18)),
    (pa.decimal128(19, 0), decimals(19, 0)),
    (pa.decimal128(38, 20), decimals(38, 20)),
    (pa.decimal256(30, 3), decimals(30, 3)),
    (pa.null(), st.none()),
    (pa.dictionary(pa.int8(), pa.string()), texts),
]


def nested(inner: st.SearchStrategy) -> st.SearchStrategy:
    def list_of(typed):
        arrow_type, values = typed
        return st.sampled_from([pa.list_(arrow_type), pa.large_list(arrow_type)]).map(
            lambda list_type: (list_type, st.lists(st.none() | values, max_size=4))
        )

    def pairs_of(typed):
        arrow_type, values = typed
        return st.just((pa.list_(arrow_type, 2), st.lists(st.none() | values, min_size=2, max_size=2)))

    def struct_of(fields):
        names = [f"f{position}" for position in range(len(fields))]
        struct_type = pa.struct([(name, field[0]) for name, field in zip(names, fields, strict=True)])
        values = {name: st.none() | field[1] for name, field in zip(names, fields, strict=True)}
        return st.just((struct_type, st.fixed_dictionaries(values)))

    return inner.flatmap(list_of) | inner.flatmap(pairs_of) | st.lists(inner, max_size=3).flatmap(struct_of)


# Dictionaries stay at the top: Arrow has no way to build a list of them from Python values.
typed_values = st.sampled_from(LEAVES) | st.recursive(st.sampled_from(LEAVES[:-1]), nested, max_leaves=4)
columns = typed_values.flatmap(
    lambda typed: st.lists(st.none() | typed[1], max_size=80).map(
        lambda values: pa.array(values, type=typed[0])
    )
)


def one_by_one(*arrays: pa.Array) -> list[int]:
    hashes = [42] * len(arrays[0])
    for array in arrays:
        values = zip(array.to_pylist(), hashes, strict=True)
        hashes = [hash_value(value, array.type, seed=seed) for value, seed in values]
    return hashes


@given(columns)
@settings(max_examples=400, deadline=None)
def test_a_column_hashes_as_its_values_do(column):
    assert hash_columns([column]).tolist() == one_by_one(column)


@given(columns, st.integers(0, 80), st.integers(0, 80))
@settings(deadline=None)
def test_a_slice_of_a_column_hashes_as_its_values_do(column, start, length):
    assert hash_columns([column.slice(start, length)]).tolist() == one_by_one(column)[start : start + length]


@given(columns, st.lists(st.integers(0, 80), max_size=5))
@settings(deadline=None)
def test_a_column_in_chunks_hashes_as_the_whole(column, cuts):
    edges = [0, *sorted(min(cut, len(column)) for cut in cuts), len(column)]
    chunks = [column.slice(start, stop - start) for start, stop in pairwise(edges)]
    assert hash_columns([pa.chunked_array(chunks)]).tolist() == one_by_one(column)


def test_columns_that_are_cut_into_chunks_at_different_rows_hash_together():
    numbers, words = pa.array(range(1_000)), pa.array([f"word {number}" for number in range(1_000)])
    chunked_numbers = pa.chunked_array([numbers[:17], numbers[17:17], numbers[17:]])
    chunked_words = pa.chunked_array([words[:600], words[600:]])
    assert hash_columns([chunked_numbers, chunked_words]).tolist() == one_by_one(numbers, words)


def test_rows_of_many_blocks_hash_as_their_values_do():
    generator = np.random.default_rng(5)
    words = pa.array([generator.bytes(length) for length in generator.integers(0, 30, 40_000)])
    numbers = pa.array(generator.integers(-(2**63), 2**63 - 1, 40_000))
    assert hash_columns([words, numbers]).tolist() == one_by_one(words, numbers)


# -- layouts ---------------------------------------------------------------------------------------


def test_a_dictionary_hashes_as_its_values_and_nulls_in_it_as_nulls():
    words = pa.array(["a", None, "b" * 50, "a"] * 20)
    assert hash_columns([words.dictionary_encode()]).tolist() == one_by_one(words)
    with_a_null_value = pa.DictionaryArray.from_arrays(
        pa.array([1, 0, None], pa.int8()), pa.array([None, "a"])
    )
    assert hash_columns([with_a_null_value]).tolist() == [hash_value("a", pa.string()), 42, 42]


def test_the_value_under_a_null_does_not_matter():
    gone = np.array([False, True] * 50)
    numbers = pa.array(np.arange(100), mask=gone)
    offsets = pa.array(np.arange(101, dtype=np.int32) * 3)
    text = pa.StringArray.from_buffers(
        100, offsets.buffers()[1], pa.py_buffer(b"abc" * 100), numbers.buffers()[0], null_count=50
    )
    structs = pa.StructArray.from_arrays([pa.array(range(100))], ["n"], mask=pa.array(gone))
    lists = pa.ListArray.from_arrays(offsets, pa.array(range(300)), mask=pa.array(gone))
    indices = pa.array(np.where(gone, 77, 0), mask=gone)
    codes = pa.DictionaryArray.from_arrays(indices, pa.array(["abc"]), safe=False)
    for column in (numbers, text, structs, lists, codes):
        hashes = hash_columns([column])
        assert set(hashes[gone].tolist()) == {42}
        assert hashes.tolist() == one_by_one(column)


@pytest.mark.parametrize(
    "arrow_type",
    [*(arrow_type for arrow_type, _ in LEAVES), pa.list_(pa.string()), pa.list_(pa.int8(), 3), PAIR],
    ids=str,
)
def test_no_rows_give_no_hashes(arrow_type):
    empty = pa.array([], type=arrow_type)
    for column in (empty, pa.chunked_array([], type=arrow_type), pa.nulls(9, arrow_type).slice(9)):
        hashes = hash_columns([column])
        assert hashes.shape == (0,)
        assert hashes.dtype == np.int32
    assert key_groups([empty, empty], 128).shape == (0,)


def test_one_huge_string_among_many_short_ones_is_hashed_in_linear_time():
    """Work that grows with the square of the length would not end within the time limit of the test run."""
    column = pa.array(["a" * 10_000_000, *("abc" for _ in range(20_000)), None])
    hashes = hash_columns([column])
    assert hashes[0] == 1831781899
    assert set(hashes[1:-1].tolist()) == {1322437556}
    assert hashes[-1] == 42
    assert hash_value("a" * 10_000_000, pa.string()) == 1831781899


def test_one_huge_list_among_many_short_ones_hashes_as_its_values_do():
    column = pa.array([list(range(20_000)), *([1] for _ in range(1_000))])
    assert hash_columns([column]).tolist() == one_by_one(column)


def test_all_nans_hash_alike_and_minus_zero_as_zero():
    bits = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], dtype="<u4")
    assert set(hash_columns([pa.array(bits.view("<f4"))]).tolist()) == {-349261430}
    wide = np.array([0x7FF8 << 48, 0xFFF8 << 48, (0x7FF0 << 48) + 1, (1 << 64) - 1], dtype="<u8")
    assert set(hash_columns([pa.array(wide.view("<f8"))]).tolist()) == {-1281358385}
    assert len(set(hash_columns([pa.array([0.0, -0.0])]).tolist())) == 1


def test_a_struct_may_be_given_as_a_tuple():
    assert hash_value((1, "a"), PAIR) == hash_value({"number": 1, "text": "a"}, PAIR)


def test_times_in_another_unit_hash_as_the_same_times_in_sparks():
    seconds = pa.array([0, -1, 1_700_000_000, None])
    in_micros = hash_columns([seconds.cast(pa.timestamp("s")).cast(pa.timestamp("us"))]).tolist()
    for unit in ("s", "ms", "ns"):
        in_unit = seconds.cast(pa.timestamp("s")).cast(pa.timestamp(unit))
        assert hash_columns([in_unit]).tolist() == in_micros


# -- key groups ------------------------------------------------------------------------------------


@given(columns, st.integers(1, 32_768))
@settings(deadline=None)
def test_a_key_group_is_the_hash_modulo_the_max_parallelism_and_never_negative(column, max_parallelism):
    groups = key_groups([column], max_parallelism)
    assert groups.dtype == np.int32
    assert groups.tolist() == [each % max_parallelism for each in one_by_one(column)]


def test_a_null_key_has_the_key_group_of_the_seed():
    assert key_groups([pa.nulls(3, pa.string()), pa.nulls(3, pa.int64())], 40).tolist() == [2, 2, 2]


@pytest.mark.parametrize("max_parallelism", [0, -1, 32_769])
def test_key_groups_refuse_a_max_parallelism_out_of_bounds(max_parallelism):
    with pytest.raises(InvalidParallelismError):
        key_groups([pa.array([1])], max_parallelism)


# -- errors ----------------------------------------------------------------------------------------

A_MAP = pa.map_(pa.string(), pa.int32())


@pytest.mark.parametrize(
    ("arrow_type", "at_fault"),
    [
        (pa.uint8(), pa.uint8()),
        (pa.uint64(), pa.uint64()),
        (pa.float16(), pa.float16()),
        (pa.date64(), pa.date64()),
        (pa.time32("s"), pa.time32("s")),
        (pa.month_day_nano_interval(), pa.month_day_nano_interval()),
        (pa.decimal256(39, 0), pa.decimal256(39, 0)),
        (A_MAP, A_MAP),
        (pa.list_(A_MAP), A_MAP),
        (pa.struct({"inner": pa.list_(pa.uint16())}), pa.uint16()),
        (pa.dictionary(pa.int8(), pa.uint32()), pa.uint32()),
    ],
    ids=str,
)
def test_a_type_without_a_hash_is_refused_by_name_even_without_rows(arrow_type, at_fault):
    for use in (
        lambda: hash_columns([pa.array([], type=arrow_type)]),
        lambda: hash_columns([pa.chunked_array([], type=arrow_type)]),
        lambda: hash_value(None, arrow_type),
    ):
        with pytest.raises(UnsupportedKeyTypeError, match="Supported are bool, int8") as caught:
            use()
        assert caught.value.arrow_type == at_fault
        assert str(at_fault) in str(caught.value)
        assert isinstance(caught.value, KeyedStateError)


def test_the_refusal_of_a_map_says_that_spark_refuses_it():
    with pytest.raises(UnsupportedKeyTypeError, match="Spark refuses to hash maps") as caught:
        hash_value({}, A_MAP)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("value", "arrow_type"),
    [
        (128, pa.int8()),
        (-(2**63) - 1, pa.int64()),
        (1.0, pa.int32()),
        ("1", pa.int32()),
        (2, pa.bool_()),
        ("no", pa.bool_()),
        ("1.5", pa.list_(pa.float64())),
        (1e300, pa.float32()),
        ("\ud800", pa.string()),
        (b"bytes", pa.string()),
        ("text", pa.binary()),
        (1, pa.binary()),
        (5, pa.date32()),
        (INSTANT, pa.timestamp("us", "UTC")),
        (INSTANT.replace(tzinfo=UTC), pa.timestamp("us")),
        (Decimal("1.234"), pa.decimal128(5, 2)),
        (Decimal("1000"), pa.decimal128(5, 2)),
        (Decimal("NaN"), pa.decimal128(5, 2)),
        ("1.5", pa.decimal128(5, 2)),
        (1.5, pa.decimal128(5, 2)),
        (1, pa.null()),
        ((1,), PAIR),
        ({"number": 1, "txt": "a"}, PAIR),
        ([1, "two"], pa.list_(pa.int32())),
    ],
    ids=repr,
)
def test_a_value_that_does_not_fit_its_type_is_refused_with_both_named(value, arrow_type):
    with pytest.raises(InvalidKeyValueError) as caught:
        hash_value(value, arrow_type)
    assert str(arrow_type) in str(caught.value)
    assert repr(value) in str(caught.value)
    assert (caught.value.value, caught.value.arrow_type) == (value, arrow_type) or value != value


@pytest.mark.parametrize(
    ("column", "spark_type"),
    [
        (pa.array([1_001], pa.timestamp("ns")), "timestamp[us]"),
        (pa.array([1], pa.duration("ns")), "duration[us]"),
        (pa.array([2**60], pa.timestamp("s", "UTC")), "timestamp[us, tz=UTC]"),
    ],
    ids=str,
)
def test_times_that_sparks_unit_cannot_hold_are_refused_and_not_rounded(column, spark_type):
    with pytest.raises(LossyKeyTimeError) as caught:
        hash_columns([column])
    assert str(column.type) in str(caught.value)
    assert spark_type in str(caught.value)


def test_no_column_and_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="no key column"):
        hash_columns([])
    with pytest.raises(ValueError, match=r"different lengths \(1, 2\)"):
        hash_columns([pa.array([1]), pa.array([1, 2])])
