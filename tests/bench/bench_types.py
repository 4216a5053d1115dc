"""Columnar conversion of the types against pyarrow's own, in one run.

    python tests/bench/bench_types.py [--values N]

For every type the time of `to_arrow` over that of ``pyarrow.array``, and of `from_arrow` over that of
``to_pylist``, on the same values.  Times are the best of five; a garbage collection pause hits both sides.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from keyedstate import types
from keyedstate.types import TypeSerializer

_EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
_ROUNDS = 5


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
        (types.tuple_of(types.STRING, types.INT64), [(f"key-{index}", index) for index in fifth]),
        (types.list_of(types.INT64), [[index, index + 1, index + 2] for index in fifth]),
        (types.map_of(types.STRING, types.INT64), [{"views": index, "clicks": 1} for index in fifth]),
    ]


def as_pyarrow_takes_it(value: Any) -> Any:
    """Return the form of a value that ``pyarrow.array`` converts by itself."""
    if isinstance(value, tuple):
        return {f"f{index}": element for index, element in enumerate(value)}
    return list(value.items()) if isinstance(value, dict) else value


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
    theirs = list(map(as_pyarrow_takes_it, values))
    array = serializer.to_arrow(values)
    write_floor = best_of(lambda: pa.array(theirs, serializer.arrow_type))
    write = best_of(lambda: serializer.to_arrow(values))
    read_floor = best_of(array.to_pylist)
    read = best_of(lambda: serializer.from_arrow(array))
    nanos = 1e9 / len(values)
    return (
        f"{serializer!r:28} {write_floor * nanos:9.0f} {write * nanos:9.0f} {write / write_floor:7.2f}"
        f" {read_floor * nanos:10.0f} {read * nanos:10.0f} {read / read_floor:7.2f}\n"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--values", type=int, default=1_000_000, help="values of the simple types (default: %(default)s)"
    )
    count = parser.parse_args().values
    sys.stdout.write(f"pyarrow {pa.__version__}; ns per value\n")
    sys.stdout.write(f"{'type':28}  pa.array  to_arrow   ratio  to_pylist from_arrow   ratio\n")
    for serializer, values in columns(count):
        sys.stdout.write(measure(serializer, values))


if __name__ == "__main__":
    main()
