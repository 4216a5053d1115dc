"""Rows as instances of a class that a function names: dataclasses and NamedTuples, checked at the start."""

from __future__ import annotations

import dataclasses
import datetime as dt
from dataclasses import dataclass, field
from decimal import Decimal
from types import new_class
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypeVar

import pytest
from typing_extensions import TypeAliasType

from keyedstate import types
from keyedstate.errors import RowClassError
from keyedstate.runtime import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
)
from keyedstate.state import ValueState
from keyedstate.testing import Harness, Input

SCHEMA = "origin string, delay int, seen timestamp, extra double"
AT = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
Minutes = NewType("Minutes", int)
Late = TypeAliasType("Late", int)
R = TypeVar("R")


@dataclass(frozen=True)
class Flight:
    delay: Annotated[Optional[Minutes], "late"]  # noqa: UP045
    origin: str
    made: bool = field(default=True, init=False)


class Named(NamedTuple):
    origin: str
    delay: int | None


class Doubled(Named):
    def __new__(cls, origin: str, delay: int | None) -> Any:
        return super().__new__(cls, origin * 2, delay)


@dataclass(kw_only=True)
class KeywordOnly:
    seen: dt.datetime
    origin: str


ROWS: list[Any] = []


class Noting(KeyedProcessFunction[R]):
    count = ValueState("count", types.INT64, default=0)

    def process(self, row: R, ctx: Any) -> Any:
        ROWS.append(row)
        yield ctx.key, 1


def seen_by(function: Any, rows: list[Any], schema: str = SCHEMA, **settings: Any) -> list[Any]:
    ROWS.clear()
    with Harness(
        function, **{"key": "origin", "schema": schema, "output": "k string, n long", **settings}
    ) as harness:
        harness.process_all(rows)
    return list(ROWS)


def of(row_class: Any) -> Any:
    return new_class("Typed", (Noting[row_class],))()


TWO = [("JFK", 5, AT, 0.5), ("EWR", None, AT, 1.5)]


@pytest.mark.parametrize(
    ("row_class", "expected"),
    [
        (Flight, [Flight(5, "JFK"), Flight(None, "EWR")]),
        (Named, [Named("JFK", 5), Named("EWR", None)]),
        (Doubled, [Doubled("JFK", 5), Doubled("EWR", None)]),
        (KeywordOnly, [KeywordOnly(seen=AT, origin="JFK"), KeywordOnly(seen=AT, origin="EWR")]),
    ],
)
def test_rows_are_instances_of_the_class(row_class: Any, expected: list[Any]) -> None:
    rows = seen_by(of(row_class), TWO)
    assert rows == expected
    assert {type(row) for row in rows} == {row_class}


def test_many_rows_grouped_by_key_are_instances_with_shared_keys() -> None:
    class Whole(KeyedProcessFunction[Named]):
        def process(self, row: Named, ctx: Any) -> Any:
            ROWS.append(row)

    import pyarrow as pa

    from keyedstate.runtime.key_runs import RowsByKey
    from keyedstate.runtime.row_classes import row_class_of

    keys = [f"k{n % 7}" for n in range(3000)]
    batch = pa.record_batch(
        {"origin": keys, "delay": list(range(3000)), "group": pa.array([0] * 3000, pa.int32())}
    )
    grouped = RowsByKey(["origin"], "group", None, row_class=row_class_of(Whole(), KeyedProcessFunction))
    rows = [row for runs in grouped.grouped(batch) for row in runs.rows()]
    assert sorted(rows) == sorted(map(Named, keys, range(3000)))
    assert {type(row) for row in rows} == {Named}


def test_plain_rows_stay_where_no_class_is_named() -> None:
    class Plain(Noting):  # type: ignore[type-arg]
        pass

    for function in (Plain(), of(Any), Noting()):  # type: ignore[var-annotated]
        (row, _) = seen_by(function, TWO)
        assert row.as_dict() == {"origin": "JFK", "delay": 5, "seen": AT, "extra": 0.5}


@dataclass
class Place:
    city: str
    zips: list[int]


@dataclass
class Visit:
    origin: str
    place: Place | None
    tags: dict[str, float]
    price: Decimal
    anything: object


