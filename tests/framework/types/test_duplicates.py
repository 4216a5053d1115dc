"""A duplicate serves another thread: two threads with one each never meet in a serializer's own state."""

from __future__ import annotations

import datetime as dt
import enum
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.inside import registrations

from keyedstate import types
from keyedstate.types import SerializerSnapshot, TypeSerializer


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Click:
    url: str
    seconds: float
    tags: list[str]
    referrer: str | None = None


@dataclass
class LongClick(Click):
    color: Color = Color.RED


UTC = dt.timezone.utc
ROW: Any = types.row_of({"a": types.INT64, "b": types.nullable(types.STRING)})


def ttl(inner: TypeSerializer[Any]) -> TypeSerializer[Any]:
    return types.TtlSerializer(inner, "processing-time")


#: A type, and what makes its value of a number.
TYPES: dict[TypeSerializer[Any], Callable[[int], Any]] = {
    types.BOOLEAN: lambda n: n % 2 == 0,
    types.INT8: lambda n: n % 128,
    types.INT16: lambda n: n,
    types.INT32: lambda n: n,
    types.INT64: lambda n: n * 2**40,
    types.FLOAT32: float,
    types.FLOAT64: lambda n: n / 7,
    types.STRING: lambda n: f"Schlüssel-{n}",
    types.BYTES: lambda n: b"%d" % n,
    types.decimal(10, 2): lambda n: Decimal(n).scaleb(-2),
    types.decimal(38, 2): lambda n: Decimal(n).scaleb(-2),
    types.DATE: lambda n: dt.date.fromordinal(700_000 + n),
    types.TIME: lambda n: dt.time(n % 24, n % 60, 0, n),
    types.TIMESTAMP: lambda n: dt.datetime(2024, 1, 1, tzinfo=UTC) + dt.timedelta(n),
    types.TIMESTAMP_NTZ: lambda n: dt.datetime(2024, 1, 1) + dt.timedelta(n),
    types.DURATION: lambda n: dt.timedelta(microseconds=n),
    types.UUID: lambda n: uuid.UUID(int=n),
    types.VOID: lambda n: types.VOID_NAMESPACE,
    types.TIME_WINDOW: lambda n: types.TimeWindow(n, n + 7),
    types.GLOBAL_WINDOW_TYPE: lambda n: types.GLOBAL_WINDOW,
    types.enum_of(Color): lambda n: Color(n % 2 + 1),
    types.numpy_scalar("float32"): np.float32,
    types.pandas_timestamp("Europe/Berlin"): lambda n: pd.Timestamp(n * 10**15, tz="Europe/Berlin"),
    types.array_of(types.INT16): lambda n: np.array([n, -n], np.int16),
    types.list_of(types.nullable(types.STRING)): lambda n: [str(n), None],
    types.set_of(types.INT64): lambda n: {n, n + 1},
    types.map_of(types.STRING, types.FLOAT64): lambda n: {"a": n / 3, "b": None},
    types.tuple_of(types.STRING, types.decimal(5, 1)): lambda n: (str(n), Decimal(n)),
    types.nullable(types.INT64): lambda n: n if n % 2 else None,
    ROW: lambda n: ROW.make((n, None)),
    types.accumulators_of({"count": types.nullable(types.INT64)}): lambda n: (n,),
    types.record_of(Click): lambda n: Click(f"/{n}", n / 2, [str(n)]),
    types.record_of(Click, subclasses=[LongClick]): lambda n: LongClick(str(n), n / 2, [], color=Color.BLUE),
    types.pickled(): lambda n: {"n": [n]},
    ttl(types.list_of(types.INT64)): lambda n: (n, [n]),
    types.TtlListSerializer(types.INT64, "event time"): lambda n: types.TimedList.of([n], [n]),
    types.TtlMapSerializer(types.INT64, types.STRING, "event time"): lambda n: types.TimedDict.of(
        {n: str(n)}, {n: n}
    ),
}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return bool((left == right).all())
    return bool(left == right)


def use(serializer: TypeSerializer[Any], values: list[Any]) -> list[Any]:
    """Send values through every representation, and return what came back."""
    for value in values:
        serializer.check(value)
        assert serializer.is_value(value)
        assert same(serializer.copy(value), value)
        assert same(serializer.canonical(value), value)
    bytes_back = [serializer.from_bytes(serializer.to_bytes(value)) for value in values]
    columns_back = serializer.from_arrow(serializer.to_arrow(values))
    restored = SerializerSnapshot.from_json(serializer.snapshot().to_json()).restore_serializer()
    assert serializer.resolve_compatibility(restored.snapshot()).outcome in (
        types.Outcome.AS_IS,
        types.Outcome.RECONFIGURED,
    )
    assert all(map(same, bytes_back, columns_back))
    return columns_back


def in_threads(work: list[Callable[[], Any]]) -> list[Any]:
    """Run each in a thread of its own, all begun at the same moment; raise what one of them raised."""
    results: list[Any] = [None] * len(work)
    failures: list[BaseException] = []
    start = threading.Barrier(len(work))

    def run(index: int) -> None:
        try:
            start.wait(600)
            results[index] = work[index]()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    for failure in failures:
        raise failure
    return results


