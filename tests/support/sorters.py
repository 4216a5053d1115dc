"""What the tests of sorters share: pages, records and orders."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from operator import itemgetter
from typing import Any

from keyedstate import types
from keyedstate.memory import MemoryManager, MemorySegment
from keyedstate.memory.sorting.normalized_key_sorter import NormalizedKeySorter
from keyedstate.types.orders import RecordOrder

PAGE = 32 * 1024
#: An int key and a string, as in Flink's tests.
PAIR: Any = types.tuple_of(types.INT32, types.STRING)
BY_KEY: RecordOrder[Any] = RecordOrder(PAIR, itemgetter(0), types.INT32)
BY_TEXT: RecordOrder[Any] = RecordOrder(PAIR, itemgetter(1), types.STRING)


def pages(number: int, page_bytes: int = PAGE) -> list[MemorySegment]:
    return MemoryManager(number * page_bytes, page_bytes).allocate_pages("a test", number)


def random_pairs(seed: int, longest: int = 20, prefix: str = "") -> Iterator[tuple[int, str]]:
    """Yield pairs without an end."""
    draw = random.Random(seed)
    for _ in count():
        text = prefix + "".join(draw.choices("abcdefgh", k=draw.randrange(longest)))
        yield draw.randrange(-(2**31), 2**31), text


def taken(source: Iterator[Any], number: int) -> list[Any]:
    return [next(source) for _ in range(number)]


def filled(sorter: NormalizedKeySorter[Any], source: Iterator[Any]) -> list[Any]:
    """Write records until the pages are used up, and return those that were written."""
    records: list[Any] = []
    while True:
        chunk = taken(source, 5000)
        written = sorter.write_many(chunk)
        records += chunk[:written]
        if written < len(chunk):
            return records
