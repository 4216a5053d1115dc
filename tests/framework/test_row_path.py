"""The compiled steps of the per-record path give what the plain ones give."""

from __future__ import annotations

import datetime as dt
import os
import struct
import subprocess
import sys
from collections import namedtuple
from types import ModuleType
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyedstate import row_path, types
from keyedstate.errors import ValueTypeError
from keyedstate.row_path import plain
from keyedstate.runtime.grouping import GroupedRows

INTEGERS = st.integers(-(2**63) - 1, 2**63)
ZONES = st.sampled_from([None, dt.timezone.utc, ZoneInfo("UTC"), dt.timezone(dt.timedelta(hours=1))])
SCALARS = (
    st.none()
    | st.booleans()
    | INTEGERS
    | st.text(st.characters(), max_size=3)
    | st.floats()
    | ZONES.map(lambda zone: dt.datetime(2026, 1, 1, tzinfo=zone))
)
Pair = namedtuple("Pair", "a b")
ROW = types.row_of({"a": types.INT32, "b": types.nullable(types.STRING)})
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.tuples(inner)
        | st.tuples(inner, inner)
        | st.lists(inner, max_size=2)
        | st.builds(Pair, inner, inner)
        | st.builds(ROW.python_type, inner, inner)
    ),
    max_leaves=4,
)
TYPES = [
    types.INT8,
    types.INT64,
    types.BOOLEAN,
    types.STRING,
    types.FLOAT64,
    types.FLOAT32,
    types.TIMESTAMP,
    types.TIMESTAMP_NTZ,
    types.nullable(types.STRING),
    types.nullable(types.list_of(types.INT64)),
    types.tuple_of(types.INT64, types.INT64),
    types.tuple_of(types.TIMESTAMP),
    types.tuple_of(types.nullable(types.tuple_of(types.INT64)), types.FLOAT32),
    ROW,
    types.tuple_of(ROW),
]


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    if row_path.compiled is None:
        message = "the per-record path is not compiled: install framework/ where a C compiler is"
        if os.environ.get("KEYEDSTATE_REQUIRE_COMPILED") == "1":
            pytest.fail(message)
        pytest.skip(message)
    module: ModuleType = row_path.compiled
    return module


@given(rows=st.lists(st.tuples(SCALARS, SCALARS) | st.lists(SCALARS, min_size=1, max_size=3) | VALUES))
def test_rows_become_the_same_columns(compiled, rows):
    expected = plain.columns_of(rows, 2)
    assert repr(compiled.columns_of(rows, 2)) == repr(expected)


@given(values=st.lists(SCALARS), kinds=st.frozensets(st.sampled_from([int, str, bool, float, type(None)])))
def test_values_are_of_the_same_types(compiled, values, kinds):
    expected = plain.are_of(values, kinds)
    assert compiled.are_of(values, kinds) is compiled.are_of(tuple(values), kinds) is expected


@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.text(max_size=3) | st.text("ab", max_size=3) | SCALARS)),
    length=st.integers(120, 130),
    end=st.binary(max_size=2),
)
def test_short_strings_become_the_same_rows(compiled, rows, length, end):
    prefixes = [b"", b"\x00\xff", b"a"]
    for some in (
        rows,
        [*rows, (1, "a" * length)],
        [each for each in rows if isinstance(each[1], str) and each[1].isascii()],
    ):
        numbers, texts = [number for number, _ in some], [text for _, text in some]
        made = compiled.short_texts(prefixes, numbers, texts, end)
        assert made == plain.short_texts(prefixes, numbers, texts, end)
        if made is not None:
            assert made == [prefixes[number] + types.STRING.to_bytes(text) + end for number, text in some]


@pytest.mark.parametrize("form", [row_path.compiled, plain], ids=["compiled", "plain"])
def test_rows_of_short_strings_need_a_number_and_a_prefix_each(form):
    if form is None:
        pytest.skip("not compiled")
    assert form.short_texts([b"a"], [], [], b"") == []
    for numbers, error in (([0], ValueError), ([0, 1], IndexError)):
        with pytest.raises(error):
            form.short_texts([b"a"], numbers, ["x", "y"], b"")


@given(
    texts=st.lists(st.binary(max_size=9) | st.binary(min_size=14, max_size=18)),
    like=st.lists(st.integers(0, 40), max_size=200),
    start=st.integers(0, 3),
)
def test_texts_are_numbered_as_pyarrow_numbers_them(compiled, texts, like, start):
    """Also those that differ in one byte alone, wherever it is, and in a part of an array."""
    texts += [b"a" * (place % 20) + b"b" * (place % 3) for place in like]
    column = pa.array(texts, pa.binary()).slice(start)
    encoded = column.dictionary_encode()
    ends = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    numbers, first_rows = np.empty(len(column), np.int64), np.empty(len(column), np.int64)
    count = compiled.numbered_texts(ends, data, numbers, first_rows)
    assert numbers.tolist() == encoded.indices.to_pylist()
    assert [column[row].as_py() for row in first_rows[:count]] == encoded.dictionary.to_pylist()
    assert all(numbers.tolist().index(number) == row for number, row in enumerate(first_rows[:count]))


