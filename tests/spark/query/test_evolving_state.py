"""State of the user's own classes in a streaming query whose program changes between two runs.

The workers have none of the classes before the process function arrives, which is after the restore.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from keyedstate import keyed, types
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import ValueState


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


@dataclass
class Before:
    total: int
    size: Size
    last: Any = None


class MoreSizes(enum.Enum):
    HUGE = 3
    LARGE = 2
    SMALL = 1


@dataclass
class After:
    size: MoreSizes
    total: int
    seen: list[int] = field(default_factory=list)


@dataclass
class Incompatible:
    total: str


class First(KeyedProcessFunction):
    state = ValueState(
        "s", types.record_of(Before, name="Totals", fields={"size": types.enum_of(Size, name="Size")})
    )

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[str, str]]:
        old = self.state.value()
        total = row.v + (old.total if old else 0)
        self.state.update(Before(total, Size.LARGE if total > 10 else Size.SMALL, last=row))
        yield ctx.key, repr(self.state.value().size.name)


class Second(KeyedProcessFunction):
    state = ValueState(
        "s", types.record_of(After, name="Totals", fields={"size": types.enum_of(MoreSizes, name="Size")})
    )

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[str, str]]:
        value = self.state.value()
        value.total += row.v
        value.seen.append(row.v)
        if value.total > 100:
            value.size = MoreSizes.HUGE
        self.state.update(value)
        yield ctx.key, f"{type(value).__name__} {value.total} {value.size.name} {value.seen}"


class Third(KeyedProcessFunction):
    state = ValueState("s", types.record_of(Incompatible, name="Totals"))

    def process(self, row: Any, ctx: Context) -> None:
        return None


def test_a_dataclass_changes_between_two_runs_of_a_streaming_query(stream: Any, one_backend: str) -> None:
    def out(function: KeyedProcessFunction) -> Any:
        config = {"backend": one_backend, "checkpoint.dir": str(stream.state), "parallelism": 2}
        return keyed(stream.frame(), "k", uid="totals", config=config).process(
            function, "k string, said string"
        )

    stream.add([{"k": "a", "v": 5}, {"k": "b", "v": 50}])
    stream.run(out(First()))
    stream.add([{"k": "a", "v": 1}, {"k": "b", "v": 60}])
    stream.run(out(Second()))
    stream.add([{"k": "a", "v": 2}])
    stream.run(out(Second()))
    assert sorted(stream.rows[1]) == [("a", "After 6 SMALL [1]"), ("b", "After 110 HUGE [60]")]
    assert stream.rows[2] == [("a", "After 8 SMALL [1, 2]")]
    stream.add([{"k": "a", "v": 3}])
    message = stream.failure(out(Third()))
    assert "StateMigrationError" in message
    assert "the field 'total': INT64 cannot be read as STRING" in message
