"""Operator and broadcast state in process functions, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from support.backends import backend_of

from keyedstate import types
from keyedstate.errors import (
    InvalidDescriptorError,
    InvalidFunctionError,
    NoCurrentKeyError,
    OutputTypeError,
    ReadOnlyBroadcastStateError,
    UserFunctionError,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.murmur3 import key_groups
from keyedstate.runtime import (
    BroadcastContext,
    Context,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
)
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.runners import KeyedOperator, OperatorSpec, keyed_operator
from keyedstate.runtime.runners.keyed_operator import OUTPUT_BATCH_ROWS
from keyedstate.state import BroadcastState, OperatorListState, UnionListState, ValueState
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

GROUPS = 8
OUTPUT = OutputSchema(pa.schema([("key", pa.string()), ("n", pa.int64())]))


def rows(*keys: str) -> pa.RecordBatch:
    column = pa.array(keys)
    return pa.record_batch({"k": column, "group": pa.array(key_groups([column], GROUPS))})


def rules(**entries: int | None) -> pa.RecordBatch:
    return pa.record_batch({"name": list(entries), "value": pa.array(entries.values(), pa.int64())})


class Task:
    """One task whose state lasts as long as the test; each function is an epoch."""

    def __init__(self, backend_name: str) -> None:
        chosen = backend_of(backend_name)
        self.backend = KeyedStateBackend.open(
            chosen,
            KeySpace(key_serializer_for([pa.string()]), KeyGroupRange(0, GROUPS - 1), GROUPS),
        )
        self.states = OperatorStateBackend()

    def open(self, function: Any) -> KeyedOperator:
        operator = keyed_operator(
            function,
            self.backend,
            OperatorSpec(
                key_columns=["k"],
                key_group_column="group",
                output=OUTPUT,
                epoch=3,
                operator_states=self.states,
                task=1,
                parallelism=4,
            ),
        )
        operator.open()
        return operator


@pytest.fixture(params=["heap-cow", "nested-map"])
def task(request: pytest.FixtureRequest) -> Iterator[Task]:
    made = Task(request.param)
    yield made
    made.backend.close()


def read(batches: Iterator[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [row for batch in batches for row in zip(*batch.to_pydict().values(), strict=True)]


class Rules(KeyedBroadcastProcessFunction):
    """Multiplies the running count of a key by a factor that a broadcast row sets; None removes it."""

    factors = BroadcastState("factors", types.STRING, types.INT64)
    count = ValueState("count", types.INT64, default=0)

    def process_broadcast(self, row: Any, ctx: BroadcastContext) -> Any:
        if row.value is None:
            self.factors.remove(row.name)
        else:
            self.factors.put(row.name, row.value)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.count.update(self.count.value() + 1)
        yield ctx.key, self.count.value() * (self.factors.get(ctx.key) or 0)


def test_rows_of_a_key_read_what_the_broadcast_side_has_put(task):
    operator = task.open(Rules())
    assert read(operator.process_broadcast([rules(a=10), rules(b=5, c=1)])) == []
    assert read(operator.process(iter([rows("a", "b", "a")]))) == [("a", 10), ("b", 5), ("a", 20)]
    assert read(operator.process_broadcast([rules(a=None, b=7)])) == []
    assert read(operator.process(iter([rows("a", "b")]))) == [("a", 0), ("b", 14)]
    assert (operator.rows_in, operator.rows_out) == (5, 5)
    operator.close()
    # The next epoch continues with both.
    assert read(task.open(Rules()).process(iter([rows("b")]))) == [("b", 21)]


@pytest.mark.parametrize("change", ["put", "put_all", "remove", "clear"])
def test_the_keyed_side_cannot_write_broadcast_state(task, change):
    class Writes(Rules):
        def process(self, row, ctx):
            arguments = {"put": ("a", 1), "put_all": ({},), "remove": ("a",), "clear": ()}[change]
            getattr(self.factors, change)(*arguments)

    operator = task.open(Writes())
    read(operator.process_broadcast([rules(a=10)]))
    with pytest.raises(
        UserFunctionError, match=r"'factors' can only be read here.*process_broadcast"
    ) as caught:
        read(operator.process(iter([rows("a")])))
    assert isinstance(caught.value.__cause__, ReadOnlyBroadcastStateError)
    assert dict(operator._function.factors.items()) == {"a": 10}


def test_broadcast_state_cannot_be_written_in_open(task):
    class Writes(Rules):
        def open(self, ctx):
            self.factors.put("a", 1)

    with pytest.raises(UserFunctionError, match="can only be read here"):
        task.open(Writes())


def test_the_broadcast_side_has_no_current_key_also_between_rows_of_keys(task):
    class Reads(Rules):
        def process_broadcast(self, row, ctx):
            self.count.value()

    operator = task.open(Reads())
    read(operator.process(iter([rows("a")])))
    with pytest.raises(UserFunctionError, match=r"NoCurrentKey.*in Reads.process_broadcast\(\)") as caught:
        read(operator.process_broadcast([rules(a=1)]))
    assert isinstance(caught.value.__cause__, NoCurrentKeyError)
    assert (caught.value.step, caught.value.key, caught.value.epoch) == ("process_broadcast", None, 3)


def test_the_broadcast_side_changes_keyed_state_key_by_key(task):
    class Adds(Rules):
        last = ValueState("last", types.INT64)

        def process_broadcast(self, row, ctx):
            changed = []

            def add(key, count):
                count.update(count.value() + row.value)
                if key == "b":
                    self.last.update(row.value)
                changed.append((f"changed {key}", count.value()))

            ctx.apply_to_keyed_state(self.count, add)
            self.factors.put("a", 1)
            return sorted(changed)

        def process(self, row, ctx):
            yield from super().process(row, ctx)
            yield "last", self.last.value()

    operator = task.open(Adds())
    read(operator.process(iter([rows("a", "b", "a")])))
    assert read(operator.process_broadcast([rules(x=100)])) == [("changed a", 102), ("changed b", 101)]
    assert read(operator.process(iter([rows("a", "b")]))) == [
        ("a", 103), ("last", None), ("b", 0), ("last", 100),
    ]  # fmt: skip


def test_a_keyed_state_registered_in_open_can_be_applied_to(task):
    class Late(Rules):
        def open(self, ctx):
            self.late = ctx.state(ValueState("late", types.INT64, default=0))
            self.seen = ctx.state(OperatorListState("seen", types.STRING))

        def process(self, row, ctx):
            self.late.update(self.late.value() + 1)
            self.seen.add(row.k)

        def process_broadcast(self, row, ctx):
            ctx.apply_to_keyed_state(self.late, lambda key, late: late.clear())
            return [("seen", len(self.seen.get()))]

    operator = task.open(Late())
    read(operator.process(iter([rows("a", "b")])))
    assert read(operator.process_broadcast([rules(x=1)])) == [("seen", 2)]
    assert list(task.backend.get_keys("late")) == []


def test_only_keyed_state_can_be_applied_to(task):
    class Wrong(Rules):
        def process_broadcast(self, row, ctx):
            ctx.apply_to_keyed_state(self.factors, lambda key, factors: None)

    with pytest.raises(UserFunctionError, match="is no keyed state of the function; give one such as self"):
        read(task.open(Wrong()).process_broadcast([rules(a=1)]))


def test_broadcast_output_of_several_batches_keeps_its_order(task):
    class Many(Rules):
        def process_broadcast(self, row, ctx):
            for number in range(OUTPUT_BATCH_ROWS - 1):
                yield row.name, number

    out = list(task.open(Many()).process_broadcast([rules(a=1, b=2, c=3)]))
    assert len(out) == 2
    assert read(iter(out)) == [(key, number) for key in "abc" for number in range(OUTPUT_BATCH_ROWS - 1)]


@pytest.mark.parametrize(
    ("result", "error", "said"),
    [
        ([("a", "b")], OutputTypeError, "'n' is declared as int64"),
        (("a", 1), UserFunctionError, r"process_broadcast\(\) must yield its rows or return a list"),
    ],
)
def test_a_wrong_output_of_the_broadcast_side_is_refused(task, result, error, said):
    class Wrong(Rules):
        def process_broadcast(self, row, ctx):
            return result

    with pytest.raises(error, match=said):
        read(task.open(Wrong()).process_broadcast([rules(a=1)]))


def test_operator_lists_work_in_an_ordinary_function_which_knows_its_task(task):
    class Lists(KeyedProcessFunction):
        seen = OperatorListState("seen", types.STRING)
        tasks = UnionListState("tasks", types.INT64)

        def open(self, ctx):
            self.tasks.update([ctx.task, ctx.parallelism])

        def process(self, row, ctx):
            self.seen.add(ctx.key)
            yield ",".join(self.seen.get()), sum(self.tasks.get())

    assert read(task.open(Lists()).process(iter([rows("a", "b")]))) == [("a", 5), ("a,b", 5)]
    assert read(task.open(Lists()).process(iter([rows("a")]))) == [("a,b,a", 5)]
    assert task.states.entries_by_state() == {"seen": 3, "tasks": 2}


def test_broadcast_state_needs_a_function_with_a_broadcast_side(task):
    class Declared(KeyedProcessFunction):
        factors = Rules.factors

        def process(self, row, ctx):
            return None

    class Late(KeyedProcessFunction):
        def process(self, row, ctx):
            return None

        def open(self, ctx):
            ctx.state(Rules.factors)

    said = r"its broadcast state 'factors' could never be written; derive the class from KeyedBroadcast"
    with pytest.raises(InvalidFunctionError, match=said):
        task.open(Declared())
    with pytest.raises(UserFunctionError, match=said):
        task.open(Late())


def test_two_attributes_for_one_state_name_are_refused(task):
    class Twice(KeyedProcessFunction):
        one = ValueState("same", types.INT64)
        two = OperatorListState("same", types.INT64)

        def process(self, row, ctx):
            return None

    with pytest.raises(InvalidDescriptorError, match="'one' and 'two'"):
        task.open(Twice())
