"""Vectorised functions: the same as row by row, bulk states, output batches, errors, the harness."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.backends import backend_of
from support.inside import accessor_of

from keyedstate import types
from keyedstate.aggregates import Aggregation, collect, count, sum_
from keyedstate.errors import NoCurrentKeyError, OutputBatchError, StateValueError, UserFunctionError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.murmur3 import key_groups
from keyedstate.runtime import KeyedProcessFunction, VectorizedProcessFunction, key_runs
from keyedstate.runtime.grouping import GroupedRows, key_serializer_for
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.runners import OperatorSpec, keyed_operator
from keyedstate.runtime.runners import batches as batch_operator
from keyedstate.runtime.runners import rows as operator_module
from keyedstate.state import ListState, MapState, ReducingState, Ttl, TtlClock, ValueState
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing import Harness
from keyedstate.time import EventTime

GROUPS = 8
BACKENDS = ("heap-cow", "nested-map", "rocksdb")
#: Databases live in memory where they can: each is opened with synchronized writes.
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
INPUT = pa.schema([("key", pa.string()), ("v", pa.int64())])
OUTPUT = pa.schema([("key", pa.string()), ("n", pa.int64()), ("total", pa.int64())])


def add(one, other):
    return one + other


class Totals:
    """The states that both functions below use alike."""

    n = ValueState("n", types.INT64, default=0)
    total = ReducingState("total", add, types.INT64)
    seen = ListState("seen", types.INT64)
    by_value = MapState("by_value", types.INT64, types.INT64)


class ByRow(Totals, KeyedProcessFunction):
    def process(self, row, ctx):
        self.n.update(self.n.value() + 1)
        self.total.add(row.v)
        self.seen.add(row.v)
        self.by_value.put(row.v, self.n.value())
        yield ctx.key, self.n.value(), self.total.get()


class ByRowAndEpoch(ByRow):
    def end_epoch(self, ctx):
        self.n.update(self.n.value() + 1)
        self.total.add(1)
        return [(ctx.key, self.n.value(), self.total.get())]


class ByBatch(Totals, VectorizedProcessFunction):
    def process_batch(self, batch, ctx):
        rows = batch.groups
        counts = np.bincount(rows.codes, minlength=len(rows)).tolist()
        numbers = {}
        before = dict(zip(rows.keys, self.n.get_many(rows.keys, rows.key_groups), strict=True))
        for key in batch.keys:
            numbers.setdefault(key, []).append(before[key] + len(numbers.get(key, ())) + 1)
        self.n.transform_many(
            rows.keys,
            lambda some, old: [o + n for o, n in zip(old, counts[some], strict=True)],
            rows.key_groups,
        )
        values = batch.column("v").to_pylist()
        self.total.add_many(batch.keys, values, batch.key_groups)
        self.seen.add_many(batch.keys, values, batch.key_groups)
        following = {key: iter(some) for key, some in numbers.items()}
        self.by_value.put_many(
            batch.keys, values, [next(following[key]) for key in batch.keys], batch.key_groups
        )
        totals = self.total.get_many(rows.keys, rows.key_groups)
        n = self.n.get_many(rows.keys, rows.key_groups)
        # In another order, of another type, as a table: all of that is put right.
        yield pa.table({"total": totals, "n": pa.array(n, pa.int32()), "key": rows.key_columns[0]})


class Job:
    def __init__(self, backend="heap-cow", schema=INPUT, **settings):
        chosen = backend_of(backend)
        self.schema = schema
        self.settings = {}
        self.backend = KeyedStateBackend.open(
            chosen,
            KeySpace(key_serializer_for([pa.string()]), KeyGroupRange(0, GROUPS - 1), GROUPS),
            local_base=MEMORY,
            **settings,
        )

    def run(self, function, *batches, output=OUTPUT, time_column=None, one_by_one=False):
        operator = keyed_operator(
            function,
            self.backend,
            OperatorSpec(
                key_columns=["key"],
                key_group_column="group",
                output=OutputSchema(output),
                epoch=4,
                event_time=time_column and EventTime(time_column),
            ),
        )
        operator.open()
        made = [
            row
            for batch in self._process(operator, batches, one_by_one)
            for row in zip(*batch.to_pydict().values(), strict=True)
        ]
        assert operator.rows_in == sum(map(len, batches)) and operator.rows_out == len(made)
        return made

    def _process(self, operator, batches, one_by_one):
        batches = map(self._batch, batches)
        if not one_by_one:
            return operator.process(batches)
        by_batch = (operator.process_batch(batch) for batch in batches)
        return itertools.chain(itertools.chain.from_iterable(by_batch), operator.end_epoch())

    def _batch(self, rows):
        columns = list(zip(*rows, strict=True)) or [()] * len(self.schema)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self.schema, strict=True)]
        batch = pa.record_batch(arrays, schema=self.schema)
        return batch.append_column("group", pa.array(key_groups([batch.column("key")], GROUPS)))

    def contents(self):
        keys = sorted(self.backend.get_keys("n"), key=repr)
        found = {}
        for name in ("n", "total", "seen", "by_value") if keys else ():
            values = accessor_of(self.backend, name).get_many(keys)
            found[name] = [
                (key, dict(of) if name == "by_value" else of) for key, of in zip(keys, values, strict=True)
            ]
        return found


@pytest.fixture(params=BACKENDS)
def job(request):
    made = Job(request.param)
    yield made
    made.backend.close()


ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(-3, 3)), max_size=6)


@pytest.mark.parametrize(
    ("backend", "batch_rows"), [*itertools.product(BACKENDS[:2], [1, 5, 100]), ("rocksdb", 5)]
)
@given(epochs=st.lists(st.lists(ROWS, max_size=3), min_size=1, max_size=3))
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_a_vectorised_function_leaves_the_state_that_one_by_row_leaves(backend, batch_rows, epochs):
    function = ByBatch()
    function.batch_rows = batch_rows
    by_batch, by_row = Job(backend), Job(backend)
    try:
        for batches in epochs:
            plain = {row[0]: row for row in by_row.run(ByRow(), *batches)}
            found = {row[0]: row for row in by_batch.run(function, *batches)}
            assert found == plain
        assert by_batch.contents() == by_row.contents()
    finally:
        by_batch.backend.close()
        by_row.backend.close()


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    function=st.sampled_from([ByRow, ByRowAndEpoch]),
    epochs=st.lists(st.lists(ROWS, max_size=4), min_size=1, max_size=3),
    limit=st.sampled_from([2, 5, 1000]),
    chunk=st.sampled_from([2, 3, 1000]),
)
@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_rows_grouped_by_key_leave_the_same_state(backend, function, epochs, limit, chunk):
    grouped, in_order = Job(backend), Job(backend)
    try:
        for batches in epochs:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(operator_module, "GROUPED_ROWS", limit)
                patched.setattr(operator_module, "OUTPUT_BATCH_ROWS", 3)
                for module in (key_runs, operator_module):
                    patched.setattr(module, "ROWS_AT_ONCE", chunk)
                found = grouped.run(function(), *batches)
            plain = in_order.run(function(), *batches, one_by_one=True)
            for key in {row[0] for row in plain}:
                # Of one key in the order of its rows, of different ones in any.
                assert [row for row in found if row[0] == key] == [row for row in plain if row[0] == key]
            assert len(found) == len(plain)
        assert grouped.contents() == in_order.contents()
    finally:
        grouped.backend.close()
        in_order.backend.close()


@pytest.mark.parametrize("by_columns", [True, False])
def test_a_large_batch_is_processed_by_key_groups_while_entries_are_on_disk(monkeypatch, by_columns):
    """The state and the results are the same; an aggregate has one result per key still."""
    monkeypatch.setattr(batch_operator, "PART_ROWS", 10)
    spilling, whole = Job("spillable"), Job("heap-cow")
    parts = []

    class Counting(Aggregation):
        def process_batch(self, batch, ctx):
            parts.append(np.unique(batch.key_groups).tolist())
            return super().process_batch(batch, ctx)

    def totals(of):
        total = sum_("v") if by_columns else collect("v")
        return of(("key",), {"key": pa.string(), "v": pa.int64()}, {"n": count(), "total": total})

    rows = [(f"key {number % 40}", number) for number in range(200)]
    function = ByBatch()
    try:
        for _ in range(2):
            function_rows = spilling.run(function, rows[:100], rows[100:])
            assert sorted(function_rows) == sorted(whole.run(function, rows[:100], rows[100:]))
            schema = totals(Aggregation).output
            found = spilling.run(totals(Counting), rows[:100], rows[100:], output=schema)
            expected = whole.run(totals(Aggregation), rows[:100], rows[100:], output=schema)
            assert sorted(found) == sorted(expected)
            for table in spilling.backend._tables.values():
                table.spill_coldest(1000)
        assert spilling.contents() == whole.contents()
    finally:
        spilling.backend.close()
        whole.backend.close()
    assert len(parts[0]) == GROUPS
    assert len(parts) > 4 and sorted(itertools.chain.from_iterable(parts[1:])) == list(range(GROUPS))


def test_rows_of_a_key_are_consecutive(job):
    keys = [
        row[0] for row in job.run(ByRow(), [("a", 1), ("b", 2), ("a", 3)], [("b", 4), (None, 5), (None, 6)])
    ]
    assert keys == ["a", "a", "b", "b", None, None]
    keys = [row[0] for row in job.run(ByRow(), [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("d", 5)])]
    assert keys == ["a", "b", "a", "c", "d"], "too few rows of a key: they stay in their order"


def test_batches_are_joined_up_to_batch_rows_or_batch_bytes(job):
    sizes = []

    class Sizes(VectorizedProcessFunction):
        batch_rows = 4

        def process_batch(self, batch, ctx):
            sizes.append(len(batch))

    batches = [[("a", number)] * 3 for number in range(3)]
    job.run(Sizes(), *batches)
    function = Sizes()
    function.batch_rows, function.batch_bytes = 1000, 1
    job.run(function, *batches, [])
    assert sizes == [6, 3, 3, 3, 3]


def test_end_epoch_puts_out_rows_even_after_no_batch(job):
    class Gathering(VectorizedProcessFunction):
        def open(self, ctx):
            self.rows = 0

        def process_batch(self, batch, ctx):
            self.rows += len(batch)
            assert ctx.key is None and ctx.epoch == 4

        def end_epoch(self, ctx):
            return [pa.record_batch([["all"], [self.rows], [0]], schema=OUTPUT)]

    assert job.run(Gathering(), [("a", 1)], [("b", 2)]) == [("all", 2, 0)]
    assert job.run(Gathering()) == [("all", 0, 0)]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([[("a", 1, 2)]], OutputBatchError, "it is a list.*key, n, total"),
        ([pa.table({"key": ["a"]})], OutputBatchError, r"it has the column\(s\) key\. Declared are 3"),
        (
            [pa.table({"key": ["a"], "n": [1.5], "total": [1]})],
            OutputBatchError,
            "'n' is double, declared is int64",
        ),
        ([pa.table({"key": [None], "n": [1], "total": [1]})], OutputBatchError, "nulls in the column 'key'"),
        (
            pa.table({"key": ["a"], "n": [1], "total": [1]}),
            UserFunctionError,
            "must yield its batches or return",
        ),
        (5, UserFunctionError, "'int' object is not iterable"),
    ],
)
def test_what_is_no_batch_of_the_declared_columns_is_refused(job, given, error, message):
    class Wrong(VectorizedProcessFunction):
        def process_batch(self, batch, ctx):
            return given

    output = pa.schema([pa.field("key", pa.string(), nullable=False), *list(OUTPUT)[1:]])
    with pytest.raises(error, match=message):
        job.run(Wrong(), [("a", 1)], output=output)


@pytest.mark.parametrize("step", ["process_batch", "end_epoch"])
def test_an_error_names_function_step_and_epoch(job, step):
    class Failing(VectorizedProcessFunction):
        def process_batch(self, batch, ctx):
            self.step("process_batch")

        def end_epoch(self, ctx):
            self.step("end_epoch")
            yield from ()

        def step(self, name):
            if name == step:
                raise ZeroDivisionError("no")

    with pytest.raises(
        UserFunctionError, match=rf"ZeroDivisionError: no. Raised in Failing\.{step}\(\) in epoch 4"
    ):
        job.run(Failing(), [("a", 1)])


def test_keyed_state_is_refused_without_a_current_key(job):
    class Single(Totals, VectorizedProcessFunction):
        def process_batch(self, batch, ctx):
            self.n.update(1)

    with pytest.raises(UserFunctionError) as caught:
        job.run(Single(), [("a", 1)])
    assert isinstance(caught.value.__cause__, NoCurrentKeyError)


def test_transform_many_refuses_a_key_twice_a_wrong_value_and_too_few(job):
    n = job.backend.get_state(ValueState("n", types.INT64))
    n.update_many(["a", "b"], [1, 2])
    with pytest.raises(ValueError, match=r"the key 'b' comes twice.*'n'"):
        n.transform_many(["b", "a", "b"], lambda some, old: old)
    with pytest.raises(StateValueError, match="'n'"):
        n.transform_many(["a", "b"], lambda some, old: ["x", 3])
    with pytest.raises(ValueError, match="2 keys and 1 values"):
        n.transform_many(["a", "b"], lambda some, old: [3])
    assert n.get_many(["a", "b"]) == [1, 2]
    n.transform_many(["a", "b", "c"], lambda some, old: [None, 5, 6])
    assert n.get_many(["a", "b", "c"]) == [None, 5, 6]


def test_event_time_states_are_stamped_with_the_epochs_latest_time():
    class Seen(VectorizedProcessFunction):
        n = ValueState("n", types.INT64, ttl=Ttl(100, clock=TtlClock.EVENT_TIME))

        def process_batch(self, batch, ctx):
            assert ctx.timestamp == 5000
            self.n.update_many(batch.groups.keys, [1] * len(batch.groups))

    schema = pa.schema([("key", pa.string()), ("time", pa.timestamp("ms", "UTC"))])
    made = Job(schema=schema)
    made.run(Seen(), [("a", 5000), ("b", None)], time_column="time")
    made.backend.advance_watermark(5099)
    assert made.backend.get_state(Seen.n).get_many(["a", "b"]) == [1, 1]
    made.backend.advance_watermark(5100)
    assert made.backend.get_state(Seen.n).get_many(["a", "b"]) == [None, None]
    made.backend.close()


def test_the_harness_returns_the_output_of_end_epoch():
    class Ending(ByBatch):
        def end_epoch(self, ctx):
            yield pa.record_batch([["end"], [0], [ctx.epoch]], schema=OUTPUT)

    with Harness(Ending(), key="key", schema=INPUT, output=OUTPUT) as harness:
        assert harness.process(("a", 3)) == [("a", 1, 3)]
        assert sorted(harness.process_all([("a", 4), ("a", 5)])) == [("a", 3, 12)]
        assert set(harness.end_epoch()) == {("end", 0, 0)}
        assert harness.state("n", "a").value() == 3


def test_keys_of_many_values_in_each_column_stay_apart():
    """Before NumPy 2 the numbers of the first and the last row would be one, modulo 2**32."""
    first = np.arange((1 << 16) + 1)
    rows = GroupedRows([pa.array(first), pa.array(first % (1 << 16))], np.zeros(len(first), np.int32))
    assert len(rows) == len(first)
