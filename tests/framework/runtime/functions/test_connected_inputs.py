"""Functions of two inputs: one state of a key, the order of its rows, times of both, timers, errors."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from support.backends import backend_of

from keyedstate import types
from keyedstate.errors import (
    EventTimeError,
    HarnessSchemaError,
    HarnessSettingError,
    InvalidFunctionError,
    UserFunctionError,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.runtime import KeyedCoProcessFunction, KeyedProcessFunction
from keyedstate.runtime.functions.connected_inputs import ConnectedInput, ConnectedInputs, struct_column
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.runners import OperatorSpec, keyed_operator
from keyedstate.state import ListState, ValueState
from keyedstate.state.clock import BEFORE_TIME
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing import Harness, Input
from keyedstate.time import EventTime

ORDERS = "order string, customer string, at timestamp"
PAYMENTS = "amount double, paid_at timestamp, order_id string"
OUTPUT = "order string, what string, amount double"


def at(ms):
    return dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(milliseconds=ms)


class Settled(KeyedCoProcessFunction):
    """Says which orders were paid, and which were not within 100 ms."""

    customer = ValueState("customer", types.STRING)
    paid = ValueState("paid", types.FLOAT64)

    def process1(self, row, ctx):
        assert row._fields == ("order", "customer", "at") and row.order == ctx.key
        if self.paid.value() is not None:
            yield ctx.key, f"paid before by {row.customer}", self.paid.value()
            self.paid.clear()
        else:
            self.customer.update(row.customer)
            ctx.timer_service.register_event_time_timer(ctx.timestamp + 100)

    def process2(self, row, ctx):
        assert row._fields == ("amount", "paid_at", "order_id") and row.order_id == ctx.key
        if self.customer.value() is not None:
            yield ctx.key, f"paid by {self.customer.value()}", row.amount
            self.customer.clear()
        else:
            self.paid.update(row.amount)

    def on_timer(self, time, ctx):
        if self.customer.value() is not None:
            yield ctx.key, f"unpaid at {time}", None
            self.customer.clear()


def settled(backend_name, function=None, **settings):
    delay, delay2, idle = (settings.pop(name, None) for name in ("delay", "delay2", "idle"))
    arguments = {
        "key": "order",
        "schema": ORDERS,
        "output": OUTPUT,
        "backend": backend_name,
        "event_time": EventTime("at", delay, idle=idle),
        "second": Input(PAYMENTS, "order_id", EventTime("paid_at", delay2, idle=idle)),
    }
    return Harness(function or Settled(), **{**arguments, **settings})


def test_rows_of_two_inputs_share_the_state_of_their_key(backend_name):
    with settled(backend_name, parallelism=3) as harness:
        assert harness.process1_all([("o-1", "ann", at(0)), ("o-2", "bob", at(5))]) == []
        assert harness.process2_all([(9.5, at(7), "o-1"), (3.0, at(8), "o-3")]) == [
            ("o-1", "paid by ann", 9.5)
        ]
        harness.rescale(2)
        assert harness.process1(("o-3", "cyd", at(9))) == [("o-3", "paid before by cyd", 3.0)]
        assert harness.advance_watermark(104) == []
        snapshot = harness.snapshot()
        assert harness.advance_watermark(105) == [("o-2", "unpaid at 105", None)]
        with settled("nested-map", restore=snapshot) as other:
            assert other.process2({"amount": 1.0, "paid_at": at(0), "order_id": "o-2"}) == [
                ("o-2", "paid by bob", 1.0)
            ]


def test_the_watermark_is_the_smallest_of_the_inputs(backend_name):
    """WM-01, WM-03."""
    with settled(backend_name, delay=0, delay2=10) as harness:
        harness.process1(("o-1", "ann", at(1000)))
        harness.end_epoch()
        assert harness.watermark == BEFORE_TIME, "nothing is known of the other one"
        harness.process2((1.0, at(500), "x"))
        harness.end_epoch()
        assert harness.watermark == 489
        harness.process2_all([(1.0, at(2000), "x"), (1.0, at(1500), "x")])
        assert harness.end_epoch() == []
        assert harness.watermark == 999
        harness.process1(("o-2", "bob", at(3000)))
        harness.end_epoch()
        assert harness.watermark == 1989
        assert harness.end_epoch() == [("o-1", "unpaid at 1100", None)]
        harness.restore(harness.snapshot())
        harness.process2((1.0, at(5000), "x"))
        harness.end_epoch()
        assert harness.watermark == 2999


def test_an_idle_input_does_not_hold_the_timers_back(backend_name):
    """WM-02, WM-03."""
    with settled(backend_name, delay=0, delay2=0, idle=60_000) as harness:
        harness.process1(("o-1", "ann", at(1000)))
        harness.end_epoch()
        harness.advance_processing_time(60_000)
        harness.process1(("o-2", "bob", at(2000)))
        harness.end_epoch()
        assert harness.watermark == BEFORE_TIME, "an input is not idle before the time is over"
        harness.advance_processing_time(1)
        harness.process1(("o-2", "bob", at(3000)))
        harness.end_epoch()
        assert harness.watermark == 2999
        # It has rows again, and lags behind: it counts when it has caught up.
        harness.process2((1.0, at(700), "x"))
        harness.process1(("o-3", "cyd", at(4000)))
        harness.end_epoch()
        assert harness.watermark == 3999
        harness.process2((1.0, at(4500), "x"))
        harness.process1(("o-3", "cyd", at(6000)))
        harness.end_epoch()
        assert harness.watermark == 4499


class Order(KeyedCoProcessFunction):
    """Keeps and tells in which order the rows of a key came."""

    seen = ListState("seen", types.STRING)

    def process1(self, row, ctx):
        return self._seen(f"1:{row.n}@{ctx.timestamp}", ctx)

    def process2(self, row, ctx):
        return self._seen(f"2:{row.n}@{ctx.timestamp}", ctx)

    def _seen(self, text, ctx):
        self.seen.add(text)
        yield ctx.key, ",".join(self.seen.get())


def operator(function, backend_name, time=None, keys=("k", "j")):
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("ms"))])
    other = pa.schema([("at", pa.date32()), ("n", pa.int32()), ("j", pa.string())])
    inputs = ConnectedInputs(
        (ConnectedInput(schema, keys[:1], time and "at"), ConnectedInput(other, keys[1:], time and "at"))
    )
    chosen = backend_of(backend_name)
    backend = KeyedStateBackend.open(
        chosen,
        KeySpace(key_serializer_for([pa.string()]), KeyGroupRange(0, 0), 1),
        event_time=time is not None,
    )
    return keyed_operator(
        function,
        backend,
        OperatorSpec(
            key_columns=["k"],
            key_group_column="group",
            output=OutputSchema(pa.schema([("k", pa.string()), ("seen", pa.string())])),
            epoch=0,
            connected=inputs,
        ),
    )


def both(rows):
    """A batch of rows (input, key, number, time)."""
    first = pa.struct([("c1", pa.int64()), ("c2", pa.timestamp("ms"))])
    second = pa.struct([("c0", pa.date32()), ("c1", pa.int32())])
    ones = [{"c1": n, "c2": time} if number == 1 else None for number, _, n, time in rows]
    twos = [{"c0": time, "c1": n} if number == 2 else None for number, _, n, time in rows]
    columns = {
        "k": pa.array([key for _, key, _, _ in rows], pa.string()),
        struct_column(0): pa.array(ones, first),
        struct_column(1): pa.array(twos, second),
        "group": pa.array([0] * len(rows), pa.int32()),
    }
    return pa.record_batch(columns)


def test_rows_of_a_key_keep_their_order_over_both_inputs(backend_name):
    day = 86_400_000
    rows = [
        (1 + (number % 3 == 0), f"k-{number % 4}" if number % 7 else None, number, at(day * number))
        for number in range(200)
    ]
    running = operator(Order(), backend_name, time="at")
    running.open()
    batches = [both(rows[:150]), both(rows[:0]), both(rows[150:]).slice(3), both(rows[150:153])]
    out = [row for batch in running.process(iter(batches)) for row in batch.to_pylist()]
    running.close()
    came = rows[:150] + rows[153:] + rows[150:153]
    expected = {}
    for number, key, n, _ in came:
        expected.setdefault(key, []).append(f"{number}:{n}@{day * n}")
    recorded = {key: [row["seen"] for row in out if row["k"] == key] for key in expected}
    assert recorded == {
        key: [",".join(texts[: count + 1]) for count in range(len(texts))] for key, texts in expected.items()
    }
    assert running.rows_by_input == {"1": 133, "2": 67} and running.rows_in == 200
    assert running.largest_event_times == {"1": 199 * day, "2": 198 * day}


def test_keys_of_inputs_with_event_times_end_with_the_largest_time_and_the_watermark_after_all(backend_name):
    class Ending(Order):
        def _seen(self, text, ctx):
            return []

        def end_epoch(self, ctx):
            return [(ctx.key, f"{ctx.timestamp} {ctx.watermark}")]

    running = operator(Ending(), backend_name, time="at")
    running.open()

    def advance():
        running._backend.advance_watermark(7)
        yield from ()

    rows = [(1, "a", 1, at(5)), (2, "b", 1, at(0)), (1, "b", 2, at(9))] * 400
    out = running.process(iter([both(rows)]), after_rows=advance())
    assert [tuple(row.values()) for batch in out for row in batch.to_pylist()] == [("a", "9 7"), ("b", "9 7")]
    running.close()


@pytest.mark.parametrize("number", [1, 2])
def test_an_input_may_have_no_rows_and_a_batch_none_of_one(backend_name, number):
    running = operator(Order(), backend_name)
    running.open()
    out = list(running.process(iter([both([(number, "a", 5, None), (number, "a", 6, None)])])))
    assert [row["seen"] for batch in out for row in batch.to_pylist()][-1] == (
        f"{number}:5@None,{number}:6@None"
    )
    assert running.rows_by_input == {"1": 2 * (number == 1), "2": 2 * (number == 2)}
    assert running.largest_event_times == {}
    running.begin_epoch(1)
    assert running.rows_by_input == {} and list(running.process(iter(()))) == []


def test_a_key_of_columns_alone_is_put_back_in_their_order(backend_name):
    class Keys(KeyedCoProcessFunction):
        def process1(self, row, ctx):
            yield "1", *row, *ctx.key

        def process2(self, row, ctx):
            yield "2", *row, *ctx.key

    with Harness(
        Keys(),
        key=["x", "y"],
        schema="y string, x string",
        second=Input("a string, b string", key=["a", "b"]),
        output="n string, one string, two string, three string, four string",
        backend=backend_name,
    ) as harness:
        assert harness.process1(("Y", "X")) == [("1", "Y", "X", "X", "Y")]
        assert harness.process2((None, "B")) == [("2", None, "B", None, "B")]


class Failing(Settled):
    def process1(self, row, ctx):
        raise ValueError("no such order")

    def process2(self, row, ctx):
        return ("o-1", "paid", 1.0)


def test_an_error_names_the_method_and_the_key(backend_name):
    with settled(backend_name, Failing()) as harness:
        with pytest.raises(UserFunctionError, match=r"ValueError.*Raised in Failing.process1\(\)") as caught:
            harness.process1(("o-1", "ann", at(0)))
        assert (caught.value.step, caught.value.key) == ("process1", "o-1")
        with pytest.raises(UserFunctionError, match=r"process2\(\) must yield its rows"):
            harness.process2((1.0, at(0), "o-2"))


def test_a_row_without_event_time_has_no_timestamp_and_moves_no_watermark(backend_name):
    with settled(backend_name, delay=0, delay2=0) as harness:
        harness.process2((1.0, None, "o-1"))
        harness.process1(("o-9", "ann", at(9)))
        harness.end_epoch()
        assert harness.watermark == BEFORE_TIME


class OneInput(KeyedProcessFunction):
    def process(self, row, ctx):
        yield from ()


def test_inputs_that_cannot_be_are_refused(one_backend):
    with pytest.raises(InvalidFunctionError, match="OneInput cannot be run: it has one input and there are"):
        settled(one_backend, OneInput())
    with pytest.raises(InvalidFunctionError, match="Settled cannot be run: it has 2 inputs and there is"):
        settled(one_backend, second=None)
    with pytest.raises(HarnessSchemaError, match="is int64, and that of the first one string"):
        settled(one_backend, second=Input("n long", key="n"))
    with pytest.raises(HarnessSettingError, match="known of one input and not of another"):
        settled(one_backend, second=Input(PAYMENTS, key="order_id"))
    with pytest.raises(HarnessSettingError, match="not given for each input"):
        settled(one_backend, delay=0)
    with pytest.raises(EventTimeError, match="'paid_at': the delay -1 is negative"):
        settled(one_backend, delay=0, delay2=-1)
    for delays in ({}, {"delay": 0, "delay2": 0}):
        with pytest.raises(EventTimeError, match="idle time"):
            settled(one_backend, idle=0, **delays)
    with pytest.raises(HarnessSettingError, match="idle time"):
        settled(one_backend, idle=5)
    with settled(one_backend) as harness, pytest.raises(HarnessSettingError, match="Use process1"):
        harness.process(("o-1", "ann", at(0)))
    with (
        Harness(OneInput(), key="k", schema="k string", output="k string") as harness,
        pytest.raises(HarnessSettingError, match=r"process2\(\) is for several inputs"),
    ):
        harness.process2(("a",))


class Delivered(KeyedCoProcessFunction):
    """Says when the parts of an order are complete; the third input has deliveries."""

    parts = ListState("parts", types.STRING)
    side_outputs = {"broken": None}  # noqa: RUF012
    side_inputs = {"broken": 2}  # noqa: RUF012

    def process1(self, row, ctx):
        return self._add(f"order of {row.customer}", ctx)

    def process2(self, row, ctx):
        return self._add(f"paid {row.amount}", ctx)

    def process3(self, row, ctx):
        if row.broken:
            ctx.output("broken", row)
            return []
        return self._add(f"delivered @{ctx.timestamp}", ctx)

    def on_timer(self, time, ctx):
        yield ctx.key, ", ".join(self.parts.get()), None
        self.parts.clear()

    def _add(self, part, ctx):
        self.parts.add(part)
        ctx.timer_service.register_event_time_timer(20)
        return []


DELIVERIES = Input("order_number string, broken boolean, day timestamp", "order_number", EventTime("day", 5))


def delivered(backend_name, function=None, **arguments):
    return settled(
        backend_name,
        function or Delivered(),
        **{"further": [DELIVERIES], "delay": 0, "delay2": 0, **arguments},
    )


def test_a_third_input_has_a_method_a_side_output_and_a_watermark_of_its_own(backend_name):
    with delivered(backend_name) as harness:
        harness.process_input(3, [("o-1", False, at(12)), ("o-2", True, at(13))])
        harness.process1(("o-1", "ann", at(100)))
        harness.process_input(2, [(1.0, at(100), "o-1")])
        assert harness.side_output("broken") == [("o-2", True, at(13))]
        assert harness.end_epoch() == []
        assert harness.watermark == 13 - 5 - 1, "the third input is behind"
        harness.process_input(3, [("o-9", True, at(26))])
        assert harness.end_epoch() == []
        assert harness.end_epoch() == [("o-1", "delivered @12, order of ann, paid 1.0", None)]


def test_as_many_inputs_are_needed_as_there_are_methods(one_backend):
    class Other(Delivered):
        def process3(self, row):
            return []

    with pytest.raises(
        InvalidFunctionError, match=r"it has 3 inputs and there are 2; connect a keyed.*process3"
    ):
        settled(one_backend, Delivered())
    with pytest.raises(
        InvalidFunctionError, match=r"it has 2 inputs and there are 3; define process3\(self, row"
    ):
        delivered(one_backend, Settled())
    with pytest.raises(InvalidFunctionError, match=r"its process3\(row\) cannot be called"):
        delivered(one_backend, Other())
    with pytest.raises(HarnessSettingError, match="further was given without a second input"):
        settled(one_backend, second=None, further=[DELIVERIES])
    with pytest.raises(
        HarnessSchemaError, match=r"further\[0\].*third one is int64, and that of the first one string"
    ):
        delivered(one_backend, further=[Input("n long", key="n")])
    with (
        delivered(one_backend) as harness,
        pytest.raises(HarnessSettingError, match=r"input 4 is none of the 3 .*from 1 to 3"),
    ):
        harness.process_input(4, [])
