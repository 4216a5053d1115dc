"""Joins with a table that every task has: against a plain dict, over restarts, and what is refused."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyedstate import local
from keyedstate.errors import BroadcastFrameError, InvalidJoinError, OutputSchemaError, RowKindError
from keyedstate.joins import broadcast_join
from keyedstate.testing import Harness

LEFT = "k string, item string, size long, n long"
RIGHT = "id string, size long, price double, gone boolean"
PAIRS = "k string, item string, left_size long, n long, right_size long, price double, gone boolean"
TWO_COLUMNS = "k string, item string, size long, n long, price double, gone boolean"


def joining(backend, how="left", on=None, output=PAIRS, **arguments):
    function = broadcast_join(on or {"item": "id"}, how, deleted=arguments.pop("deleted", None))
    return Harness(
        function, key="k", schema=LEFT, broadcast=RIGHT, output=output, backend=backend, **arguments
    )


def prices(rows):
    return [(row.n, row.price) for row in rows]


def bids(harness, *items):
    return prices(harness.process_all([(f"k{n}", item, 1, n) for n, item in enumerate(items)]))


def test_a_row_meets_the_table_as_it_is_when_it_comes(backend_name):
    with joining(backend_name) as harness:
        assert bids(harness, "a") == [(0, None)]
        harness.process_broadcast_all([("a", 1, 1.5, False), ("b", 1, 2.5, None), ("a", 2, 3.5, False)])
        (one, two, three) = harness.process_all([("k", "a", 9, 7), ("k", "b", 9, 8), ("l", "c", 9, 9)])
        assert one == ("k", "a", 9, 7, 2, 3.5, False)
        assert two == ("k", "b", 9, 8, 1, 2.5, None)
        assert three == ("l", "c", 9, 9, None, None, None)
        harness.process_broadcast(("c", 0, None, True))
        assert bids(harness, "c", "a") == [(0, None), (1, 3.5)]
        assert harness.num_entries() == 0, "the table is no keyed state"


@pytest.mark.parametrize(
    ("how", "output", "numbers", "dropped"),
    [
        ("inner", PAIRS, [0, 2], {"null key": 1}),
        ("left", PAIRS, [0, 1, 2, 3], {}),
        ("semi", LEFT, [0, 2], {"null key": 1}),
        ("anti", LEFT, [1, 3], {}),
    ],
)
def test_each_type_emits_its_rows_and_a_null_equals_nothing(one_backend, how, output, numbers, dropped):
    with joining(one_backend, how, output=output) as harness:
        harness.process_broadcast_all([("a", 1, 1.5, False), (None, 1, 9.5, False)])
        rows = harness.process_all([("k", item, 1, n) for n, item in enumerate(["a", "b", "a", None])])
        assert [row.n for row in rows] == numbers
        assert dict(harness.rows_dropped) == dropped


def test_a_deletion_removes_the_row_of_its_key_and_a_later_row_brings_it_back(one_backend):
    with joining(one_backend, deleted="gone") as harness:
        harness.process_broadcast_all([("a", 1, 1.5, False), ("b", 1, 2.5, None), ("c", 1, 3.5, False)])
        harness.process_broadcast_all([("a", 1, None, True), ("x", 1, None, True), ("b", 1, None, True)])
        harness.process_broadcast_all([("b", 1, 4.5, False), ("c", 1, None, True), ("c", 1, 5.5, None)])
        assert bids(harness, "a", "b", "c", "x") == [(0, None), (1, 4.5), (2, 5.5), (3, None)]


def test_numbers_are_equal_as_keys_are(one_backend):
    function = broadcast_join("x")
    with Harness(
        function,
        key="k",
        schema="k string, x double",
        broadcast="x double, name string",
        output="k string, x double, name string",
        backend=one_backend,
    ) as harness:
        harness.process_broadcast_all([(0.0, "zero"), (math.nan, "none"), (1e300, "large")])
        rows = harness.process_all([("k", -0.0), ("k", math.nan), ("k", 1e300), ("k", 2.0)])
        assert [row.name for row in rows] == ["zero", "none", "large"]


def test_a_table_that_is_replaced_again_and_again_does_not_grow(one_backend):
    with joining(one_backend) as harness:
        for turn in range(30):
            harness.process_broadcast_all([(f"i{n}", turn, float(n), False) for n in range(500)])
        assert bids(harness, "i0", "i499") == [(0, 0.0), (1, 499.0)]
        (instance,) = harness._running.open
        assert instance._operator._function._table._rows.num_rows < 6000


RULES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", None]),
        st.sampled_from([1, 2, None]),
        st.none() | st.floats(0, 9, allow_nan=False),
        st.sampled_from([False, True, None]),
    ),
    max_size=6,
)
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["k", "l", "m", "n"]),
        st.sampled_from(["a", "b", "c", "d", None]),
        st.sampled_from([1, 2, 3, None]),
        st.integers(0, 99),
    ),
    max_size=6,
)


@settings(max_examples=25)
@given(
    st.sampled_from(["inner", "left", "semi", "anti"]),
    st.lists(st.tuples(RULES, ROWS, st.booleans()), min_size=1, max_size=6),
)
def test_a_join_equals_a_dict_over_restarts_rescaling_and_other_backends(how, steps):
    output = TWO_COLUMNS if how in ("inner", "left") else LEFT
    on = {"item": "id", "size": "size"}
    turns = [("heap-cow", 1), ("nested-map", 3), ("rocksdb", 2)]
    harness = joining("heap-cow", how, on, output, deleted="gone")
    table = {}
    try:
        for number, (rules, rows, restart) in enumerate(steps):
            harness.process_broadcast_all(rules)
            for item, size, price, gone in rules:
                if item is None or size is None:
                    continue
                table.pop((item, size), None)
                if not gone:
                    table[item, size] = (price, gone)
            expected = []
            for key, item, size, n in rows:
                found = table.get((item, size))
                if how == "left" or (found is not None) == (how in ("inner", "semi")):
                    pair = (found or (None, None)) if how in ("inner", "left") else ()
                    expected.append((key, item, size, n, *pair))
            assert sorted(harness.process_all(rows), key=repr) == sorted(expected, key=repr)
            if restart:
                snapshot = harness.snapshot()
                harness.close()
                backend, parallelism = turns[number % len(turns)]
                harness = joining(
                    backend, how, on, output, deleted="gone", restore=snapshot, parallelism=parallelism
                )
    finally:
        harness.close()


def test_a_column_may_be_added_to_the_table_and_another_join_column_begins_an_empty_one(one_backend):
    arguments = {"key": "k", "schema": LEFT, "backend": one_backend}
    narrow = {
        "broadcast": "id string, price double",
        "output": "k string, item string, size long, n long, price double",
    }
    with Harness(broadcast_join({"item": "id"}, "left"), **arguments, **narrow) as harness:
        harness.process_broadcast(("a", 1.5))
        snapshot = harness.snapshot()
    wide = {
        "broadcast": "id string, price double, note string",
        "output": "k string, item string, size long, n long, price double, note string",
        "restore": snapshot,
    }
    with Harness(broadcast_join({"item": "id"}, "left"), **arguments, **wide) as harness:
        assert harness.process(("k", "a", 1, 2)) == [("k", "a", 1, 2, 1.5, None)]
        harness.process_broadcast(("b", 2.5, "new"))
        assert harness.process(("k", "b", 1, 2)) == [("k", "b", 1, 2, 2.5, "new")]
    other = {**wide, "output": "k string, item string, size long, n long, id string, price double"}
    with Harness(broadcast_join({"item": "note"}, "left"), **arguments, **other) as harness:
        assert harness.process(("k", "a", 1, 2)) == [("k", "a", 1, 2, None, None)]


BIDS = pa.table({"auction": [1, 1, 2], "item": ["a", "b", "c"], "price": [5, 6, 7]})
ITEMS = pa.table(
    {"id": pa.array(["a", "b"], pa.large_string()), "price": pa.array([1, 2], pa.uint16())},
)


def test_a_local_run_joins_tables_whose_types_are_those_that_spark_would_read(backend_name):
    stream = local.keyed(BIDS, "auction", config={"backend": backend_name})
    rows = stream.broadcast_join(ITEMS, on={"item": "id"}).to_table().to_pylist()
    assert rows == [
        {"auction": 1, "item": "a", "left_price": 5, "right_price": 1},
        {"auction": 1, "item": "b", "left_price": 6, "right_price": 2},
    ]


def test_an_empty_table_matches_nothing(one_backend):
    stream = local.keyed(BIDS, "auction", config={"backend": one_backend})
    empty = ITEMS.slice(0, 0)
    assert stream.broadcast_join(empty, on={"item": "id"}, how="anti").to_table() == BIDS
    assert stream.broadcast_join(empty, on={"item": "id"}).to_table().num_rows == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"on": "itm"}, "Did you mean 'item'"),
        ({"on": {"item": "idd"}}, "the broadcast rows do not have it"),
        ({"on": {"item": "price"}}, "differ, so their keys are stored differently"),
        ({"on": {"auction": "price"}}, "the types int64 of the left and int32 of the broadcast rows differ"),
        ({"on": []}, "names no columns"),
        ({"on": {"item": 3}}, "names no columns"),
        ({"on": {"item": "id"}, "how": "full"}, "which rows of the table have no match"),
        ({"on": {"item": "id"}, "how": "outer"}, "there is no such join"),
        ({"on": {"item": "id"}, "deleted": "price"}, "Give a boolean column"),
        ({"on": {"item": "id"}, "deleted": "gone"}, "the broadcast rows do not have it"),
    ],
)
def test_what_cannot_be_joined_is_refused_in_a_sentence(arguments, words):
    with pytest.raises(InvalidJoinError) as caught:
        local.keyed(BIDS, "auction").broadcast_join(ITEMS, **arguments)
    assert words in str(caught.value)


def test_rows_that_may_be_taken_back_and_a_second_table_are_refused():
    changes = BIDS.append_column("kind", pa.array(["+I", "+I", "-D"]))
    with pytest.raises(RowKindError, match=r"broadcast_join\(\) takes no row back"):
        local.keyed(changes, "auction", row_kind="kind").broadcast_join(ITEMS, on={"item": "id"})
    with pytest.raises(BroadcastFrameError, match="second"):
        local.keyed(BIDS, "auction").broadcast(ITEMS).broadcast_join(ITEMS, on={"item": "id"})


def test_two_columns_of_one_name_are_refused():
    twice = BIDS.rename_columns(["auction", "left_price", "price"])
    with pytest.raises((InvalidJoinError, OutputSchemaError), match="left_price"):
        local.keyed(twice, "auction").broadcast_join(
            ITEMS.rename_columns(["left_price", "price"]), on="left_price"
        )
