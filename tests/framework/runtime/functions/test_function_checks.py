"""Functions that could only fail in a task are refused when they are given to an operator."""

from __future__ import annotations

import datetime as dt
import functools
from typing import Any

import pytest

from keyedstate import types
from keyedstate.aggregates import count
from keyedstate.errors import (
    ConfigError,
    InvalidAggregateError,
    InvalidDescriptorError,
    InvalidFunctionError,
    InvalidJoinError,
    InvalidWindowError,
    StateNotBoundError,
)
from keyedstate.joins import (
    IntervalJoinFunction,
    JoinType,
    ProcessJoinFunction,
    RegularJoinFunction,
    interval_join,
)
from keyedstate.joins.bounds import Interval
from keyedstate.runtime import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    VectorizedProcessFunction,
)
from keyedstate.runtime.functions.checks import check_function
from keyedstate.state import AggregateFunction, AggregatingState, ReducingState, ValueState
from keyedstate.testing import Harness
from keyedstate.time import EventTime
from keyedstate.windows import (
    CountEvictor,
    CountTrigger,
    EventTimeTrigger,
    Trigger,
    TriggerResult,
    Tumbling,
    windowed,
)
from keyedstate.windows.declaration.function import ProcessWindowFunction

LOOSE = ValueState("loose", types.INT64, default=0)


class Echo(KeyedProcessFunction):
    def process(self, row: Any, ctx: Any) -> Any:
        yield row


@pytest.mark.parametrize(
    ("base", "method"),
    [
        (KeyedProcessFunction, r"process\(self, row, ctx\)"),
        (KeyedBroadcastProcessFunction, r"process\(self, row, ctx\)"),
        (KeyedCoProcessFunction, r"process1\(self, row, ctx\)"),
        (VectorizedProcessFunction, r"process_batch\(self, batch, ctx\)"),
    ],
)
def test_a_function_without_its_method_is_refused(base: type, method: str) -> None:
    class Empty(base):  # type: ignore[misc]
        pass

    with pytest.raises(InvalidFunctionError, match=rf"^Empty cannot be run: .*{method}"):
        check_function(Empty())


def test_each_method_of_a_function_with_two_inputs_is_needed() -> None:
    class OfKeys(KeyedBroadcastProcessFunction):
        def process(self, row: Any, ctx: Any) -> Any:
            return None

    class First(KeyedCoProcessFunction):
        def process1(self, row: Any, ctx: Any) -> Any:
            return None

    with pytest.raises(InvalidFunctionError, match=r"process_broadcast\(self, row, ctx\)"):
        check_function(OfKeys())
    with pytest.raises(InvalidFunctionError, match=r"process2\(self, row, ctx\)"):
        check_function(First())


def test_a_misspelt_method_is_named() -> None:
    class Misspelt(KeyedProcessFunction):
        def proces(self, row: Any, ctx: Any) -> Any:
            yield row

    with pytest.raises(InvalidFunctionError, match="'proces'"):
        check_function(Misspelt())


def wrong(**methods: Any) -> KeyedProcessFunction:
    return type("Wrong", (Echo,), methods)()  # type: ignore[no-any-return]


async def later(self: Any, row: Any, ctx: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (wrong(process=lambda self, row: None), r"process\(row\).*process\(self, row, ctx\)"),
        (wrong(process=lambda row, ctx: None), r"process\(ctx\).*process\(self, row, ctx\)"),
        (wrong(process=lambda self, row, ctx, more: None), r"process\(self, row, ctx\)"),
        (wrong(on_timer=lambda self, ctx: None), r"on_timer\(self, time, ctx\)"),
        (wrong(open=lambda self: None), r"open\(self, ctx\)"),
        (wrong(close=lambda self, ctx: None), r"close\(self\)"),
        (wrong(process=later), "asynchronous"),
        (wrong(process=5), "process is an int"),
    ],
)
def test_a_method_that_cannot_be_called_is_refused(function: Any, said: str) -> None:
    with pytest.raises(InvalidFunctionError, match=said):
        check_function(function)


class OwnInterval(IntervalJoinFunction):
    def __init__(self) -> None:
        interval = Interval.of(0, 10, lower_exclusive=False, upper_exclusive=False, lookback=0)
        super().__init__(interval, Joining(), {}, "fail")


class OwnRegular(RegularJoinFunction):
    def __init__(self) -> None:
        super().__init__(JoinType.INNER, None, {}, "fail")


