"""A join handles the rows of a key together: its output and state are those of one row at a time."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.backends import backend_of

from keyedstate import types
from keyedstate.errors import UserFunctionError
from keyedstate.joins import IntervalJoinFunction, LeftColumn, ProcessJoinFunction, interval_join, join
from keyedstate.joins.by_key.declaration import multiway_join
from keyedstate.joins.join_function import NULL_KEY
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered import WriteBuffer
from keyedstate.runtime.functions.connected_inputs import ConnectedInput, ConnectedInputs, struct_column
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.runners import OperatorSpec, keyed_operator
from keyedstate.runtime.timers import AtEnd
from keyedstate.state import Ttl, TtlClock, ValueState
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

TIME = pa.timestamp("ms", "UTC")


def inputs_of(**types_by_name):
    """Return inputs, each with a column of its own."""
    schemas = [pa.schema([("k", pa.string()), each, ("at", TIME)]) for each in types_by_name.items()]
    return ConnectedInputs(tuple(ConnectedInput(schema, ("k",), "at") for schema in schemas))


INPUTS = inputs_of(l=pa.int64(), r=pa.int64())
THREE_INPUTS = inputs_of(l=pa.int64(), m=pa.int64(), r=pa.int64())
#: Each left row says how long its interval is.
INPUTS_WITH_ENDS = inputs_of(lasts=pa.duration("us"), r=pa.int64())
#: What `Counted` yields.
COUNTED = pa.schema([("k", pa.string()), ("l", pa.int64()), ("r", pa.int64()), ("pairs", pa.int64())])
BY_WATERMARK = Ttl.of(50, clock=TtlClock.EVENT_TIME)


def batch_of(rows, inputs=INPUTS):
    """Return rows of the inputs, (number of the input, key, number, time), in their order."""
    columns = {"k": pa.array([key for _, key, _, _ in rows], pa.string())}
    for number, each in enumerate(inputs.inputs):
        own_fields = list(each.schema)[1:]
        name = own_fields[0].name
        lasts = name == "lasts"
        own = [
            {name: dt.timedelta(milliseconds=n) if lasts else n, "at": time} if of == number else None
            for of, _, n, time in rows
        ]
        columns[struct_column(number)] = pa.array(own, pa.struct(own_fields))
    return pa.record_batch({**columns, "group": pa.array([0] * len(rows), pa.int32())})


class Job:
    """A join that runs as in a task, in its first epoch."""

    def __init__(self, backend_name, function, *, inputs=INPUTS, options=None, **settings):
        self.inputs = inputs
        self.backend = KeyedStateBackend.open(
            backend_of(backend_name, options),
            KeySpace(key_serializer_for([pa.string()]), KeyGroupRange(0, 0), 1),
            event_time=True,
            **settings,
        )
        self.function = function.for_inputs(inputs)
        columns = self.function.output_columns(inputs, lambda name: name)
        output = COUNTED
        if columns is not None:
            output = pa.schema(
                [(each.name, inputs.inputs[each.side].schema.types[each.place]) for each in columns]
            )
        self.operator = keyed_operator(
            self.function,
            self.backend,
            OperatorSpec(
                key_columns=["k"],
                key_group_column="group",
                output=OutputSchema(output),
                epoch=0,
                connected=inputs,
            ),
        )
        self.backend.advance_watermark(100)
        self.operator.set_processing_time(1_000)
        self.operator.open()

    def advance_watermark(self, watermark):
        self.backend.advance_watermark(watermark)
        self._rows(self.operator.fire_timers())

    def run(self, rows):
        """Return the output rows of rows that come in one batch."""
        return self._rows(self.operator.process_rows([batch_of(rows, self.inputs)]))

    def at_the_end(self):
        """Return what timers put out at the end of the input."""
        return self._rows(self.operator.end_epoch(AtEnd.INPUT))

    def _rows(self, found):
        return [row for out in found for row in zip(*out.to_pydict().values(), strict=True)]

    def close(self):
        self.operator.close()
        self.backend.close()

    def stored(self):
        """Return the rows of both sides and the next number by key."""
        found = {}
        for descriptor in self.function.states():
            keys = list(self.backend.get_keys(descriptor.name))
            values = self.backend.get_state(descriptor).get_many(keys, [0] * len(keys))
            found[descriptor.name] = dict(zip(keys, values, strict=True))
        return found


def at(ms):
    return (
        None
        if ms is None
        else dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(milliseconds=ms)
    )


def rows_for(inputs, times):
    """Rows in any order; some are late, because the watermark is 100 and a row lives for 50 ms."""
    numbers = st.integers(0, len(inputs.inputs) - 1)
    keys = st.sampled_from(["a", "b", None])
    return st.lists(st.tuples(numbers, keys, st.integers(0, 9), times.map(at)), max_size=25)


TIMES = st.integers(30, 130)
#: So few that several rows have the same one.
FEW_TIMES = st.integers(97, 112)
ROWS = rows_for(INPUTS, TIMES)


@pytest.mark.parametrize("backend", ["heap-cow", "rocksdb"])
@settings(max_examples=40)
@given(
    epochs=st.lists(ROWS, min_size=1, max_size=3),
    how=st.sampled_from(["inner", "left", "right", "full", "semi", "anti"]),
    ttl=st.sampled_from([None, Ttl.of("1 day"), BY_WATERMARK]),
)
def test_rows_of_a_key_are_joined_together_as_one_at_a_time(backend, epochs, how, ttl):
    compare(*(Job(backend, join(how, ttl=ttl)) for _ in range(2)), epochs)


@pytest.mark.parametrize("backend", ["heap-cow", "rocksdb"])
@settings(max_examples=40)
@given(
    epochs=st.lists(rows_for(THREE_INPUTS, TIMES), min_size=1, max_size=3),
    ttl=st.sampled_from([None, Ttl.of("1 day"), BY_WATERMARK]),
)
def test_rows_of_three_inputs_are_joined_together_as_one_at_a_time(backend, epochs, ttl):
    function = multiway_join(3, "inner", ttl, "drop", "fail", None)
    compare(*(Job(backend, function, inputs=THREE_INPUTS) for _ in range(2)), epochs)


class Counted(ProcessJoinFunction):
    """Counts the pairs of a key, as long as a next one comes within 10 ms of event time."""

    pairs = ValueState("pairs", types.INT64, default=0, ttl=Ttl.of(10, clock=TtlClock.EVENT_TIME))

    def process(self, left, right, ctx):
        self.pairs.update(self.pairs.value() + 1)
        yield ctx.key, left.l, right.r, self.pairs.value()


@pytest.mark.parametrize("backend", ["heap-cow", "rocksdb"])
@settings(max_examples=40)
@given(
    epochs=st.lists(rows_for(INPUTS, st.none() | FEW_TIMES) | ROWS, min_size=1, max_size=3),
    bounds=st.sampled_from([(-20, 20), (0, 0), (-3, 2), (-100, -5)]),
    function=st.sampled_from([None, Counted]),
)
def test_rows_of_a_key_are_joined_by_time_together_as_one_at_a_time(backend, epochs, bounds, function):
    """The event time of each row decides what has expired, also where rows are handled together."""
    joins = [interval_join(*bounds, missing="drop") for _ in range(2)]
    made = [each.join() if function is None else each.process(function(), COUNTED) for each in joins]
    compare(*(Job(backend, each) for each in made), epochs)


@pytest.mark.parametrize("backend", ["heap-cow", "rocksdb"])
@settings(max_examples=40)
@given(epochs=st.lists(rows_for(INPUTS_WITH_ENDS, FEW_TIMES), min_size=1, max_size=3))
def test_rows_with_an_interval_each_are_joined_together_as_one_at_a_time(backend, epochs):
    joins = [interval_join(-3, LeftColumn("lasts")).join() for _ in range(2)]
    compare(*(Job(backend, each, inputs=INPUTS_WITH_ENDS) for each in joins), epochs)


def test_a_row_joins_those_of_its_time_that_came_before_in_the_run_and_in_earlier_ones(backend_name):
    job = Job(backend_name, interval_join(-5, 5).join())
    assert job.run([(0, "a", 1, at(110))]) == []
    # The right rows read the left buffer before and after it changes.
    pairs = job.run([(1, "a", 5, at(110)), (1, "a", 6, at(110)), (0, "a", 2, at(110)), (1, "a", 7, at(112))])
    # The columns: the key, the left row's and its time, the right row's and its time.
    assert [(left, right) for _, left, _, right, _ in pairs] == [
        (1, 5),
        (1, 6),
        (2, 5),
        (2, 6),
        (1, 7),
        (2, 7),
    ]
    assert [row[1] for row in job.stored()["left-buffer"]["a"][110]] == [1, 2]
    job.close()


def test_rows_of_three_inputs_are_joined_in_the_order_in_which_they_came(backend_name):
    job = Job(backend_name, multiway_join(3, "inner", None, "drop", "fail", None), inputs=THREE_INPUTS)
    assert job.run([(0, "a", 1, at(200)), (0, "a", 2, at(200)), (2, "a", 8, at(200))]) == []
    joined = job.run([(0, "a", 3, at(200)), (2, "a", 9, at(200)), (1, "a", 5, at(200))])
    # The key, and of each input its column and the time.
    assert [(row[1], row[3], row[5]) for row in joined] == [
        (n, 5, last) for n in (1, 2, 3) for last in (8, 9)
    ]
    job.close()


def test_late_rows_and_those_with_a_null_key_or_no_time_are_dropped_once():
    function = multiway_join(3, "inner", BY_WATERMARK, "drop", "drop", None)
    job = Job("heap-cow", function, inputs=THREE_INPUTS)
    job.run([(0, None, 1, at(200)), (1, "a", 2, at(30)), (2, "a", 3, None), (2, None, 4, at(30))])
    assert sum(job.operator.rows_dropped.values()) == 4
    assert job.operator.rows_dropped[NULL_KEY] == 1
    assert not any(job.stored().values())
    job.close()


def compare(together, alone, epochs):
    """Run both jobs, one of them row by row, and compare output and state."""
    for number, rows in enumerate(epochs):
        together.advance_watermark(100 + 10 * number)
        alone.advance_watermark(100 + 10 * number)
        # The rows of a key are neighbours, so that both jobs put them out in the same order.
        rows = sorted(rows, key=lambda row: str(row[1]))
        made = together.run(rows)
        assert made == [row for one in rows for row in alone.run([one])]
        assert together.stored() == alone.stored()
        assert together.operator.rows_dropped == alone.operator.rows_dropped
    assert Counter(together.at_the_end()) == Counter(alone.at_the_end())
    together.close()
    alone.close()


def test_a_timer_of_an_interval_join_scans_its_key_once(monkeypatch):
    uncached = {"rocksdb.memory-object-ratio": 0}
    job = Job("rocksdb", interval_join(-20, 20).join(), options=uncached, track_changes=True)
    job.backend.begin_epoch(1)
    job.run([(side, "a", number, at(200 + number)) for number in range(50) for side in (0, 1)])
    job.backend.begin_epoch(2)
    job.backend.begin_epoch(3)
    job.backend.forget_changes(2)
    calls = Counter()
    for owner, name in ((WriteBuffer, "scan"), (IntervalJoinFunction, "on_event_time")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name), calls))
    job.advance_watermark(250)
    assert 0 < calls["on_event_time"] == calls["scan"]
    job.advance_watermark(1_000)
    assert calls["on_event_time"] == calls["scan"]
    monkeypatch.undo()
    assert not any(job.stored().values())
    job.close()


def counted(method, calls):
    def called(*arguments):
        calls[method.__name__] += 1
        return method(*arguments)

    return called


def test_a_run_with_many_matches_comes_out_in_several_batches(backend_name):
    job = Job(backend_name, join())
    rows = [(number % 2, "a", number, at(200)) for number in range(400)]
    batches = list(job.operator.process_rows([batch_of(rows)]))
    assert sum(batch.num_rows for batch in batches) == 200 * 200
    assert max(batch.num_rows for batch in batches) < 20_000
    job.close()


def test_a_run_of_three_inputs_with_many_matches_comes_out_in_several_batches(backend_name):
    job = Job(backend_name, multiway_join(3, "inner", None, "drop", "fail", None), inputs=THREE_INPUTS)
    rows = [(number % 3, "a", number, at(200)) for number in range(120)]
    batches = list(job.operator.process_rows([batch_of(rows, THREE_INPUTS)]))
    assert sum(batch.num_rows for batch in batches) == 40**3
    assert max(batch.num_rows for batch in batches) < 20_000
    job.close()


def test_an_error_names_the_input_of_the_row_in_the_middle_of_a_run(one_backend):
    job = Job(one_backend, join(ttl=BY_WATERMARK))
    rows = [(0, "a", 1, at(200)), (1, "a", 2, None), (0, "a", 3, at(200))]
    with pytest.raises(UserFunctionError, match="right input of the join") as raised:
        job.run(rows)
    assert "process2" in str(raised.value)
    job.close()


def test_an_error_names_the_third_input_in_the_middle_of_a_run(one_backend):
    function = multiway_join(3, "inner", BY_WATERMARK, "drop", "fail", None)
    job = Job(one_backend, function, inputs=THREE_INPUTS)
    with pytest.raises(UserFunctionError, match="third input of the join") as raised:
        job.run([(0, "a", 1, at(200)), (2, "a", 2, None), (1, "a", 3, at(200))])
    assert "process3" in str(raised.value)
    job.close()
