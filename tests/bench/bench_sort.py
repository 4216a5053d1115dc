"""The sorters against Python's ``sorted`` and pyarrow's ``sort_indices``, in turns, in one run.

    python tests/bench/bench_sort.py [--records N] [--rounds N] [--only PART]

- rows: serialized records in pages, against ``sorted`` over a list of the same bytes.  "sort" is the sort of
  records that were written; "write, sort, read" begins and ends with Python objects, which ``sorted`` gets;
- columns: the places of sorted rows from the normalized keys of a column, keys included, against
  ``sort_indices``;
- shapes: input that is sorted, descending or equal, against random input;
- external: the external sorter with a fifth of the memory that the records take, against one that has enough.

Times are medians of the rounds.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from measuring import medians

from keyedstate import types
from keyedstate.memory import MemoryManager
from keyedstate.memory.sorting.external_sorter import ExternalSorter
from keyedstate.memory.sorting.fixed_length_sorter import FixedLengthSorter
from keyedstate.memory.sorting.index_sort import sorted_places
from keyedstate.memory.sorting.normalized_key_sorter import NormalizedKeySorter
from keyedstate.types.orders import ColumnOrder, RecordOrder

_PAGE = 32 * 1024
PAIR: Any = types.tuple_of(types.INT64, types.STRING)
KEY, TEXT = itemgetter(0), itemgetter(1)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def line(what: str, figure: float, floor: float, asked: str = "") -> None:
    sys.stdout.write(
        f"{what:40} {figure * 1e3:9.1f} ms {floor * 1e3:9.1f} ms {figure / floor:7.2f} {asked}\n"
    )


def rows(count: int, rounds: int) -> None:
    """Print the lines of serialized records."""
    draw = random.Random(1)
    pairs = [(draw.randrange(-(2**63), 2**63), f"customer-{draw.randrange(count):08}") for _ in range(count)]
    texts = [(number & 1023, text) for number, text in pairs]
    number_of = Struct(">q").unpack_from
    cases: list[tuple[str, list[Any], RecordOrder[Any], Any, Any]] = [
        ("by a number", pairs, RecordOrder(PAIR, KEY, types.INT64), KEY, number_of),
        # As fast as sorted gets: the bytes themselves.
        ("by their bytes", [PAIR.to_bytes(pair) for pair in pairs], RecordOrder(types.BYTES), None, None),
        # All have a common prefix: each record is deserialized.
        ("by a string", texts, RecordOrder(PAIR, TEXT, types.STRING), TEXT, lambda row: row[9:]),
    ]
    for name, records, order, key, key_of_bytes in cases:
        data = order.serialize(records) if key is not None else records
        pages = -(-(sum(map(len, data)) + count * 32) // _PAGE) + 64
        memory = MemoryManager(pages * _PAGE).allocate_pages("the benchmark", pages)
        sorter = NormalizedKeySorter(order, memory)

        def sort(sorter: Any = sorter, records: Any = records) -> float:
            sorter.reset()
            assert sorter.write_many(records) == len(records)
            return seconds(sorter.sort)

        def whole(sorter: Any = sorter, records: Any = records) -> None:
            sorter.reset()
            sorter.write_many(records)
            sorter.sort()
            list(sorter)

        found = medians(
            {
                "sorted of bytes": lambda data=data, key=key_of_bytes: seconds(lambda: sorted(data, key=key)),
                "sort": sort,
                "sorted": lambda records=records, key=key: seconds(lambda: sorted(records, key=key)),
                "whole": lambda whole=whole: seconds(whole),
            },
            rounds,
        )
        asked = "" if name == "by a string" else "at most 0.50"
        line(f"{name}: sort", found["sort"], found["sorted of bytes"], asked)
        line(f"{name}: write, sort, read", found["whole"], found["sorted"])
    fixed = FixedLengthSorter(
        RecordOrder(types.INT64),
        MemoryManager(count * 32).allocate_pages("the benchmark", count * 17 // _PAGE + 3),
        8,
    )
    numbers = [number for number, _ in pairs]
    data = types.INT64.to_bytes_many(numbers)

    def sort_fixed() -> float:
        fixed.reset()
        assert fixed.write_many(numbers) == count
        return seconds(fixed.sort)

    found = medians(
        {"sort": sort_fixed, "sorted": lambda: seconds(lambda: sorted(data, key=number_of))}, rounds
    )
    line("numbers in the index itself: sort", found["sort"], found["sorted"], "at most 0.50")


def columns(count: int, rounds: int) -> None:
    """Print the lines of columns."""
    draw = np.random.default_rng(1)
    wide = draw.integers(-(2**63), 2**63 - 1, count)
    few = draw.integers(0, count, count)
    instants = pa.array(draw.integers(0, 2**50, count)).cast(pa.timestamp("us", "UTC"))
    nulls = draw.random(count) < 0.1
    amounts = pa.array(wide).cast(pa.decimal128(38, 0)).cast(pa.decimal128(38, 2))
    customers = pa.array([f"customer-{one:08}" for one in few.tolist()])
    cases: list[tuple[str, Sequence[types.TypeSerializer[Any]], list[pa.Array]]] = [
        ("int64", [types.INT64], [pa.array(wide)]),
        ("int64, a tenth null", [types.nullable(types.INT64)], [pa.array(wide, mask=nulls)]),
        ("int32", [types.INT32], [pa.array((wide >> 32).astype(np.int32))]),
        ("float64", [types.FLOAT64], [pa.array(draw.normal(size=count))]),
        ("timestamp", [types.TIMESTAMP], [instants]),
        ("decimal(38, 2)", [types.decimal(38, 2)], [amounts]),
        ("short strings", [types.STRING], [pa.array(list(map(str, (few % 10**7).tolist())))]),
        ("strings with a common prefix", [types.STRING], [customers]),
        ("int64 of 1,000 values", [types.INT64], [pa.array(few % 1000)]),
        ("int64, then string", [types.INT64, types.STRING], [pa.array(few % 1000), customers]),
    ]  # fmt: skip
    for name, serializers, arrays in cases:
        table = pa.table({str(place): array for place, array in enumerate(arrays)})
        keys = [(column, "ascending") for column in table.column_names]
        order = ColumnOrder(serializers)

        def ours(order: ColumnOrder = order, arrays: list[pa.Array] = arrays) -> Any:
            return sorted_places(
                order.normalized_keys(arrays),
                lambda tied: order.whole_keys([array.take(pa.array(tied)) for array in arrays]),
            )

        def theirs(table: pa.Table = table, keys: Any = keys) -> Any:
            single = table.column(0).combine_chunks()
            return pc.sort_indices(single) if len(keys) == 1 else pc.sort_indices(table, sort_keys=keys)

        found = medians(
            {
                "theirs": lambda theirs=theirs: seconds(theirs),
                "ours": lambda ours=ours: seconds(ours),
            },
            rounds,
        )
        line(name, found["ours"], found["theirs"], "at most 1.50")


def shapes(count: int, rounds: int) -> None:
    """Print the lines of inputs on which a quick sort can degenerate."""
    draw = np.random.default_rng(1)
    order = ColumnOrder([types.INT64])
    inputs = {
        "random": draw.integers(-(2**63), 2**63 - 1, count),
        "sorted": np.sort(draw.integers(-(2**63), 2**63 - 1, count)),
        "descending": np.sort(draw.integers(-(2**63), 2**63 - 1, count))[::-1].copy(),
        "equal": np.full(count, 7),
        "two far values": np.where(draw.random(count) < 0.5, -(2**63), 2**63 - 1),
    }

    def measure(numbers: Any) -> Callable[[], float]:
        keys = order.normalized_keys([pa.array(numbers)])
        return lambda: seconds(lambda: sorted_places(keys, lambda tied: pa.nulls(0)))

    found = medians({name: measure(numbers) for name, numbers in inputs.items()}, rounds)
    for name in [*inputs][1:]:
        line(name, found[name], found["random"])


def external(count: int, rounds: int) -> None:
    """Print the lines of sorts in a fifth of the memory."""
    draw = random.Random(2)
    pairs = [(draw.randrange(-(2**63), 2**63), "x" * draw.randrange(100)) for _ in range(count)]
    size = sum(len(PAIR.to_bytes(pair)) for pair in pairs)
    order: RecordOrder[Any] = RecordOrder(PAIR, KEY, types.INT64)
    runs = 0

    def measure(memory_bytes: int, fan_in: int) -> float:
        nonlocal runs
        memory = MemoryManager(memory_bytes)
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            with ExternalSorter(order, memory, memory_bytes, Path(folder), fan_in=fan_in) as sorter:
                sorter.write_many(pairs)
                last = -(2**63)
                for key, _ in sorter.sorted():
                    assert key >= last
                    last = key
                runs = sorter.runs
            return time.perf_counter() - began

    found = medians(
        {
            "enough": lambda: measure(10 * size, 128),
            "several passes": lambda: measure(size // 5, 2),
            "a fifth": lambda: measure(size // 5, 128),
            "sorted": lambda: seconds(lambda: sorted(pairs, key=KEY)),
        },
        rounds,
    )
    line(f"a fifth of the memory, {runs} runs", found["a fifth"], found["enough"])
    line("a fifth of the memory, fan-in 2", found["several passes"], found["enough"])
    line("enough memory, against sorted()", found["enough"], found["sorted"])


PARTS = {"rows": rows, "columns": columns, "shapes": shapes, "external": external}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=PARTS)
    arguments = parser.parse_args()
    sys.stdout.write(f"numpy {np.__version__}, pyarrow {pa.__version__}; {arguments.records:,} records\n")
    for name, part in PARTS.items():
        if arguments.only in (None, name):
            sys.stdout.write(f"\n{name:40} {'sorter':>12} {'peer':>12}   ratio\n")
            part(arguments.records, arguments.rounds)


if __name__ == "__main__":
    main()