def test_many_texts_are_numbered_in_a_table_that_grows(compiled):
    texts = np.array([f"{number % 30_011:x}" for number in range(100_000)])
    column = pa.array(texts)
    numbers, first_rows = np.empty(len(column), np.int64), np.empty(len(column), np.int64)
    ends, data = (np.frombuffer(each, np.uint8) for each in column.buffers()[1:])
    assert compiled.numbered_texts(ends.view(np.int32)[:100_001], data, numbers, first_rows) == 30_011
    assert (numbers == np.arange(100_000) % 30_011).all()
    assert (first_rows[:30_011] == np.arange(30_011)).all()


def same_hash(count):
    """Return as many texts of 16 bytes with one hash."""
    mask, begin = 2**64 - 1, 16 * 0xC2B2AE3D27D4EB4F % 2**64

    def mixed(word):
        word = word * 0x9E3779B97F4A7C15 & mask
        return word ^ word >> 32

    return [struct.pack("<QQ", word, mixed(begin ^ word) ^ 7) for word in range(count)]


@pytest.mark.parametrize("chosen", [20, 10_000])
def test_texts_with_one_hash_are_different_and_too_many_are_left_to_pyarrow(compiled, chosen):
    texts = [*same_hash(chosen), *(b"%d" % number for number in range(100)), *same_hash(chosen)]
    column = pa.array(texts, pa.binary())
    ends, data = (np.frombuffer(each, np.uint8) for each in column.buffers()[1:])
    numbers, first_rows = np.empty(len(column), np.int64), np.empty(len(column), np.int64)
    count = compiled.numbered_texts(ends.view(np.int32)[: len(column) + 1], data, numbers, first_rows)
    assert count == (chosen + 100 if chosen == 20 else -1)
    grouped = GroupedRows([column], np.zeros(len(column), np.int32))
    assert grouped.codes.tolist() == [*range(chosen + 100), *range(chosen)]
    assert grouped.keys == texts[: chosen + 100]


@pytest.mark.parametrize("ends", [[0, 1], [0, 1, 5], [-1, 0, 1]])
def test_ends_of_texts_that_do_not_fit_are_refused(compiled, ends):
    arrays = [np.empty(2, np.int64) for _ in range(2)]
    with pytest.raises(ValueError, match="texts"):
        compiled.numbered_texts(np.array(ends, np.int32), np.zeros(4, np.uint8), *arrays)


@given(values=st.lists(INTEGERS) | st.lists(SCALARS))
def test_integers_have_the_same_bytes(compiled, values):
    assert compiled.packed_longs(values) == plain.packed_longs(values)


INSTANTS = st.datetimes() | st.datetimes(timezones=st.just(dt.timezone.utc))


@given(values=st.lists(INSTANTS) | st.lists(INSTANTS | SCALARS), in_utc=st.booleans())
def test_instants_have_the_same_bytes_or_are_left_to_pyarrow(compiled, values, in_utc):
    """Those at the ends of the calendar, too; a fold names another instant only with a zone that has one."""
    zone = dt.timezone.utc if in_utc else None
    mine = [value for value in values if type(value) is dt.datetime and value.tzinfo is zone]
    packed = compiled.packed_instants(mine, in_utc)
    micros = np.frombuffer(packed, np.int64)
    assert micros.tolist() == pa.array(mine, pa.timestamp("us")).cast(pa.int64()).to_pylist()
    assert compiled.instants_of(micros, in_utc) == plain.instants_of(micros, in_utc) == mine
    assert all(value.tzinfo is zone for value in compiled.instants_of(micros, in_utc))
    if len(mine) < len(values):
        assert compiled.packed_instants(values, in_utc) is None
    assert plain.packed_instants(values, in_utc) is None


@given(values=st.lists(st.text(st.characters(), max_size=5)) | st.lists(SCALARS))
def test_strings_have_the_bytes_of_pyarrow_or_are_left_to_it(compiled, values):
    packed = compiled.packed_text(values)
    try:
        expected = pa.array(values, pa.string())
    except (pa.ArrowException, TypeError, UnicodeError):
        assert packed is None
        return
    if packed is None:
        assert expected.null_count
    else:
        buffers = [None, *map(pa.py_buffer, packed)]
        made = pa.Array.from_buffers(pa.string(), len(values), buffers)
        made.validate(full=True)
        assert made.equals(expected)


