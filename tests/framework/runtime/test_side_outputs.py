"""Side outputs: rows that a function puts out under a name, beside those that it yields."""

from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from keyedstate import types
from keyedstate.errors import (
    HarnessSchemaError,
    HarnessSettingError,
    InvalidFunctionError,
    OutputBatchError,
    OutputRowError,
    OutputTypeError,
    SideOutputNameError,
    UserFunctionError,
)
from keyedstate.runtime import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    VectorizedProcessFunction,
)
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.side_outputs import MAIN, OUTPUT, Outputs
from keyedstate.state import ValueState
from keyedstate.testing import Harness, Input
from keyedstate.time import EventTime

SCHEMA = "user string, n long"


class Large(KeyedProcessFunction):
    """Counts rows; puts large numbers aside, and rejected rows as they came."""

    side_outputs = {"large": "user string, n long", "rejected": None}  # noqa: RUF012
    count = ValueState("count", types.INT64, default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        if row.n is None:
            ctx.output("rejected", row)
            return
        if row.n > 10:
            ctx.output("large", {"user": ctx.key, "n": row.n})
        self.count.update(self.count.value() + 1)
        yield ctx.key, self.count.value()
        if row.n > 100:
            ctx.output("large", [ctx.key, -row.n])


def harness_of(function: Any, backend: str = "heap-cow", **settings: Any) -> Harness:
    return Harness(
        function, **{"key": "user", "schema": SCHEMA, "output": SCHEMA, "backend": backend, **settings}
    )


def test_rows_are_put_out_to_declared_side_outputs(backend_name: str) -> None:
    with harness_of(Large(), backend_name, parallelism=2) as harness:
        made = harness.process_all([("ann", 5), ("bob", 11), ("ann", None), ("ann", 101)])
        assert sorted(made) == [("ann", 1), ("ann", 2), ("bob", 1)]
        assert sorted(harness.side_output("large")) == [("ann", -101), ("ann", 101), ("bob", 11)]
        assert harness.side_output("rejected") == [("ann", None)]
        assert harness.side_output("large")[0].user in ("ann", "bob")
        assert harness.take_outputs() == made
        assert harness.side_output("large") == []


def test_many_rows_of_one_key_reach_their_side_output() -> None:
    class Each(KeyedProcessFunction):
        side_outputs = {"each": "n long"}  # noqa: RUF012

        def process(self, row: Any, ctx: Any) -> Any:
            for number in range(row.n):
                ctx.output("each", (number,))

    with harness_of(Each()) as harness:
        assert harness.process_all([("ann", 30_000), ("bob", 2)]) == []
        assert [row.n for row in harness.side_output("each")] == [*range(30_000), 0, 1]


def test_an_undeclared_side_output_is_refused_with_the_declared_ones() -> None:
    class Misspelt(Large):
        def process(self, row: Any, ctx: Any) -> Any:
            ctx.output("lrage", row)

    with (
        harness_of(Misspelt()) as harness,
        pytest.raises(UserFunctionError, match=r"'lrage' was not declared.*'large', 'rejected'.*Did you"),
    ):
        harness.process(("ann", 5))
    with pytest.raises(HarnessSettingError, match="'lrage'"), harness_of(Large()) as harness:
        harness.side_output("lrage")


@pytest.mark.parametrize(
    ("row", "error", "said"),
    [
        (("ann",), OutputRowError, "of the side output 'large' for the key 'ann' has 1 value"),
        (("ann", "x"), OutputTypeError, r"'large\.n' is declared as int64 \(int\), but for the key 'ann'"),
        (5, OutputRowError, "'large'.*no row"),
    ],
)
def test_an_undeclared_row_is_refused_with_output_and_key(
    row: Any, error: type[Exception], said: str
) -> None:
    class Wrong(Large):
        def process(self, given: Any, ctx: Any) -> Any:
            ctx.output("large", ("bob", 1) if given.user == "bob" else row)

    with harness_of(Wrong()) as harness, pytest.raises(error, match=said):
        harness.process_all([("bob", 1), ("ann", 1), ("bob", 2)])


def test_rows_of_a_step_that_failed_are_forgotten() -> None:
    class Fails(Large):
        def process(self, row: Any, ctx: Any) -> Any:
            ctx.output("rejected", row)
            if row.n is None:
                raise ValueError("no number")

    with harness_of(Fails()) as harness:
        with pytest.raises(UserFunctionError):
            harness.process(("ann", None))
        harness.process(("ann", 1))
        assert harness.side_output("rejected") == [("ann", 1)]


class Timed(KeyedProcessFunction):
    side_outputs = {"fired": "user string, time long"}  # noqa: RUF012

    def process(self, row: Any, ctx: Any) -> None:
        ctx.timer_service.register_event_time_timer(row.n)

    def on_timer(self, time: int, ctx: Any) -> None:
        ctx.output("fired", (ctx.key, time))


def test_timers_put_rows_out_to_side_outputs(backend_name: str) -> None:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    with harness_of(
        Timed(), backend_name, schema="user string, n long, ts timestamp", event_time=EventTime("ts")
    ) as harness:
        harness.process_all([("ann", 5, at), ("bob", 7, at), ("ann", 9, at)])
        assert harness.advance_watermark(8) == []
        assert harness.side_output("fired") == [("ann", 5), ("bob", 7)]
        assert harness.end_input() == []
        assert harness.side_output("fired")[2:] == [("ann", 9)]


class Both(KeyedCoProcessFunction):
    side_outputs = {"left": "n long", "right": "n long"}  # noqa: RUF012

    def process1(self, row: Any, ctx: Any) -> None:
        ctx.output("left", (row.n,))

    def process2(self, row: Any, ctx: Any) -> Any:
        ctx.output("right", (row.n,))
        yield ctx.key, row.n


def test_a_function_of_two_inputs_has_side_outputs() -> None:
    with harness_of(Both(), second=Input(SCHEMA, key="user")) as harness:
        assert harness.process1(("ann", 1)) == []
        assert harness.process2(("ann", 2)) == [("ann", 2)]
        assert (harness.side_output("left"), harness.side_output("right")) == ([(1,)], [(2,)])


def test_a_side_output_of_two_inputs_says_its_columns() -> None:
    class Unsaid(Both):
        side_outputs = {"left": None}  # noqa: RUF012

    with pytest.raises(HarnessSchemaError, match="'left' does not say its columns"):
        harness_of(Unsaid(), second=Input(SCHEMA, key="user"))


class Rules(KeyedBroadcastProcessFunction):
    side_outputs = {"rules": "rule string"}  # noqa: RUF012

    def process(self, row: Any, ctx: Any) -> None:
        ctx.output("rules", (f"row of {ctx.key}",))

    def process_broadcast(self, row: Any, ctx: Any) -> None:
        ctx.output("rules", (row.rule,))


def test_the_broadcast_side_puts_rows_out_to_side_outputs() -> None:
    with harness_of(Rules(), broadcast="rule string", parallelism=2) as harness:
        assert harness.process_broadcast(("a",)) == []
        assert harness.side_output("rules") == [("a",), ("a",)]
        harness.process(("ann", 1))
        assert harness.side_output("rules")[2:] == [("row of ann",)]


class Columns(VectorizedProcessFunction):
    side_outputs = {"large": "n long, user string", "last": "n long"}  # noqa: RUF012

    def process_batch(self, batch: Any, ctx: Any) -> Any:
        large = pc.greater(batch.column("n"), 10)
        ctx.output("large", batch.rows.filter(large))
        yield batch.rows.filter(pc.invert(large))
        ctx.output("last", pa.table({"n": pa.array([len(batch)], pa.int32())}))

    def end_epoch(self, ctx: Any) -> None:
        ctx.output("last", pa.record_batch({"n": [-1]}))


def test_a_vectorised_function_puts_batches_out_to_side_outputs() -> None:
    with harness_of(Columns()) as harness:
        assert harness.process_all([("ann", 1), ("ann", 11), ("bob", 12)]) == [("ann", 1)]
        assert harness.side_output("large") == [(11, "ann"), (12, "bob")]
        assert harness.end_epoch() == []
        assert [row.n for row in harness.side_output("last")] == [3, -1]


def test_a_batch_that_is_not_as_declared_is_refused_with_its_output() -> None:
    class Wrong(Columns):
        def process_batch(self, batch: Any, ctx: Any) -> None:
            ctx.output("large", ("ann", 1))

    with (
        harness_of(Wrong()) as harness,
        pytest.raises(OutputBatchError, match="of the side output 'large' cannot be used: it is a tuple"),
    ):
        harness.process(("ann", 1))


@pytest.mark.parametrize("name", ["", "main", "output", 5])
def test_a_name_that_a_side_output_cannot_have_is_refused(name: Any) -> None:
    function = Large()
    function.side_outputs = {name: None}
    with pytest.raises(SideOutputNameError, match=repr(name)):
        harness_of(function)


def test_side_outputs_that_are_no_mapping_are_refused() -> None:
    function = Large()
    function.side_outputs = "late"  # type: ignore[assignment]
    with pytest.raises(InvalidFunctionError, match="side_outputs"):
        harness_of(function)


def test_all_outputs_leave_the_operator_in_one_schema() -> None:
    schema = OutputSchema(pa.schema([pa.field("user", pa.string(), nullable=False)]))
    side = OutputSchema(pa.schema([("n", pa.int64())]), "large")
    assert pickle.loads(pickle.dumps(side)).to_batch([(1,)]) == side.to_batch([(1,)])
    outputs = Outputs(schema, {"large": side})
    rows = [outputs.tagged("large", side.to_batch([(1,)])), outputs.tagged(MAIN, schema.to_batch([("a",)]))]
    table = pa.Table.from_batches(rows)
    assert table.column_names == [OUTPUT, MAIN, "large"]
    assert table.to_pylist() == [
        {"output": "large", "main": None, "large": {"n": 1}},
        {"output": "main", "main": {"user": "a"}, "large": None},
    ]
    [whole] = table.combine_chunks().to_batches()
    assert {name: batch.to_pylist() for name, batch in outputs.separate(whole)} == {
        "main": [{"user": "a"}],
        "large": [{"n": 1}],
    }
