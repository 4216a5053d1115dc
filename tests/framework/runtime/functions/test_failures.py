"""Errors of users' functions: what they say, and that nothing of it is lost where only text travels."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from keyedstate import types
from keyedstate.checkpoint.format.json_converter import from_json, to_json
from keyedstate.errors import UserFunctionError, user_function_error
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.runtime.functions.failures import MAX_ERROR, MAX_TRACE, report_of
from keyedstate.spark.hosts.failures import Failure
from keyedstate.state import ReducingState, ValueState
from keyedstate.testing import Harness


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock", lambda: None)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def nested() -> None:
    try:
        {}["inner"]
    except KeyError as error:
        raise ValueError("outer") from error


def raising(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def deep() -> None:
    deep()


def add(a: int, b: int) -> int:
    if b == 13:
        raise ArithmeticError("unlucky")
    return a + b


class Acts(KeyedProcessFunction):
    total = ReducingState("total", add, types.INT64)
    last = ValueState("last", types.INT64)

    def __init__(self, action: Callable[[Acts], Any]) -> None:
        self.action = action

    def process(self, row: Any, ctx: Context) -> Iterator[Any]:
        yield (self.action(self),)


def failure(
    action: Callable[..., Any], key: Any = "a", schema: str = "k string, v long"
) -> UserFunctionError:
    with (
        Harness(Acts(action), key="k", schema=schema, output="v long") as harness,
        pytest.raises(UserFunctionError) as caught,
    ):
        harness.process((key, 1))
    return caught.value


def sent_back(error: UserFunctionError) -> UserFunctionError:
    """Return what the driver makes of what Spark makes of the report."""
    text = f"[PYTHON_EXCEPTION] An exception was thrown: {report_of(error)} SQLSTATE: 38000\n\tat org.apache"
    back = user_function_error(RuntimeError(text))
    assert back is not None
    return back


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (lambda f: nested(), "ValueError: outer"),
        (lambda f: raising(ValueError())(), "ValueError"),
        (lambda f: raising(ValueError("ends well."))(), "ValueError: ends well."),
        (lambda f: raising(ValueError('two\nlines: {"a": 1}\n'))(), 'ValueError: two\nlines: {"a": 1}'),
        (lambda f: raising(Unpicklable())(), "holds a lock"),
        (lambda f: raising(Unprintable())(), "Unprintable"),
        (lambda f: raising(SystemExit(3))(), "SystemExit: 3"),
        (lambda f: raising(ValueError("lone \ud800"))(), "ValueError: lone \\ud800"),
        (lambda f: deep(), "RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_an_error_of_a_function_arrives_whole_as_text(action: Callable[..., Any], said: str) -> None:
    error = failure(action)
    back = sent_back(error)
    assert said in error.error
    assert (str(back), vars(back)) == (str(error), vars(error))
    assert report_of(error).startswith(error.error)
    assert report_of(error).encode() and len(report_of(error)) < MAX_ERROR + MAX_TRACE + 4_000


def test_the_trace_begins_in_the_user_s_code_and_names_causes() -> None:
    error = failure(lambda f: nested())
    lines = error.trace.splitlines()
    assert lines[0].endswith("in process")
    assert "runtime/runners/" not in error.trace
    assert "Caused by KeyError: 'inner'" in lines
    assert report_of(error).count("ValueError: outer") == 1
    assert str(error) == (
        "ValueError: outer. Raised in Acts.process() for the key 'a' in epoch 0; "
        "nothing of this attempt is kept."
    )


def test_a_huge_message_keeps_its_beginning_and_its_end() -> None:
    error = failure(lambda f: raising(ValueError("begin" + "x" * 5_000_000 + "end"))())
    assert error.error.startswith("ValueError: begin")
    assert error.error.endswith("end")
    assert "characters left out" in error.error
    assert sent_back(error).error == error.error


def test_the_state_whose_method_raised_is_named() -> None:
    def merges(function: Acts) -> None:
        function.total.add(1)
        function.total.add(13)

    error = failure(merges)
    assert (error.error, error.state) == ("ArithmeticError: unlucky", "total")
    assert "by the state 'total'" in str(error)
    refused = failure(lambda f: f.last.update("no number"))
    assert refused.state == "last"
    assert sent_back(refused).state == "last"
    assert failure(lambda f: nested()).state is None


@pytest.mark.parametrize(
    ("key", "schema"),
    [
        ("a 'quoted' one", "k string, v long"),
        (7, "k long, v long"),
        (None, "k string, v long"),
        (b"\x00", "k binary, v long"),
    ],
)
def test_a_key_comes_back_as_it_was(key: Any, schema: str) -> None:
    error = failure(lambda f: nested(), key, schema)
    assert error.key == key
    assert sent_back(error).key == key


def test_a_key_that_is_no_literal_comes_back_as_text() -> None:
    day = dt.date(2026, 1, 2)
    assert sent_back(failure(lambda f: nested(), day, "k date, v long")).key == repr(day)


def test_an_error_of_a_host_is_the_same_in_the_task() -> None:
    error = failure(lambda f: nested())
    error.key = (1, "x")
    back = from_json(Failure, to_json(Failure.of(error))).error()
    assert type(back) is UserFunctionError
    assert back.key == (1, "x")
    assert report_of(back) == report_of(error)


def test_the_error_is_found_behind_the_errors_that_it_caused() -> None:
    error = failure(lambda f: nested())
    outer = RuntimeError("the job failed")
    outer.__cause__ = RuntimeError(report_of(error))
    found = user_function_error(outer)
    assert found is not None and found.error == "ValueError: outer"
    assert user_function_error(error) is error
    assert str(pickle.loads(pickle.dumps(found))) == str(found)


@pytest.mark.parametrize(
    "other", [None, RuntimeError("x"), "no report", "keyedstate-facts: {", "keyedstate-facts: 7"]
)
def test_what_is_no_error_of_a_function_gives_none(other: Any) -> None:
    assert user_function_error(other) is None
