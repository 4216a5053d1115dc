"""Rows that a function is given in runs of one key are those that it would be given one after the other."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.backends import backend_of

from keyedstate.errors import OutputTypeError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.murmur3 import key_groups
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.runtime.key_runs import ROWS_AT_ONCE
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.runners import KeyedOperator, OperatorSpec, keyed_operator
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.time import EventTime

GROUPS = 8
GROUP_COLUMN = "__group"
OUTPUT = OutputSchema(pa.schema([("key", pa.string()), ("number", pa.int64())]))
_DAY = dt.date(2026, 1, 1)
_NOON = dt.datetime(2026, 1, 1, 12)
_UTC = dt.timezone.utc

#: Key columns with a few distinct values each, nulls among them.
KEYS = {
    "strings": [pa.array(["a", None, "\u00e4", ""])],
    "integers": [pa.array([1, -1, None, 2**40])],
    "dates": [pa.array([_DAY, None, dt.date(1969, 12, 31)])],
    "times with a zone": [pa.array([_NOON.replace(tzinfo=_UTC), None], pa.timestamp("us", "UTC"))],
    "decimals": [pa.array([Decimal("1.00"), None, Decimal("-2.50")], pa.decimal128(10, 2))],
    "floats": [pa.array([0.0, -0.0, float("nan"), None, 1.5])],
    "structs": [pa.array([{"x": 1, "y": "one"}, None, {"x": None, "y": "one"}])],
    "dictionaries": [pa.array(["a", "b", None]).dictionary_encode()],
    "two columns": [pa.array(["a", "a", "b", None]), pa.array([1, 2, 1, None])],
}


class Sees(KeyedProcessFunction):
    """Notes what it is given, by key."""

    def __init__(self) -> None:
        self.seen: dict[str, list[str]] = {}
        self.rows = 0

    def process(self, row: Any, ctx: Any) -> Any:
        recorded = repr((ctx.key, row, row.as_dict(), [type(value) for value in row], ctx.timestamp))
        self.seen.setdefault(repr(ctx.key), []).append(recorded)
        self.rows += 1
        return [(repr(ctx.key), row.number)] * (row.number % 3)


def batch(columns: list[pa.Array], rows: np.ndarray) -> pa.RecordBatch:
    taken = {f"k{place}": column.take(pa.array(rows % len(column))) for place, column in enumerate(columns)}
    numbers = np.arange(len(rows))
    others = {
        "number": pa.array(numbers),
        "when": pa.array(numbers * 1000, pa.timestamp("us"), mask=numbers % 7 == 0),
        "text": pa.array([f"row {number}" for number in numbers]),
    }
    groups = pa.array(key_groups(list(taken.values()), GROUPS))
    return pa.record_batch({**others, **taken, GROUP_COLUMN: groups})


@pytest.fixture
def operator(request):
    """Make an operator for a function over rows with these key columns."""
    chosen = backend_of("heap-cow")
    opened = []

    def operator(function: Any, columns: list[pa.Array], time_column: str | None = "when") -> KeyedOperator:
        backend = KeyedStateBackend.open(
            chosen,
            KeySpace(
                key_serializer_for([column.type for column in columns]), KeyGroupRange(0, GROUPS - 1), GROUPS
            ),
        )
        opened.append(backend)
        made = keyed_operator(
            function,
            backend,
            OperatorSpec(
                key_columns=[f"k{place}" for place in range(len(columns))],
                key_group_column=GROUP_COLUMN,
                output=OUTPUT,
                epoch=1,
                event_time=time_column and EventTime(time_column),
            ),
        )
        made.open()
        return made

    yield operator
    for backend in opened:
        backend.close()


def _rows(batches: Any) -> list[str]:
    return [repr(row) for made in batches for row in zip(*made.to_pydict().values(), strict=True)]


@pytest.mark.parametrize(
    ("kind", "time_column"),
    [*((kind, "when") for kind in KEYS), ("strings", None), ("dates", "k0"), ("times with a zone", "k0")],
)
def test_grouping_by_key_keeps_the_rows_and_output_of_a_key(operator, kind, time_column):
    columns = KEYS[kind]
    rows = np.random.default_rng(11).integers(0, 60, 5 * ROWS_AT_ONCE // 2)
    given = batch(columns, rows)
    runs, ordered = Sees(), Sees()
    by_key = operator(runs, columns, time_column)
    one_by_one = operator(ordered, columns, time_column)

    first = _rows(by_key.process(iter([given])))
    second = _rows(one_by_one.process_batch(given))

    assert runs.seen == ordered.seen and runs.rows == ordered.rows == given.num_rows
    assert list(runs.seen) == list(ordered.seen)  # keys in the order of their first rows
    assert sorted(first) == sorted(second) and len(first) == by_key.rows_out == one_by_one.rows_out
    assert by_key.rows_in == one_by_one.rows_in == given.num_rows
    assert by_key.largest_event_time == one_by_one.largest_event_time


@pytest.mark.parametrize("rows", [ROWS_AT_ONCE - 1, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 3 * ROWS_AT_ONCE])
def test_one_key_with_more_rows_than_are_handled_together_keeps_their_order(operator, rows):
    function = Sees()
    by_key = operator(function, KEYS["strings"])
    given = _rows(by_key.process(iter([batch([pa.array(["hot"])], np.zeros(rows, np.int64))])))
    assert given == [repr(("'hot'", number)) for number in range(rows) for _ in range(number % 3)]


def test_few_rows_of_many_keys_stay_in_their_order(operator):
    keys = [pa.array([f"key-{number}" for number in range(600)])]
    given = batch(keys, np.arange(ROWS_AT_ONCE - 1))
    by_key, one_by_one = operator(Sees(), keys), operator(Sees(), keys)
    assert _rows(by_key.process(iter([given]))) == _rows(one_by_one.process_batch(given))


def test_keys_with_one_row_each_keep_their_order(operator):
    keys = [pa.array([f"key-{number}" for number in range(2 * ROWS_AT_ONCE)])]
    function = Sees()
    list(operator(function, keys).process(iter([batch(keys, np.arange(2 * ROWS_AT_ONCE))])))
    assert list(function.seen) == [repr(key) for key in keys[0].to_pylist()]


class WrongAt(KeyedProcessFunction):
    """Gives a value of a wrong type at one row, after rows that give none, one or two."""

    def __init__(self, number: int) -> None:
        self.number = number

    def process(self, row: Any, ctx: Any) -> Any:
        value = "no number" if row.number == self.number else row.number
        return [(ctx.key, value)] * (1 + row.number % 2) if row.number % 5 or value != row.number else None


@pytest.mark.parametrize("number", [0, 1, 4, 2 * ROWS_AT_ONCE - 1, 2 * ROWS_AT_ONCE])
def test_a_wrong_output_value_names_the_key_whose_row_gave_it(operator, number):
    keys = [pa.array([f"key-{key}" for key in range(100)])]
    rows = np.random.default_rng(5).integers(0, 100, 3 * ROWS_AT_ONCE)
    with pytest.raises(OutputTypeError) as raised:
        list(operator(WrongAt(number), keys).process(iter([batch(keys, rows)])))
    assert raised.value.key == f"key-{rows[number]}"