def test_structs_inside_of_rows_become_instances_too() -> None:
    schema = (
        "origin string, place struct<city: string, zips: array<long>>, tags map<string, double>, "
        "price decimal(10, 2), anything struct<a: long>"
    )
    rows = [
        ("a", ("Bonn", [1, 2]), {"x": 1.0}, Decimal("1.50"), (1,)),
        ("a", None, {}, Decimal("0.00"), None),
    ]
    first, second = seen_by(of(Visit), rows, schema)
    assert first == Visit("a", Place("Bonn", [1, 2]), {"x": 1.0}, Decimal("1.50"), (1,))
    assert second.place is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"orign": str}, r"the field 'orign'.*0 columns of that name.*Did you mean 'origin'"),
        ({"delay": str}, r"'delay' is str, and the column has the type int32, whose values are int"),
        ({"delay": Optional[bytes]}, r"'delay' is .*bytes.*, and the column"),  # noqa: UP045
        ({"seen": int}, "'seen' is int, .* datetime"),
        ({"extra": int}, "'extra' is int, .* float"),
        ({}, "it has no field"),
    ],
)
def test_a_row_class_that_does_not_fit_is_refused_at_the_start(fields: dict[str, Any], said: str) -> None:
    row_class = dataclasses.make_dataclass("Wrong", fields.items())
    with pytest.raises(RowClassError, match=f"instances of Wrong: .*{said}"):
        seen_by(of(row_class), [])


def test_what_values_also_are_fits() -> None:
    row_class = dataclasses.make_dataclass(
        "Wide", [("delay", float), ("seen", dt.date), ("origin", "str | int"), ("extra", Any)]
    )
    assert seen_by(of(row_class), TWO[:1]) == [row_class(5, AT, "JFK", 0.5)]


def test_literals_and_named_types_fit_as_what_they_stand_for() -> None:
    fields = [("origin", Literal["JFK", "FRA"]), ("delay", Late)]
    row_class = dataclasses.make_dataclass("Fixed", fields)
    assert seen_by(of(row_class), TWO[:1]) == [row_class("JFK", 5)]


def test_a_struct_that_does_not_fit_is_refused_with_its_class() -> None:
    with pytest.raises(RowClassError, match=r"instances of Place: .*'zips'"):
        seen_by(
            of(Visit),
            [],
            "origin string, place struct<city: string, zips: array<string>>, tags map<string, double>, "
            "price decimal(10, 2), anything long",
        )


@pytest.mark.parametrize("given", [int, dict[str, int], "Flight"])
def test_something_else_than_a_class_of_rows_is_refused(given: Any) -> None:
    with pytest.raises(RowClassError, match="neither a dataclass nor a NamedTuple"):
        seen_by(of(given), [])


def test_a_null_for_a_field_without_none_is_refused() -> None:
    for grouped in (1, 40):
        rows = [(None, 5, AT, 0.5)] * grouped
        with pytest.raises(RowClassError, match=r"its field 'origin' does not take None.*str \| None"):
            seen_by(of(Named), rows)


class Left(NamedTuple):
    n: int


class Both(KeyedCoProcessFunction[Left, Flight]):
    def process1(self, row: Left, ctx: Any) -> Any:
        ROWS.append(row)

    def process2(self, row: Flight, ctx: Any) -> Any:
        ROWS.append(row)


def test_each_of_two_inputs_has_its_class() -> None:
    ROWS.clear()
    arguments: Any = {"key": "k", "schema": "k string, n long", "output": "k string"}
    with Harness(Both(), second=Input(SCHEMA, key="origin"), **arguments) as harness:
        harness.process1(("a", 1))
        harness.process2(("a", 5, AT, 0.5))
    assert [Left(1), Flight(5, "a")] == ROWS
    with pytest.raises(RowClassError, match="Flight: it has the field 'delay'"):
        Harness(Both(), second=Input("origin string", key="origin"), **arguments)


class Rules(KeyedBroadcastProcessFunction[Flight, Left]):
    def process(self, row: Flight, ctx: Any) -> Any:
        ROWS.append(row)

    def process_broadcast(self, row: Left, ctx: Any) -> Any:
        ROWS.append(row)


def test_the_broadcast_side_has_its_class() -> None:
    ROWS.clear()
    arguments: Any = {"key": "origin", "schema": SCHEMA, "output": "k string"}
    with Harness(Rules(), broadcast="n long", **arguments) as harness:
        harness.process_broadcast((7,))
        harness.process(TWO[0])
    assert [Left(7), Flight(5, "JFK")] == ROWS
    with pytest.raises(RowClassError, match="Left: it has the field 'n'"):
        Harness(Rules(), broadcast="m long", **arguments)


class Both2(KeyedCoProcessFunction[R, Left], Generic[R]):
    process1 = process2 = Both.process1


def test_parameters_are_found_through_classes_in_between() -> None:
    class Swapped(Both2[Flight]):
        pass

    ROWS.clear()
    with Harness(
        Swapped(),
        key="origin",
        schema=SCHEMA,
        second=Input("k string, n long", key="k"),
        output="k string",
    ) as harness:
        harness.process1(TWO[0])
        harness.process2(("JFK", 3))
    assert [Flight(5, "JFK"), Left(3)] == ROWS
