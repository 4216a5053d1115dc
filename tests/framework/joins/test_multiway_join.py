"""Joins of three inputs by key: against a model, the life of rows, names of columns, refusals."""

from __future__ import annotations

import datetime as dt
import itertools
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyedstate import local
from keyedstate.errors import InvalidJoinError, UnboundedStateWarning
from keyedstate.joins.by_key.declaration import multiway_join
from keyedstate.state import Ttl, TtlClock
from keyedstate.testing import Harness, Input
from keyedstate.time import EventTime

UTC = dt.timezone.utc
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])


def rows_of(rows):
    """Return (key, number, milliseconds) as a table."""
    table = [
        {"k": k, "n": n, "at": None if ms is None else dt.datetime.fromtimestamp(ms / 1000, UTC)}
        for k, n, ms in rows
    ]
    return pa.Table.from_pylist(table, schema=SCHEMA)


def connected(*inputs, timed=True, **options):
    event_time = EventTime("at", delay=0) if timed else None
    return local.connect(
        *(local.keyed(rows_of(rows), "k", event_time=event_time) for rows in inputs), **options
    )


def numbers(stream):
    columns = stream.to_table().select(["k", "first_n", "second_n", "third_n"]).to_pydict()
    return Counter(zip(*columns.values(), strict=True))


_ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 5), st.integers(0, 9)), max_size=6
)


@settings(max_examples=25, deadline=None)
@given(_ROWS, _ROWS, _ROWS)
def test_a_batch_has_all_combinations_of_each_key(first, second, third):
    expected = Counter(
        (k, *(n for _, n, _ in each))
        for k in ("a", "b")
        for each in itertools.product(
            *([row for row in rows if row[0] == k] for rows in (first, second, third))
        )
    )
    assert numbers(connected(first, second, third, timed=False).join()) == expected


def test_a_row_meets_what_lives_when_it_comes(one_backend):
    lives = Ttl.of("10 s", clock=TtlClock.EVENT_TIME)
    old, new = ("a", 1, 0), ("a", 2, 30_000)
    stream = connected([old, new], [("a", 3, 31_000)], [("a", 4, 32_000)], config={"backend": one_backend})
    met = numbers(stream.join(ttl=lives))
    assert met[("a", 2, 3, 4)] == 1 and set(met) <= {("a", 1, 3, 4), ("a", 2, 3, 4)}


@pytest.mark.parametrize(("before", "after"), [(3, 4), (4, 3)])
def test_a_join_with_another_number_of_inputs_keeps_the_rows_that_live(before, after, one_backend):
    def join(inputs, restore=None):
        names = ["first", "second", "third", "fourth"][:inputs]
        columns = ", ".join(f"{name}_n long, {name}_at timestamp" for name in names)
        time = EventTime("at")
        schema = "k string, n long, at timestamp"
        return Harness(
            multiway_join(inputs, "inner", Ttl.of(100, clock=TtlClock.EVENT_TIME), "drop", "fail", None),
            key="k",
            schema=schema,
            event_time=time,
            second=Input(schema, "k", time),
            further=[Input(schema, "k", time)] * (inputs - 2),
            output=f"k string, {columns}",
            backend=one_backend,
            restore=restore,
        )

    def row(n, ms):
        return "a", n, dt.datetime.fromtimestamp(ms / 1000, UTC)

    with join(before) as harness:
        for number, (n, ms) in [(1, (0, 1000)), (3, (1, 1000)), (1, (2, 20)), (1, (3, 1000))]:
            harness.process_input(number, [row(n, ms)])
        snapshot = harness.snapshot()
    with join(after, snapshot) as harness:
        # The end of row 2 removes nothing else.
        harness.advance_watermark(130)
        met = [
            each for number in (2, 4)[: after - 2] for each in harness.process_input(number, [row(9, 1000)])
        ]
        assert sorted((each.first_n, each.second_n, each.third_n) for each in met) == [(0, 9, 1), (3, 9, 1)]
        harness.advance_watermark(1200)
        assert harness.process_input(2, [row(9, 1300)]) == []
        assert harness.process_input(3, [row(9, 1300)]) == []


def test_the_columns_are_the_keys_and_the_others_with_prefixes_where_names_meet():
    other = local.keyed(pa.table({"key": ["a"], "price": [2.5], "k": [7]}), "key")
    first, second = (local.keyed(rows_of([("a", n, 0)]), "k") for n in (1, 2))
    table = local.connect(first, second, other).join().to_table()
    assert table.column_names == ["k", "first_n", "first_at", "second_n", "second_at", "price", "third_k"]
    assert table.select(["first_n", "second_n", "price", "third_k"]).to_pylist() == [
        {"first_n": 1, "second_n": 2, "price": 2.5, "third_k": 7}
    ]


def test_a_prefixed_name_that_another_column_has_is_refused_by_name():
    def keyed(*names):
        return local.keyed(pa.table({name: [1] for name in ("k", *names)}), "k")

    with pytest.raises(InvalidJoinError, match="'first_x' cannot be used: two columns"):
        local.connect(keyed("x"), keyed("x"), keyed("first_x")).join()
    with pytest.raises(InvalidJoinError, match="'left_x' cannot be used: two columns"):
        local.connect(keyed("x"), keyed("x", "left_x")).join()


def test_what_has_a_left_and_a_right_side_is_refused(tmp_path):
    three = connected([], [], [])
    with pytest.raises(InvalidJoinError, match=r"the left join of 3 inputs.*Join two inputs"):
        three.join("left")
    with pytest.raises(InvalidJoinError, match="a left and a right input, and 3 are connected"):
        three.interval_join(0, 1).join()
    with pytest.raises(InvalidJoinError, match="a left and a right input, and 3 are connected"):
        three.versioned_join()
    with pytest.raises(InvalidJoinError, match="has no side outputs"):
        three.join(ttl=Ttl.of(1, clock=TtlClock.EVENT_TIME), late="side output")
    with pytest.raises(InvalidJoinError, match="it is in event time, and no columns"):
        connected([], [], [], timed=False).join(ttl=Ttl.of(1, clock=TtlClock.EVENT_TIME))
    kept = connected([], [], [], uid="kept", config={"checkpoint.dir": str(tmp_path)})
    with pytest.warns(UnboundedStateWarning):
        kept.join()