@pytest.mark.parametrize("method", ["process1", "process2", "process3"])
@pytest.mark.parametrize("join", [OwnInterval, OwnRegular])
def test_a_join_with_a_method_for_single_rows_is_refused(join: type, method: str) -> None:
    function = type("Own", (join,), {method: lambda self, row, ctx: None})()
    check_function(join())
    never = rf"its {method}\(\) is never called, because {join.__name__} .*; remove {method}\(\)"
    with pytest.raises(InvalidFunctionError, match=rf"^Own cannot be run: {never}.*KeyedCoProcessFunction"):
        check_function(function)


def test_methods_with_defaults_and_any_arguments_are_taken() -> None:
    class Wide(KeyedProcessFunction):
        def process(self, *arguments: Any) -> Any:
            return None

        def on_timer(self, time: int, ctx: Any, retries: int = 3) -> Any:
            return None

    check_function(Wide())


def test_a_decorated_method_is_taken_as_it_is_called() -> None:
    def without_context(method: Any) -> Any:
        @functools.wraps(method)
        def called(self: Any, row: Any, ctx: Any) -> Any:
            return method(self, row)

        return called

    check_function(wrong(process=without_context(lambda self, row: None)))


def test_methods_that_only_functions_of_another_class_have_are_free() -> None:
    class Columns(VectorizedProcessFunction):
        def process_batch(self, batch: Any, ctx: Any) -> Any:
            return None

        def on_timer(self) -> None:
            pass

    check_function(Columns())
    check_function(wrong(on_timers=5))


def test_a_class_is_refused_where_an_instance_is_needed() -> None:
    with pytest.raises(InvalidFunctionError, match=r"^Echo cannot .* it is a class.*did you forget \(\)"):
        check_function(Echo)


class Joining(ProcessJoinFunction):
    def process(self, left: Any, right: Any, ctx: Any) -> Any:
        return None


class OfWindow(ProcessWindowFunction):
    def process(self, elements: Any, ctx: Any) -> Any:
        return None


class Sum(AggregateFunction[int, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: windowed(Tumbling), InvalidWindowError),
        (lambda: windowed(Tumbling.of(1)).trigger(EventTimeTrigger), InvalidWindowError),
        (lambda: windowed(Tumbling.of(1)).evictor(CountEvictor), InvalidWindowError),
        (lambda: windowed(Tumbling.of(1)).process(OfWindow), InvalidWindowError),
        (lambda: windowed(Tumbling.of(1)).aggregate(n=count), InvalidAggregateError),
        (lambda: windowed(Tumbling.of(1)).aggregate_with(Sum, types.INT64), InvalidWindowError),
        (lambda: interval_join(0, 1).process(Joining), InvalidJoinError),
        (lambda: AggregatingState("sum", Sum, types.INT64), InvalidDescriptorError),
    ],
)
def test_a_forgotten_call_is_asked_for(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"did you forget \(\)\?"):
        make()


def test_functions_of_windows_and_joins_need_their_method() -> None:
    class NoWindow(ProcessWindowFunction):
        pass

    class NoJoin(ProcessJoinFunction):
        def process(self, left: Any, ctx: Any) -> Any:
            return None

    with pytest.raises(InvalidFunctionError, match=r"process\(self, elements, ctx\)"):
        windowed(Tumbling.of(1)).process(NoWindow())
    with pytest.raises(InvalidFunctionError, match=r"process\(self, left, right, ctx\)"):
        interval_join(0, 1).process(NoJoin())


def test_a_state_declared_outside_the_class_cannot_be_used_directly() -> None:
    local = ValueState("local", types.INT64)

    class Global(KeyedProcessFunction):
        def process(self, row: Any, ctx: Any) -> Any:
            yield ctx.key, LOOSE.value()

    class Closure(KeyedProcessFunction):
        def process(self, row: Any, ctx: Any) -> Any:
            return [local.value() for _ in row]

    for function, name in ((Global(), "'loose'"), (Closure(), "'local'")):
        with pytest.raises(InvalidFunctionError, match=f"{name}.*outside the class.*class attribute"):
            check_function(function)


def test_a_local_variable_may_have_the_name_of_a_state_outside() -> None:
    class Shadowing(KeyedProcessFunction):
        LOOSE = LOOSE

        def process(self, row: Any, ctx: Any) -> Any:
            LOOSE = self.LOOSE

            def count_up() -> None:
                LOOSE.update(LOOSE.value() + 1)

            count_up()

    check_function(Shadowing())


