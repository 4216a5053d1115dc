"""``keyedstate explain``: the cause out of the log of a job, and each cause once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keyedstate import types
from keyedstate.errors import UserFunctionError, user_function_error
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.runtime.functions.failures import report_of
from keyedstate.testing import Harness


class Boom(KeyedProcessFunction):
    def process(self, row: Any, ctx: Any) -> None:
        raise LookupError(f"no flight {row.k}")


def report(key: str) -> str:
    schema = {"k": types.STRING}
    with (
        Harness(Boom(), key="k", schema=schema, output=schema) as harness,
        pytest.raises(UserFunctionError) as caught,
    ):
        harness.process((key,))
    return report_of(caught.value)


def spark_log(*errors: str) -> str:
    """Return what Spark logs of errors of tasks: each attempt, and the job."""
    lines = ["26/11/22 11:52:18 WARN Utils: Your hostname resolves to a loopback address\n"]
    for error in errors:
        attempt = [
            "26/11/22 11:52:19 ERROR Executor: Exception in task 0.0 in stage 1.0 (TID 1)\n",
            f"org.apache.spark.api.python.PythonException: {error}\n",
            "\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)\n",
            "Caused by: java.lang.IllegalStateException: the worker is gone\n",
        ]
        lines += attempt * 2
    return "".join(lines)


def explained(invoke: Any, tmp_path: Path, log: str) -> Any:
    (tmp_path / "log").write_text(log)
    ran = invoke("explain", str(tmp_path / "log"), "--format", "json")
    causes = json.loads(ran.stdout)
    assert ran.returncode == (0 if causes else 1)
    return causes


def test_each_error_of_a_function_is_reported_once(invoke: Any, tmp_path: Path) -> None:
    first, second = explained(invoke, tmp_path, spark_log(report("N1"), report("N2"), report("N1")))
    assert (first["error"], first["key"], first["times"]) == ("LookupError: no flight N1", "N1", 4)
    assert (second["error"], second["epoch"], second["times"]) == ("LookupError: no flight N2", 0, 2)


def test_people_get_the_error_first_and_no_trace_of_java(invoke: Any, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(spark_log(report("N1")))
    out = invoke("explain", str(tmp_path / "log")).stdout
    assert out.startswith("LookupError: no flight N1\n  File ")
    assert "Raised in Boom.process() for the key 'N1' in epoch 0; nothing of this attempt is kept.\n" in out
    assert out.endswith("The log has it 2 times.\n")
    assert "apache" not in out and "keyedstate-facts" not in out


def test_errors_of_keyedstate_are_reported_with_their_messages(invoke: Any, tmp_path: Path) -> None:
    said = "keyedstate.errors.MaxParallelismChangedError: The max parallelism is 8.\n  File ..."
    (cause,) = explained(invoke, tmp_path, spark_log(said))
    assert cause == {"error": "MaxParallelismChangedError: The max parallelism is 8.", "times": 2}


def test_other_python_errors_are_reported_without_ours(invoke: Any, tmp_path: Path) -> None:
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nZeroDivisionError: by zero'
    (cause,) = explained(invoke, tmp_path, spark_log(trace))
    assert cause["error"] == "ZeroDivisionError: by zero"


def test_errors_of_java_are_reported_without_others(invoke: Any, tmp_path: Path) -> None:
    (cause,) = explained(invoke, tmp_path, spark_log("the worker crashed"))
    assert cause["error"] == "java.lang.IllegalStateException: the worker is gone"


def test_an_error_of_java_without_a_cause_is_reported(invoke: Any, tmp_path: Path) -> None:
    log = (
        "26/11/22 11:52:19 ERROR Executor: Exception in task 0.0 in stage 1.0 (TID 1)\n"
        "java.lang.OutOfMemoryError: Java heap space\n"
        "\tat java.base/java.util.Arrays.copyOf(Arrays.java:3537)\n"
    )
    (cause,) = explained(invoke, tmp_path, log)
    assert cause["error"] == "java.lang.OutOfMemoryError: Java heap space"


def test_a_structured_log_gives_the_same_causes(invoke: Any, tmp_path: Path) -> None:
    entry = {"level": "ERROR", "msg": "task", "exception": {"msg": report("N1"), "stacktrace": []}}
    (cause,) = explained(invoke, tmp_path, json.dumps(entry) + "\n")
    assert (cause["error"], cause["key"]) == ("LookupError: no flight N1", "N1")


def test_a_log_without_errors_ends_with_status_1(invoke: Any, tmp_path: Path) -> None:
    assert explained(invoke, tmp_path, "26/11/22 INFO SparkContext: Running Spark\n") == []
    (tmp_path / "log").write_bytes(b"\xff\xfe no text\n")
    assert "No error was found in the log." in invoke("explain", str(tmp_path / "log")).stdout


def test_a_report_that_is_cut_off_is_no_reason_to_fail(invoke: Any, tmp_path: Path) -> None:
    text = report("N1")
    cut = text[: text.index("epoch") + 3]
    assert user_function_error(cut) is None
    assert explained(invoke, tmp_path, cut) == []
