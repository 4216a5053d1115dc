"""The rows that a process function is given."""

from __future__ import annotations

import pickle

import pyarrow as pa

from keyedstate import types
from keyedstate.runtime.rows import iterate_rows


def rows_of(table: pa.Table) -> list[tuple]:
    [batch] = table.to_batches()
    return list(iterate_rows(batch.schema.names, batch.columns))


def test_a_row_is_a_value_of_the_type_that_its_schema_has() -> None:
    table = pa.table({"name": ["a", None], "two words": [1, 2]})
    serializer = types.infer(table.schema)
    rows = rows_of(table)
    for row in rows:
        serializer.check(row)
        assert serializer.from_bytes(serializer.to_bytes(row)) == row
    assert serializer.from_arrow(serializer.to_arrow(rows)) == rows
    assert rows[1].as_dict() == {"name": None, "two words": 2}


def test_nested_columns_are_rows_lists_and_dicts_whatever_they_contain() -> None:
    inner = pa.struct([("n", pa.int64()), ("names", pa.list_(pa.string()))])
    columns = {
        "place": pa.array([{"n": 1, "names": ["a"]}, None], inner),
        "places": pa.array([[{"n": 1, "names": None}], []], pa.list_(inner)),
        "counts": pa.array([[("a", 1), ("b", None)], []], pa.map_(pa.string(), pa.int64())),
    }
    table = pa.table(columns)
    first, second = rows_of(table)
    for row in (first, second):
        types.infer(table.schema).check(row)
    assert (first.place.names, first.places[0].n, first.counts) == (["a"], 1, {"a": 1, "b": None})
    assert tuple(second) == (None, [], {})


def test_a_row_has_columns_of_types_that_state_lacks() -> None:
    table = pa.table({"months": pa.array([pa.MonthDayNano([1, 2, 3]), None])})
    assert [row.months for row in rows_of(table)] == [pa.MonthDayNano([1, 2, 3]), None]


def test_a_row_survives_pickling_as_a_row() -> None:
    [row] = rows_of(pa.table({"name": ["a"], "count": [1]}))
    again = pickle.loads(pickle.dumps(row))
    assert type(again) is type(row)
    assert (again.name, again.count) == ("a", 1)