@given(counted=st.lists(st.tuples(SCALARS, st.integers(0, 3))))
def test_values_are_repeated_alike(compiled, counted):
    values, counts = [value for value, _ in counted], [count for _, count in counted]
    assert repr(compiled.repeated(values, counts)) == repr(plain.repeated(values, counts))
    for form in (compiled, plain):
        with pytest.raises(ValueError):
            form.repeated([*values, 1], counts)


@given(columns=st.lists(st.lists(SCALARS, min_size=3, max_size=3), min_size=2, max_size=2))
def test_columns_become_the_same_rows(compiled, columns):
    made = list(compiled.tuples_of(Pair, columns))
    assert repr(made) == repr(list(plain.tuples_of(Pair, columns)))
    assert {type(row) for row in made} == {Pair}


def test_columns_of_different_lengths_are_refused_by_both_forms(compiled):
    for form in (compiled, plain):
        with pytest.raises(ValueError):
            list(form.tuples_of(Pair, [[1, 2], [3]]))


@pytest.mark.parametrize("serializer", TYPES, ids=repr)
@given(value=VALUES)
def test_a_type_accepts_the_same_values(compiled, serializer, value):
    try:
        serializer.check(value)
    except ValueTypeError:
        accepted = False
    else:
        accepted = True
    assert compiled.checker(serializer.check_parts())(value) is accepted


#: Prints what a function yields, and how it fails, in the form that its argument names.
_PROGRAM = """
import sys

if sys.argv[1] == "plain":
    sys.modules["keyedstate.row_path.compiled"] = None

import keyedstate as ks
from keyedstate import row_path
from keyedstate.local import keyed

assert (row_path.compiled is None) is (sys.argv[1] == "plain")


class Steps(ks.KeyedProcessFunction):
    pair = ks.ValueState("pair", ks.types.tuple_of(ks.types.INT64, ks.types.nullable(ks.types.STRING)))
    last = ks.ValueState("last", ks.types.STRING, default="none")
    # Not cached, since their values are mutable.
    seen = ks.ValueState("seen", ks.types.list_of(ks.types.INT64))
    few = ks.ValueState("few", ks.types.list_of(ks.types.INT64), default=[7])

    def process(self, row, ctx):
        n, _ = self.pair.value() or (0, None)
        for wrong in (n, (n, 1), (n, "text", n), (2**63, None), [n, None]):
            try:
                self.pair.update(wrong)
                raise AssertionError(wrong)
            except ks.errors.StateValueError as error:
                said = str(error)
        if n == 3:
            self.pair.update(None)
            self.last.clear()
        else:
            self.pair.update((n + 1, row.text))
        last = self.last.value()
        self.last.update(f"{last[-1]}{n}")
        try:
            self.seen.update([n, "text"])
            raise AssertionError("a text is no number")
        except ks.errors.StateValueError as error:
            said += str(error)
        self.seen.update([*(self.seen.value() or []), n][-3:])
        self.few.update(None if n % 3 == 0 else [*self.few.value(), n][-3:])
        lists = f"{self.seen.value()} {self.few.value()}"
        yield row.text, n, last, self.pair.value() == (n + 1, row.text), lists, said


rows = [{"user": f"u{i * i % 7}", "text": None if i % 5 == 0 else f"t\\u00e9{i}"} for i in range(3000)]
output = "text string, n long, last string, kept boolean, lists string, said string"
result = keyed(rows, "user").process(Steps(), output)
print(sorted(map(repr, result.to_table().to_pylist())))


class Wrong(ks.KeyedProcessFunction):
    def process(self, row, ctx):
        yield {"u0": 1, "u1": "\\ud800", "u2": None}.get(ctx.key, "x"), 2**63 if ctx.key == "u4" else 1


for user in ("u0", "u1", "u2", "u4"):
    try:
        keyed([{"user": user}], "user").process(Wrong(), "a string not null, b long").to_table()
    except ks.errors.KeyedStateError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_run_gives_the_same_rows_and_errors_in_both_forms(compiled):
    printed = [
        subprocess.run(
            [sys.executable, "-c", _PROGRAM, form], check=True, capture_output=True, text=True
        ).stdout
        for form in ("compiled", "plain")
    ]
    assert printed[0] == printed[1]
    assert printed[0].count("\n") == 5


def test_an_extension_of_another_version_than_the_source_is_an_error(tmp_path):
    script = (
        "import sys, types\n"
        "stale = types.ModuleType('keyedstate.row_path.compiled')\n"
        "stale.REVISION, stale.__file__ = 0, 'stale.so'\n"
        "sys.modules[stale.__name__] = stale\n"
        "import keyedstate.row_path\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode != 0
    assert "stale.so was compiled from another version than the source next to it" in ran.stderr
