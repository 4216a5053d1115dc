"""The option ``types.generic``: on the driver for declared states, in the tasks for those of open()."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from keyedstate import keyed, types
from keyedstate.errors import GenericTypeForbiddenError
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import ValueState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEN = ValueState("seen", types.pickled())


class Declared(KeyedProcessFunction):
    seen = SEEN

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[int, int]]:
        self.seen.update([*(self.seen.value() or []), row])
        yield ctx.key, len(self.seen.value())


class Registered(KeyedProcessFunction):
    def open(self, ctx: Context) -> None:
        self.seen = ctx.state(SEEN)

    process = Declared.process


def test_generic_states_run_unless_they_are_forbidden(spark: SparkSession, one_backend: str) -> None:
    frame = spark.range(4).selectExpr("id % 2 AS k")
    for function in (Declared(), Registered()):
        out = keyed(frame, "k", config={"backend": one_backend}).process(function, "k long, n int")
        assert sorted(map(tuple, out.collect())) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    strict = keyed(frame, "k", config={"backend": one_backend, "types.generic": "forbid"})
    with pytest.raises(GenericTypeForbiddenError, match="'seen'"):
        strict.process(Declared(), "k long, n int")
    with pytest.raises(Exception, match=r"types\.generic=forbid"):
        strict.process(Registered(), "k long, n int").collect()
