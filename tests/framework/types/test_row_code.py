"""Compiled code, and the functions that are generated for rows of scalars, do what the loop over fields does.

Generated functions leave a view of another class to the loop.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keyedstate import row_path, types
from keyedstate.errors import CorruptDataError, ValueTypeError
from keyedstate.memory import DataInputView, DataOutputView

UTC = dt.timezone.utc
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    types.INT8: st.integers(-(2**7), 2**7 - 1),
    types.INT16: st.integers(-(2**15), 2**15 - 1),
    types.INT32: st.integers(-(2**31), 2**31 - 1),
    types.INT64: st.integers(-(2**63), 2**63 - 1),
    types.FLOAT64: st.floats(),
    types.BOOLEAN: st.booleans(),
    types.STRING: st.text(max_size=5) | st.text("ab", min_size=125, max_size=130) | st.just("c" * 20_000),
    types.DATE: st.dates(),
    types.TIMESTAMP: st.datetimes(timezones=st.just(UTC)).map(lambda value: value.replace(fold=0)),
    types.TIMESTAMP_NTZ: st.datetimes().map(lambda value: value.replace(fold=0)),
}
INNER = types.row_of({"a": types.nullable(types.INT16), "b": types.STRING})
VALUES[types.tuple_of(types.INT32, types.STRING)] = st.tuples(VALUES[types.INT32], VALUES[types.STRING])
VALUES[INNER] = st.builds(INNER.python_type, st.none() | VALUES[types.INT16], VALUES[types.STRING])
for element in (types.INT64, types.STRING, types.TIMESTAMP, INNER):
    VALUES[types.list_of(element)] = st.lists(VALUES[element], max_size=3)
VALUES[types.list_of(types.list_of(INNER))] = st.lists(VALUES[types.list_of(INNER)], max_size=2)
#: Of other types than those that a field may have.
WRONG = st.sampled_from(
    [
        None,
        2**70,
        1.5,
        b"x",
        "\ud800",
        True,
        dt.datetime(2026, 1, 1),
        dt.date(2026, 1, 1),
        [None],
        [[2**70]],
        (),
    ]
)


class LoopOutput(DataOutputView):
    """Leaves rows to the loop."""


class LoopInput(DataInputView):
    """Leaves rows to the loop."""


def plain(serializer: Any) -> Any:
    """Return the same type, of which no part uses compiled code."""
    made = serializer.duplicate()
    parts = [made]
    while parts:
        part = parts.pop()
        part.__dict__["_coder"] = None
        parts += [inner for inner in getattr(part, "inners", ()) if hasattr(inner, "inners")]
    return made


def written(write: Any, value: Any, out: DataOutputView) -> Any:
    out.write_byte(7)
    try:
        write(value, out)
    except (ValueTypeError, UnicodeEncodeError) as error:
        return type(error), str(error)
    return out.to_bytes()


def read(of: Any, source: DataInputView) -> Any:
    try:
        return repr(of(source)), source.position
    except CorruptDataError as error:
        return str(error)


ROWS = st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=5).flatmap(
    lambda fields: st.tuples(
        st.just(types.row_of({f"c{n}": types.nullable(field) for n, field in enumerate(fields)})),
        st.tuples(*(VALUES[field] | st.none() for field in fields)),
    )
)


@given(row=ROWS, wrong=WRONG, place=st.integers(0, 4), damage=st.integers(0, 255), at=st.integers(0, 200))
@example(
    row=(types.row_of({"at": types.TIMESTAMP}), (dt.datetime.max.replace(tzinfo=UTC),)),
    wrong=None,
    place=0,
    damage=255,
    at=1,
)
def test_rows_are_written_and_read_as_by_the_loop_over_their_fields(row, wrong, place, damage, at):
    """Also a row with a value of another type, and bytes that are damaged or end too early."""
    serializer, values = row
    value = serializer.python_type(*values)
    other = value._replace(**{f"c{place % len(values)}": wrong}) if hasattr(value, "c0") else value
    loop = plain(serializer)
    by_loop = written(loop.serialize, value, LoopOutput())
    data = by_loop[1:]
    assert read(loop.deserialize, LoopInput(data)) == (repr(value), len(data))
    damaged = bytearray(data)
    damaged[at % len(damaged)] = damage
    for write, of in ((serializer.serialize, serializer.deserialize), (loop.serialize, loop.deserialize)):
        assert written(write, value, DataOutputView()) == by_loop
        assert written(write, other, DataOutputView()) == written(loop.serialize, other, LoopOutput())
        assert (
            read(of, DataInputView(data))
            == read(of, DataInputView(bytearray(data)))
            == (repr(value), len(data))
        )
        for spoiled in (bytes(damaged), data[: at % len(damaged)]):
            assert read(of, DataInputView(spoiled)) == read(loop.deserialize, LoopInput(spoiled))


def outcome(of: Any, given: Any) -> Any:
    try:
        return repr(of(given))
    except (CorruptDataError, ValueTypeError, UnicodeEncodeError) as error:
        return type(error), str(error)


@given(
    row=ROWS,
    count=st.integers(0, 4),
    wrong=WRONG,
    place=st.integers(0, 4),
    damage=st.integers(0, 255),
    at=st.integers(0, 200),
)
def test_lists_of_rows_are_written_and_read_as_by_the_loop_over_their_fields(
    row, count, wrong, place, damage, at
):
    """Also a list with a row or a value of another type, and bytes that are damaged or end too early."""
    element, values = row
    serializer = types.list_of(element)
    loop = plain(serializer)
    rows = [element.python_type(*values)] * count
    data = serializer.to_bytes(rows)
    assert data == loop.to_bytes(rows)
    assert serializer.to_bytes_many([rows, []]) == [data, bytes(4)]
    others = [*rows, element.python_type(*values)._replace(**{f"c{place % len(values)}": wrong})]
    for other in (others, [*rows, wrong], tuple(rows), wrong):
        assert outcome(serializer.to_bytes, other) == outcome(loop.to_bytes, other)
    damaged = bytearray(data)
    damaged[at % len(damaged)] = damage
    for spoiled in (data, bytes(damaged), data[: at % len(data)], data + b"x", bytearray(data)):
        assert outcome(serializer.from_bytes, spoiled) == outcome(loop.from_bytes, spoiled)


@pytest.mark.skipif(row_path.compiled is None, reason="the per-record path is not compiled")
def test_lists_of_what_has_compiled_code_have_it():
    element = types.row_of({"a": types.INT64, "at": types.TIMESTAMP})
    rows = [element.python_type(n, dt.datetime(2026, 1, 1, tzinfo=UTC)) for n in range(3)]
    for known, values in {
        types.list_of(element): rows,
        types.list_of(types.tuple_of(types.INT64, types.TIMESTAMP)): list(map(tuple, rows)),
        types.list_of(types.list_of(element)): [rows, [], rows],
        types.list_of(types.STRING): ["a", "", "ä"],
    }.items():
        assert known._coder.from_bytes(known._coder.to_bytes(values)) == values
    for unknown in (types.FLOAT32, types.nullable(element), types.map_of(types.STRING, types.INT64)):
        assert types.list_of(unknown)._coder is None


def test_a_number_of_elements_that_the_bytes_cannot_hold_is_refused():
    serializer = types.list_of(types.row_of({"a": types.INT64}))
    for count in (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"):
        with pytest.raises(CorruptDataError):
            serializer.from_bytes(count + b"x" * 100)


@pytest.mark.skipif(row_path.compiled is None, reason="the per-record path is not compiled")
def test_compiled_code_writes_and_reads_rows_tuples_and_accumulators_of_its_types():
    fields = {f"c{n}": field for n, field in enumerate(VALUES)}
    nullable = {name: types.nullable(field) for name, field in fields.items()}
    known = [types.row_of(fields), types.row_of(nullable), types.tuple_of(*fields.values())]
    known += [types.tuple_of(*[types.INT8] * 100), types.accumulators_of({"n": types.nullable(types.INT64)})]
    known += [types.accumulators_of({"top": types.nullable(types.list_of(types.row_of(fields)))})]
    unknown = [types.row_of({"a": types.FLOAT32}), types.tuple_of(types.nullable(types.INT8))]
    unknown += [
        types.tuple_of(types.set_of(types.INT8)),
        types.row_of({f"c{n}": types.INT8 for n in range(63)}),
    ]
    assert [serializer._coder is not None for serializer in known + unknown] == [True] * 6 + [False] * 4


def test_tuples_that_are_read_have_the_hash_of_equal_ones():
    serializer = types.tuple_of(types.INT64, INNER)
    value = (1, INNER.python_type(None, "b"))
    read_again = serializer.from_bytes(serializer.to_bytes(value))
    assert hash(read_again) == hash(value)
    assert read_again in {value}


def test_bytes_after_a_row_are_refused():
    serializer = types.row_of({"a": types.INT64})
    with pytest.raises(CorruptDataError, match="1 bytes follow"):
        serializer.from_bytes(serializer.to_bytes(serializer.python_type(1)) + b"x")


def test_a_row_of_more_fields_than_a_mask_of_one_word_has_is_written_and_read():
    for count in (61, 62, 63, 64, 130):
        serializer = types.row_of({f"c{n}": types.nullable(types.INT8) for n in range(count)})
        value = serializer.python_type(*(None if n % 3 else n % 100 for n in range(count)))
        assert serializer.from_bytes(serializer.to_bytes(value)) == value
        assert written(serializer.serialize, value, DataOutputView()) == written(
            plain(serializer).serialize, value, LoopOutput()
        )


def test_texts_of_a_mebibyte_are_written_and_read():
    serializer = types.tuple_of(types.STRING, types.INT64)
    for text in ("a" * (1 << 21), "\u00e9" * (1 << 20), "\U0001f600" * 70_000):
        assert serializer.from_bytes(serializer.to_bytes((text, 1))) == (text, 1)
        assert (
            serializer.to_bytes((text, 1))
            == written(plain(serializer).serialize, (text, 1), DataOutputView())[1:]
        )


@pytest.mark.parametrize("none", [0, 1, 2])
def test_a_none_in_a_row_is_written_and_read(none):
    serializer = types.row_of({"a": types.nullable(types.INT64), "b": types.nullable(types.STRING)})
    value = serializer.python_type(None if none != 1 else 5, None if none != 0 else "b")
    assert serializer.from_bytes(serializer.to_bytes(value)) == value
