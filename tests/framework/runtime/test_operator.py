"""The keyed operator without Spark: rows in, rows out, state in between."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from support.backends import backend_of

from keyedstate import types
from keyedstate.errors import (
    InvalidDescriptorError,
    InvalidFunctionError,
    OutputTypeError,
    StateNotBoundError,
    StateValueError,
    UserFunctionError,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.murmur3 import key_groups
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.runners import OperatorSpec, keyed_operator
from keyedstate.runtime.runners.keyed_operator import OUTPUT_BATCH_ROWS
from keyedstate.state import ValueState
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

GROUPS = 8
GROUP_COLUMN = "__group"


class Counts(KeyedProcessFunction):
    count = ValueState("count", types.INT64, default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.count.update(self.count.value() + 1)
        yield str(ctx.key), self.count.value()


OUTPUT = OutputSchema(pa.schema([("key", pa.string()), ("count", pa.int64())]))


def batch(keys: list[str], **columns: list[Any] | pa.Array) -> pa.RecordBatch:
    table = pa.table(columns)
    groups = key_groups([table.column(name).combine_chunks() for name in keys], GROUPS)
    return table.append_column(GROUP_COLUMN, pa.array(groups)).combine_chunks().to_batches()[0]


@pytest.fixture(params=["heap-cow", "nested-map"])
def run(request):
    """Run a function over batches; the state lasts as long as the test."""
    chosen = backend_of(request.param)
    opened: dict[tuple[pa.DataType, ...], KeyedStateBackend] = {}

    def run(
        function: Any, batches: list[pa.RecordBatch], keys: list[str], output: OutputSchema = OUTPUT
    ) -> list[Any]:
        key_types = tuple(batches[0].schema.field(name).type for name in keys)
        if key_types not in opened:
            opened[key_types] = KeyedStateBackend.open(
                chosen,
                KeySpace(key_serializer_for(key_types), KeyGroupRange(0, GROUPS - 1), GROUPS),
            )
        operator = keyed_operator(
            function,
            opened[key_types],
            OperatorSpec(
                key_columns=keys,
                key_group_column=GROUP_COLUMN,
                output=output,
                epoch=3,
            ),
        )
        operator.open()
        try:
            rows = [
                row
                for out in operator.process(iter(batches))
                for row in zip(*out.to_pydict().values(), strict=True)
            ]
        finally:
            operator.close()
        assert operator.rows_out == len(rows)
        return rows

    yield run
    for backend in opened.values():
        backend.close()


def test_state_continues_from_batch_to_batch_and_run_to_run(run):
    first = batch(["k"], k=["a", "b", "a"])
    assert run(Counts(), [first, first], ["k"]) == [
        ("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1), ("b", 2),
    ]  # fmt: skip
    assert run(Counts(), [batch(["k"], k=["b"])], ["k"]) == [("b", 3)]


def test_a_null_key_is_a_key_of_its_own(run):
    assert run(Counts(), [batch(["k"], k=["a", None, None, "a"])], ["k"]) == [
        ("a", 1), ("a", 2), ("None", 1), ("None", 2),
    ]  # fmt: skip


def test_several_key_columns_make_a_tuple(run):
    rows = run(Counts(), [batch(["a", "b"], a=["x", "x", None], b=[1, 1, 2])], ["a", "b"])
    assert rows == [("('x', 1)", 1), ("('x', 1)", 2), ("(None, 2)", 1)]


def test_nans_are_one_key_and_negative_zero_is_zero(run):
    nans = pa.array([math.nan, -math.nan, 0.0, -0.0], pa.float64())
    assert [count for _, count in run(Counts(), [batch(["k"], k=nans)], ["k"])] == [1, 2, 1, 2]


def test_rows_are_read_by_name_by_position_and_as_a_dict(run):
    seen = []

    class Look(KeyedProcessFunction):
        def process(self, row, ctx):
            seen.append((row.k, row.count, row[2], row.as_dict()))

    run(Look(), [batch(["k"], **{"k": ["a"], "count": [7], "not an identifier": [True]})], ["k"])
    assert seen == [("a", 7, True, {"k": "a", "count": 7, "not an identifier": True})]


def test_no_row_and_an_empty_batch_give_no_output(run):
    assert run(Counts(), [batch(["k"], k=["a"]).slice(0, 0)], ["k"]) == []


def test_a_function_may_return_a_list_or_nothing(run):
    class Lists(KeyedProcessFunction):
        def process(self, row, ctx):
            return [("x", 1), {"key": "y", "count": 2}] if row.n else None

    assert run(Lists(), [batch(["k"], k=["a", "a"], n=[0, 1])], ["k"]) == [("x", 1), ("y", 2)]


def test_a_single_row_returned_instead_of_a_list_is_explained(run):
    class One(KeyedProcessFunction):
        def process(self, row, ctx):
            return ("x", 1)

    with pytest.raises(UserFunctionError, match="yield its rows or return a list"):
        run(One(), [batch(["k"], k=["a"])], ["k"])


def test_more_output_than_one_batch_holds_keeps_its_order(run):
    class Many(KeyedProcessFunction):
        def process(self, row, ctx):
            for number in range(OUTPUT_BATCH_ROWS - 1):
                yield ctx.key, number

    rows = run(Many(), [batch(["k"], k=["a", "b", "c"])], ["k"])
    assert rows == [(key, number) for key in "abc" for number in range(OUTPUT_BATCH_ROWS - 1)]


def test_an_exception_of_a_function_has_key_epoch_and_cause(run):
    class Fails(KeyedProcessFunction):
        def process(self, row, ctx):
            if row.n == 2:
                raise KeyError("missing")
            yield ctx.key, row.n

    with pytest.raises(
        UserFunctionError, match=r"KeyError.*Raised in Fails.process\(\) .*'b' in epoch 3"
    ) as caught:
        run(Fails(), [batch(["k"], k=["a", "b"], n=[1, 2])], ["k"])
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.key == "b"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.key, again.epoch) == (str(caught.value), "b", 3)


@pytest.mark.parametrize("step", ["open", "close"])
def test_an_exception_in_open_or_close_names_the_step(run, step):
    def fail(self, *args):
        raise OSError("no such database")

    function = type("Fails", (Counts,), {step: fail})()
    with pytest.raises(UserFunctionError, match=rf"OSError: no such database. Raised in Fails.{step}\(\)"):
        run(function, [batch(["k"], k=["a"])], ["k"])


def test_a_wrong_output_value_names_column_type_and_key(run):
    class Wrong(KeyedProcessFunction):
        def process(self, row, ctx):
            yield "x", 1
            if row.k == "b":
                yield "y", "two"

    with pytest.raises(OutputTypeError, match=r"'count'.*int64.*'b'.*str"):
        run(Wrong(), [batch(["k"], k=["a", "b", "c"])], ["k"])


def test_a_wrong_state_value_is_refused_at_the_line_that_writes_it(run):
    class Wrong(Counts):
        def process(self, row, ctx):
            self.count.update("one")

    with pytest.raises(UserFunctionError, match="the state 'count' refuses the value") as caught:
        run(Wrong(), [batch(["k"], k=["a"])], ["k"])
    assert isinstance(caught.value.__cause__, StateValueError)


def test_a_state_registered_in_open_works_like_a_declared_one(run):
    class Late(KeyedProcessFunction):
        def open(self, ctx):
            self.count = ctx.state(ValueState("late", types.INT64, default=10))

        def process(self, row, ctx):
            self.count.update(self.count.value() + 1)
            yield ctx.key, self.count.value()

    assert run(Late(), [batch(["k"], k=["a", "a"])], ["k"]) == [("a", 11), ("a", 12)]


def test_states_of_a_base_class_are_bound_too(run):
    class Derived(Counts):
        total = ValueState("total", types.INT64, default=0)

        def process(self, row, ctx):
            self.total.update(self.total.value() + row.n)
            for key, count in super().process(row, ctx):
                yield key, count * 100 + self.total.value()

    assert run(Derived(), [batch(["k"], k=["a", "a"], n=[5, 6])], ["k"]) == [("a", 105), ("a", 211)]


def test_two_attributes_for_one_state_name_are_refused(run):
    class Twice(Counts):
        one = ValueState("same", types.INT64)
        two = ValueState("same", types.INT64)

    with pytest.raises(InvalidDescriptorError, match="'one' and 'two'"):
        run(Twice(), [batch(["k"], k=["a"])], ["k"])


def test_a_declared_state_says_that_it_is_not_bound():
    with pytest.raises(StateNotBoundError, match="'count'"):
        Counts().count.value()
    assert isinstance(Counts.count, ValueState)


def test_something_else_than_a_function_is_refused(run):
    with pytest.raises(InvalidFunctionError, match=r"did you forget \(\)"):
        run(Counts, [batch(["k"], k=["a"])], ["k"])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: ValueState("", types.INT64), "non-empty"),
        (lambda: ValueState("s", int), "keyedstate.types"),
        (lambda: ValueState("s", types.INT64, default="0"), "default"),
    ],
)
def test_an_impossible_declaration_is_refused_at_once(make, reason):
    with pytest.raises(InvalidDescriptorError, match=reason):
        make()