def test_every_type_that_a_program_can_declare_is_tried_here() -> None:
    tried = {type(serializer) for serializer in TYPES}
    names = [name for name in types.__all__ if name.endswith("Serializer")]
    classes = {getattr(types, name) for name in names} - {TypeSerializer, types.RecordSerializer}
    assert classes <= tried
    registered = {
        name
        for name, registration in registrations().items()
        if registration.factory.__module__.startswith(f"{types.__name__}.")
    }
    assert {serializer.type_name for serializer in TYPES} == registered


@pytest.mark.parametrize("serializer", TYPES, ids=repr)
def test_two_threads_use_a_type_and_its_duplicate_at_the_same_time(serializer: TypeSerializer[Any]) -> None:
    """SER-07: each gets its own values back, through every representation."""
    duplicate = serializer.duplicate()
    assert duplicate == serializer and hash(duplicate) == hash(serializer)
    make = TYPES[serializer]
    columns = [[make(number) for number in range(start, start + 40)] for start in (0, 1000)]
    rounds = 5
    found = in_threads(
        [
            lambda: [use(serializer, columns[0]) for _ in range(rounds)],
            lambda: [use(duplicate, columns[1]) for _ in range(rounds)],
        ]
    )
    for expected, results in zip(columns, found, strict=True):
        for result in results:
            assert len(result) == len(expected)
            assert all(map(same, result, expected))


class Buffered(type(types.STRING)):  # type: ignore[misc]
    """Strings through a buffer of the serializer's own, which a second thread would spoil."""

    def __init__(self) -> None:
        self.owner: threading.Thread | None = None

    def duplicate(self) -> Buffered:
        return Buffered()

    def __reduce__(self) -> Any:
        return Buffered, ()

    def serialize(self, value: str, out: Any) -> None:
        self._enter()
        super().serialize(value, out)

    def to_arrow(self, values: Any) -> Any:
        self._enter()
        return super().to_arrow(values)

    def from_arrow(self, array: Any) -> Any:
        self._enter()
        return super().from_arrow(array)

    def deserialize(self, source: Any) -> str:
        self._enter()
        text: str = super().deserialize(source)
        return text

    def is_value(self, value: object) -> bool:
        self._enter()
        return bool(super().is_value(value))

    def _enter(self) -> None:
        me = threading.current_thread()
        if (
            me is not threading.main_thread()
        ):  # where types are declared and duplicated, before others use them
            assert self.owner in (None, me), "two threads in one serializer"
            self.owner = me


@dataclass
class Held:
    text: str


@dataclass
class HeldBySubclass(Held):
    more: str = ""


TEXT = {"text": Buffered()}
WITH_STATE: dict[str, tuple[Callable[[], TypeSerializer[Any]], Any]] = {
    "itself": (Buffered, "a"),
    "list": (lambda: types.list_of(Buffered()), ["a"]),
    "set": (lambda: types.set_of(Buffered()), {"a"}),
    "map key": (lambda: types.map_of(Buffered(), types.INT64), {"a": 1}),
    "map value": (lambda: types.map_of(types.INT64, Buffered()), {1: "a"}),
    "tuple": (lambda: types.tuple_of(types.INT64, Buffered()), (1, "a")),
    "nullable": (lambda: types.nullable(Buffered()), "a"),
    "row": (lambda: types.row_of({"text": Buffered()}), types.row_type(("text",))("a")),
    "record": (lambda: types.record_of(Held, fields={"text": Buffered()}), Held("a")),
    "hierarchy": (
        lambda: types.record_of(
            Held,
            fields={"text": Buffered()},
            tagged=[types.record_of(HeldBySubclass, fields={"text": Buffered(), "more": Buffered()})],
        ),
        HeldBySubclass("a", "b"),
    ),
    "ttl": (lambda: ttl(Buffered()), (5, "a")),
    "deep": (lambda: types.list_of(types.nullable(types.tuple_of(Buffered()))), [("a",), None]),
}


@pytest.mark.parametrize("where", WITH_STATE)
def test_a_duplicate_duplicates_what_has_state_wherever_it_is(where: str) -> None:
    """SER-07: a part that the duplicate shared would be entered by both threads."""
    make, value = WITH_STATE[where]
    serializer = make()
    found = in_threads([lambda one=one: use(one, [value]) for one in (serializer, serializer.duplicate())])
    assert found == [[value], [value]]
    with pytest.raises(AssertionError, match="two threads in one serializer"):
        in_threads([lambda: use(serializer, [value])])


def test_functions_that_are_written_for_a_record_belong_to_its_duplicate() -> None:
    """SER-07: they hold on to the fields' serializers, so they are rewritten."""
    record: Any = types.record_of(Held, fields={"text": Buffered()})
    in_threads([lambda: record.is_value(Held("a"))])
    duplicate = record.duplicate()
    assert duplicate.is_value(Held("a")) and duplicate.copy(Held("a")) == Held("a")
