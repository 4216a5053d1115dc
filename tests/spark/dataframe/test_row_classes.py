"""Rows as instances of a class on Spark: checked on the driver, made in tasks and in hosts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from keyedstate import connect, keyed, types
from keyedstate.errors import RowClassError
from keyedstate.runtime import KeyedBroadcastProcessFunction, KeyedCoProcessFunction, KeyedProcessFunction
from keyedstate.savepoints import Savepoint
from keyedstate.state import ValueState


@dataclass(frozen=True)
class Visit:
    k: str
    v: int | None


class Rule(NamedTuple):
    rule: str


class Typed(KeyedProcessFunction[Visit]):
    total = ValueState("total", types.INT64, default=0)

    def process(self, row: Visit, ctx: Any) -> Any:
        self.total.update(self.total.value() + (row.v or 0))
        yield f"{type(row).__name__} {row.k}", self.total.value()


class Both(KeyedCoProcessFunction[Visit, Rule]):
    def process1(self, row: Visit, ctx: Any) -> Any:
        yield type(row).__name__, row.v

    def process2(self, row: Rule, ctx: Any) -> Any:
        yield f"{type(row).__name__} {row.rule}", None


class Rules(KeyedBroadcastProcessFunction[Visit, Rule]):
    def process(self, row: Visit, ctx: Any) -> Any:
        yield type(row).__name__, row.v

    def process_broadcast(self, row: Rule, ctx: Any) -> Any:
        yield f"{type(row).__name__} {row.rule}", None


def test_a_stream_gives_instances_before_and_after_a_restart(stream: Any, one_backend: str) -> None:
    def out() -> Any:
        config = {"checkpoint.dir": str(stream.state), "parallelism": 2, "backend": one_backend}
        return keyed(stream.frame(), "k", uid="typed", config=config).process(Typed(), "k string, n long")

    stream.add([{"k": "a", "v": 1}, {"k": "a", "v": None}, {"k": "b", "v": 5}])
    stream.run(out())
    stream.add([{"k": "a", "v": 2}])
    stream.run(out())
    assert sorted(stream.all_rows()) == [("Visit a", 1), ("Visit a", 1), ("Visit a", 3), ("Visit b", 5)]


def test_two_inputs_and_a_broadcast_side_have_classes(spark: SparkSession) -> None:
    visits = spark.createDataFrame([("a", 1)], "k string, v long")
    rules = spark.createDataFrame([("a", "r")], "k string, rule string")
    out = connect(keyed(visits, "k"), keyed(rules, "k")).process(Both(), "k string, n long")
    assert sorted(map(tuple, out.collect())) == [("Rule r", None), ("Visit", 1)]
    keyed_visits = keyed(visits, "k", config={"parallelism": 1})
    out = keyed_visits.broadcast(rules).process(Rules(), "k string, n long")
    assert sorted(map(tuple, out.collect())) == [("Rule r", None), ("Visit", 1)]


def test_a_class_that_does_not_fit_is_refused_on_the_driver(spark: SparkSession, tmp_path: Any) -> None:
    texts = spark.createDataFrame([("a", "1")], "k string, v string")
    said = "instances of Visit: its field 'v' is .*, and the column has the type string"
    with pytest.raises(RowClassError, match=said):
        keyed(texts, "k").process(Typed(), "k string, n long")
    with pytest.raises(RowClassError, match=said):
        Savepoint.new().add(keyed(texts, "k", uid="typed"), Typed()).write(tmp_path / "savepoint")
    with pytest.raises(RowClassError, match=said):
        connect(keyed(texts, "k"), keyed(texts, "k")).process(Both(), "k string, n long")
    with pytest.raises(RowClassError, match="Rule: it has the field 'rule'"):
        keyed(texts.select("k", texts.v.cast("long")), "k").broadcast(texts).process(
            Rules(), "k string, n long"
        )


NOTEBOOK = """
from __future__ import annotations

import datetime as dt
import sys
from dataclasses import dataclass

from keyedstate.runtime import KeyedProcessFunction
from keyedstate.epoch.function_transport import pack_function


@dataclass
class Seen:
    at: dt.datetime


@dataclass
class Visit:
    k: str
    when: dt.datetime | None
    last: Seen | None


class Typed(KeyedProcessFunction[Visit]):
    def process(self, row, ctx):
        yield row.k, repr(row)


sys.stdout.buffer.write(pack_function(Typed()))
"""

TASK = """
import datetime as dt
import sys

import pyarrow as pa

from keyedstate.runtime.row_classes import rows_from
from keyedstate.epoch.function_transport import unpack_function

function, row_classes = unpack_function(sys.stdin.buffer.read(), "Typed")
at = dt.datetime(2026, 1, 1)
columns = [pa.array(["a"]), pa.array([at]), pa.array([{"at": at}])]
[row] = rows_from(row_classes["rows"], ["k", "when", "last"], columns)
print([text for _, text in function.process(row, None)])
"""


def test_a_class_of_a_notebook_is_known_where_its_module_is_not() -> None:
    """Annotations are text there, which names what only the driver has imported."""
    packed = subprocess.run([sys.executable, "-c", NOTEBOOK], stdout=subprocess.PIPE, check=True).stdout
    done = subprocess.run([sys.executable, "-c", TASK], input=packed, stdout=subprocess.PIPE, check=True)
    at = "datetime.datetime(2026, 1, 1, 0, 0)"
    assert f"Visit(k='a', when={at}, last=Seen(at={at}))" in done.stdout.decode()
