"""The representations of the types against libraries that do the same, in one run.

    python tests/bench/bench_types.py [--values N] [--only PART]

The first table has for every type the time of `to_arrow` over that of ``pyarrow.array``, and of `from_arrow`
over that of ``to_pylist``, on the same values.  What pyarrow cannot take as it is (records, constants, UUIDs)
it gets as dicts, names and bytes that were made before.  The second table has what happens to one value at a
time: `is_value` over a call of ``isinstance``, `copy` over ``copy.deepcopy``, and the bytes over those of
``pickle``.  Times are the best of five; a garbage collection pause hits both sides.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import datetime as dt
import enum
import pickle
import sys
import time
import tracemalloc
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from keyedstate import types
from keyedstate.types import TypeSerializer

_EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
_NAIVE = dt.datetime(2024, 1, 1)
_ROUNDS = 5


class Color(enum.Enum):
    """An enum as users have them."""

    RED = 1
    GREEN = 2
    BLUE = 3


@dataclass
class Click:
    """A record of plain fields."""

    url: str
    count: int
    seconds: float
    referrer: str | None = None


@dataclass(slots=True)
class SlottedClick:
    """The same without a dict for each instance."""

    url: str
    count: int
    seconds: float
    referrer: str | None = None


@dataclass(frozen=True)
class Point:
    """A record that cannot change."""

    x: int
    y: int


@dataclass
class Visit:
    """A record of records."""

    user: str
    color: Color
    clicks: list[Click]
    first: Point


@dataclass
class LongClick(Click):
    """A subclass."""

    pause: int = 0


def columns(count: int) -> list[tuple[TypeSerializer[Any], list[Any]]]:
    """Return types with values to convert; those of nested types are a fifth as many."""
    fifth = range(count // 5)
    return [
        (types.INT64, [index * 7919 for index in range(count)]),
        (types.nullable(types.INT64), [None if index % 10 == 0 else index for index in range(count)]),
        (types.FLOAT64, [index * 1.5 for index in range(count)]),
        (types.BOOLEAN, [index % 3 == 0 for index in range(count)]),
        (types.STRING, [f"key-{index}" for index in range(count)]),
        (types.STRING, [f"Schlüssel-{index}" for index in range(count)]),
        (types.BYTES, [b"key-%d" % index for index in range(count)]),
        (types.DATE, [dt.date.fromordinal(700_000 + index % 30_000) for index in range(count)]),
        (types.TIMESTAMP, [_EPOCH + dt.timedelta(microseconds=index * 1_000_003) for index in fifth]),
        (types.decimal(18, 2), [Decimal(index).scaleb(-2) for index in fifth]),
        (types.TIMESTAMP_NTZ, [_NAIVE + dt.timedelta(microseconds=index * 1_000_003) for index in fifth]),
        (types.TIME, [dt.time(index % 24, index % 60, index % 59, index % 1_000_000) for index in fifth]),
        (types.DURATION, [dt.timedelta(microseconds=index * 1_000_003) for index in fifth]),
        (types.UUID, [uuid.UUID(int=index * 2**70 + index) for index in fifth]),
        (types.enum_of(Color), [_COLORS[index % 3] for index in fifth]),
        (types.numpy_scalar("int64"), list(np.arange(count // 5))),
        (types.pandas_timestamp("UTC"), [pd.Timestamp(index * 10**12, tz="UTC") for index in fifth]),
        (types.array_of(types.FLOAT64), [np.array([index, 1.5, 2.5]) for index in fifth]),
        (types.tuple_of(types.STRING, types.INT64), [(f"key-{index}", index) for index in fifth]),
        (types.list_of(types.INT64), [[index, index + 1, index + 2] for index in fifth]),
        (types.set_of(types.INT64), [{index, index + 1, index + 2} for index in fifth]),
        (types.map_of(types.STRING, types.INT64), [{"views": index, "clicks": 1} for index in fifth]),
        (ROW, [ROW.make((f"key-{index}", index)) for index in fifth]),
        (types.record_of(Point), [Point(index, index + 1) for index in fifth]),
        (types.record_of(Click), [click(index) for index in fifth]),
        (types.list_of(types.record_of(Click)), [[click(index), click(index + 1)] for index in fifth]),
        (types.record_of(Visit), [visit(index) for index in range(count // 20)]),
        (
            types.record_of(Click, tagged=[LongClick]),
            [LongClick("/page", index, 0.5, None, 7) if index % 2 else click(index) for index in fifth],
        ),
        (types.pickled(), [{"views": index} for index in range(count // 20)]),
    ]


_COLORS = tuple(Color)
ROW: Any = types.row_of({"user": types.STRING, "count": types.nullable(types.INT64)})


def click(index: int) -> Click:
    """Return one of many records."""
    return Click(f"/page-{index % 1000}", index, index * 0.5, None if index % 2 else "/start")


def visit(index: int) -> Visit:
    """Return one of many records of records."""
    return Visit(f"user-{index}", _COLORS[index % 3], [click(index), click(index + 1)], Point(index, 0))


def as_pyarrow_takes_it(serializer: TypeSerializer[Any], value: Any) -> Any:
    """Return the form of a value that ``pyarrow.array`` converts by itself."""
    if value is None or isinstance(serializer, types.PickledSerializer):
        return None if value is None else pickle.dumps(value)
    if isinstance(serializer, types.HierarchySerializer):
        return {
            name: as_pyarrow_takes_it(record, value) if type(value) is record.python_type else None
            for name, record in zip(("Click", "LongClick"), serializer.records, strict=True)
        }
    if dataclasses.is_dataclass(value):
        fields = zip(serializer.names, serializer.field_serializers, strict=True)  # type: ignore[attr-defined]
        return {name: as_pyarrow_takes_it(field, getattr(value, name)) for name, field in fields}
    if isinstance(value, tuple):
        names = serializer.inner_names  # type: ignore[attr-defined]
        return dict(zip(names, value, strict=True))
    if isinstance(value, (list, set)):
        element = serializer.element_serializer  # type: ignore[attr-defined]
        return [as_pyarrow_takes_it(element, part) for part in value]
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, enum.Enum):
        return value.name
    return value.bytes if isinstance(value, uuid.UUID) else value


def best_of(convert: Callable[[], object]) -> float:
    """Return the seconds of the fastest of some rounds."""
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        result = convert()
        times.append(time.perf_counter() - start)
        del result
    return min(times)


def measure(serializer: TypeSerializer[Any], values: list[Any]) -> str:
    """Return one line of the table."""
    theirs = [as_pyarrow_takes_it(serializer, value) for value in values]
    array = serializer.to_arrow(values)
    write_floor = best_of(lambda: pa.array(theirs, serializer.arrow_type))
    write = best_of(lambda: serializer.to_arrow(values))
    read_floor = best_of(array.to_pylist)
    read = best_of(lambda: serializer.from_arrow(array))
    nanos = 1e9 / len(values)
    return (
        f"{shown(serializer):28} {write_floor * nanos:9.0f} {write * nanos:9.0f} {write / write_floor:7.2f}"
        f" {read_floor * nanos:10.0f} {read * nanos:10.0f} {read / read_floor:7.2f}\n"
    )


def measure_values(serializer: TypeSerializer[Any], values: list[Any]) -> str:
    """Return one line of the table of single values."""
    cls = type(values[-1])
    data = list(map(serializer.to_bytes, values))
    pickles = [pickle.dumps(value, 5) for value in values]
    pairs = [
        (
            lambda: [isinstance(value, cls) for value in values],
            lambda: list(map(serializer.is_value, values)),
        ),
        (lambda: list(map(copy.deepcopy, values)), lambda: list(map(serializer.copy, values))),
        (
            lambda: [pickle.dumps(value, 5) for value in values],
            lambda: list(map(serializer.to_bytes, values)),
        ),
        (lambda: list(map(pickle.loads, pickles)), lambda: list(map(serializer.from_bytes, data))),
    ]
    nanos = 1e9 / len(values)
    line = f"{shown(serializer):28}"
    for floor, ours in pairs:
        theirs, mine = best_of(floor), best_of(ours)
        line += f" {theirs * nanos:8.0f} {mine * nanos:8.0f} {mine / theirs:6.2f}"
    return line + "\n"


def measure_memory(cls: Any, count: int) -> str:
    """Return how much memory a record takes after a state has looked at it, its fields aside."""
    serializer = types.record_of(cls)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    records = [cls("/page", 1, 0.5) for _ in range(count)]
    assert all(map(serializer.is_value, records))
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return f"{shown(serializer):28} {(after - before) / count:9.0f} bytes\n"


def shown(serializer: TypeSerializer[Any]) -> str:
    """Return a type's name, without the module of the bench's own classes, cut to fit."""
    return repr(serializer).replace(f"{__name__}.", "")[:28]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--values", type=int, default=1_000_000, help="values of the simple types (default: %(default)s)"
    )
    parser.add_argument("--only", default="", help="only the types whose name has this part")
    arguments = parser.parse_args()
    made = [pair for pair in columns(arguments.values) if arguments.only in shown(pair[0])]
    sys.stdout.write(f"pyarrow {pa.__version__}; ns per value\n")
    sys.stdout.write(f"{'type':28}  pa.array  to_arrow   ratio  to_pylist from_arrow   ratio\n")
    for serializer, values in made:
        sys.stdout.write(measure(serializer, values))
    sys.stdout.write(
        f"\n{'type':28} isinstance is_value ratio deepcopy   copy  ratio"
        "    dumps to_bytes  ratio    loads from_bytes ratio\n"
    )
    for serializer, values in made:
        sys.stdout.write(measure_values(serializer, values[: len(values) // 10]))
    sys.stdout.write("\nmemory of a record of four fields, without the fields\n")
    for cls in (Click, SlottedClick):
        sys.stdout.write(measure_memory(cls, arguments.values // 10))


if __name__ == "__main__":
    main()