def test_a_variable_that_has_no_value_yet_is_no_reason_to_refuse() -> None:
    class Refers(KeyedProcessFunction):
        def process(self, row: Any, ctx: Any) -> Any:
            yield row.k, later

    function = Refers()
    check_function(function)
    later = 5
    assert run(function) == [("a", 5), ("a", 5)]


def test_a_state_declared_outside_the_class_may_be_registered() -> None:
    class Registers(KeyedProcessFunction):
        def open(self, ctx: Any) -> None:
            self.loose = ctx.state(LOOSE)

        def process(self, row: Any, ctx: Any) -> Any:
            self.loose.update(self.loose.value() + 1)
            yield row.k, self.loose.value()

    assert run(Registers()) == [("a", 1), ("a", 2)]


def test_states_assigned_to_a_class_later_are_bound_by_their_attribute() -> None:
    class Late(KeyedProcessFunction):
        def process(self, row: Any, ctx: Any) -> Any:
            self.total.update(self.total.value() + 1)
            yield row.k, self.total.value()

    class Same(Late):
        pass

    Late.total = LOOSE  # type: ignore[attr-defined]
    Same.sum = Same.total = ValueState("other", types.INT64, default=5)  # type: ignore[attr-defined]
    del Same.sum  # type: ignore[attr-defined]
    assert run(Late()) == [("a", 1), ("a", 2)]
    assert run(Same()) == [("a", 6), ("a", 7)]


def test_an_unbound_declaration_names_the_way_out() -> None:
    class Unbound(KeyedProcessFunction):
        def open(self, ctx: Any) -> None:
            self.total = ValueState("total", types.INT64)

        def process(self, row: Any, ctx: Any) -> Any:
            yield row.k, self.total.value()  # type: ignore[attr-defined]

    with pytest.raises(Exception, match=r"'total'.*ctx\.state\(") as caught:
        run(Unbound())
    assert isinstance(caught.value.__cause__, StateNotBoundError)


class AtThree(Trigger[Any]):
    rows = ReducingState("rows", lambda a, b: a + b, types.INT64)

    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> TriggerResult:
        rows = ctx.state(self.rows)
        rows.add(1)
        return TriggerResult.FIRE if rows.get() == 3 else TriggerResult.CONTINUE

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.state(self.rows).clear()


def test_a_trigger_may_give_its_own_attribute_to_the_context() -> None:
    windows = windowed(Tumbling.of(1000)).trigger(AtThree()).aggregate(n=count())
    with Harness(
        windows,
        key="k",
        schema="k string, ts timestamp",
        output="k string, window_start timestamp, window_end timestamp, n long",
        event_time=EventTime("ts"),
    ) as harness:
        now = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
        assert [row.n for row in harness.process_all([("a", now)] * 4)] == [3]


def test_a_function_may_give_its_own_attribute_to_the_context() -> None:
    class Again(KeyedProcessFunction):
        total = ValueState("total", types.INT64, default=0)

        def open(self, ctx: Any) -> None:
            self.same = ctx.state(self.total)

        def process(self, row: Any, ctx: Any) -> Any:
            self.same.update(self.total.value() + 1)
            yield row.k, self.total.value()

    assert run(Again()) == [("a", 1), ("a", 2)]


def test_state_of_a_window_cannot_be_an_attribute_of_its_function() -> None:
    class Attribute(ProcessWindowFunction):
        fired = ValueState("fired", types.INT64)

        def process(self, elements: Any, ctx: Any) -> Any:
            ctx.window_state(self.fired)

    with (
        pytest.raises(Exception, match=r"'fired'.*belongs to the key") as caught,
        Harness(
            windowed(Tumbling.of(1, processing_time=True)).trigger(CountTrigger.of(1)).process(Attribute()),
            key="k",
            schema="k string",
            output="k string",
        ) as harness,
    ):
        harness.process(("a",))
    assert isinstance(caught.value.__cause__, InvalidWindowError)


def test_a_queue_of_timers_that_the_backend_lacks_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="heap-cow"):
        run(Echo(), options={"timers.queue": "ordered"})


def run(function: Any, **settings: Any) -> list[Any]:
    with Harness(
        function, key="k", schema="k string", output="k string, n long", backend="heap-cow", **settings
    ) as harness:
        return harness.process_all([("a",), ("a",)])
