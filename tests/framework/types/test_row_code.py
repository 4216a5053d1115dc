"""The functions that are generated for rows of scalars do what the loop over the fields does.

A view of another class is left to the loop.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keyedstate import types
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
#: Of other types than those that a field may have.
WRONG = st.sampled_from(
    [None, 2**70, 1.5, b"x", "\ud800", True, dt.datetime(2026, 1, 1), dt.date(2026, 1, 1)]
)


class LoopOutput(DataOutputView):
    """Leaves rows to the loop."""


class LoopInput(DataInputView):
    """Leaves rows to the loop."""


def written(serializer: Any, value: Any, out: DataOutputView) -> Any:
    out.write_byte(7)
    try:
        serializer.serialize(value, out)
    except (ValueTypeError, UnicodeEncodeError) as error:
        return type(error), str(error)
    return out.to_bytes()


def read(serializer: Any, source: DataInputView) -> Any:
    try:
        return repr(serializer.deserialize(source)), source.position
    except CorruptDataError as error:
        return str(error)


ROWS = st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=5).flatmap(
    lambda fields: st.tuples(
        st.just(types.row_of({f"c{n}": types.nullable(field) for n, field in enumerate(fields)})),
        st.tuples(*(VALUES[field] for field in fields)),
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
def test_rows_of_scalars_are_written_and_read_as_by_the_loop_over_their_fields(row, wrong, place, damage, at):
    """Also a row with a value of another type, and bytes that are damaged or end too early."""
    serializer, values = row
    value = serializer.python_type(*values)
    data = written(serializer, value, DataOutputView())
    assert data == written(serializer, value, LoopOutput())
    found = read(serializer, DataInputView(data[1:]))
    assert found == read(serializer, LoopInput(data[1:]))
    assert found == read(serializer, DataInputView(bytearray(data[1:])))
    assert found == (repr(value), len(data) - 1)

    other = value._replace(**{f"c{place % len(values)}": wrong}) if hasattr(value, "c0") else value
    assert written(serializer, other, DataOutputView()) == written(serializer, other, LoopOutput())

    damaged = bytearray(data[1:])
    damaged[at % len(damaged)] = damage
    for spoiled in (bytes(damaged), data[1 : 1 + at % len(damaged)]):
        assert read(serializer, DataInputView(spoiled)) == read(serializer, LoopInput(spoiled))


@pytest.mark.parametrize("none", [0, 1, 2])
def test_a_none_in_a_row_is_written_and_read(none):
    serializer = types.row_of({"a": types.nullable(types.INT64), "b": types.nullable(types.STRING)})
    value = serializer.python_type(None if none != 1 else 5, None if none != 0 else "b")
    assert serializer.from_bytes(serializer.to_bytes(value)) == value
