"""Pages, segments and views against what they are made of.

    python tests/bench/bench_memory.py [--records N]

The measures of a group run in turn, and each ratio is one of two medians.  A record is a tuple of a long, a
string and a double; the pages have 32 KiB.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from struct import Struct

from measuring import medians

from keyedstate import types
from keyedstate.memory import (
    DEFAULT_PAGE_BYTES,
    DataInputView,
    DataOutputView,
    ListedPages,
    MemoryManager,
    PagedInputView,
    PagedOutputView,
    SegmentKind,
    heap_segment,
)

_LONG = Struct(">q")
_ROUNDS = 15


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """Return a measure: the seconds that the work takes in this thread."""

    def measure() -> float:
        began = time.thread_time()
        work()
        return time.thread_time() - began

    return measure


def view_measures(records: int) -> dict[str, Callable[[], object]]:
    record = types.tuple_of(types.INT64, types.STRING, types.FLOAT64)
    values = [(number, f"customer-{number:08}", number / 7) for number in range(records)]
    plain, pages = DataOutputView(), [heap_segment() for _ in range(2 + records * 40 // DEFAULT_PAGE_BYTES)]
    for value in values:
        record.serialize(value, plain)
    data = plain.to_bytes()
    paged = PagedOutputView(ListedPages(pages))

    def write_plain() -> None:
        plain.clear()
        for value in values:
            record.serialize(value, plain)

    def write_paged() -> None:
        paged.clear()
        for value in values:
            record.serialize(value, paged)
            assert paged.commit()

    def read(source: DataInputView) -> None:
        while source.remaining:
            record.deserialize(source)

    write_paged()
    assert paged.to_bytes() == data
    return {
        "write a record to a plain view": write_plain,
        "write and commit it to pages": write_paged,
        "read a record from a plain view": lambda: read(DataInputView(data)),
        "read it from pages": lambda: read(PagedInputView(paged.pages, paged.size)),
    }


def segment_measures(numbers: int) -> dict[str, Callable[[], object]]:
    segment, memory = heap_segment(), bytearray(DEFAULT_PAGE_BYTES)

    def unpack() -> None:
        for _ in range(numbers):
            _LONG.unpack_from(memory, 80)

    def get_long() -> None:
        for _ in range(numbers):
            segment.get_long(80)

    return {"unpack a long": unpack, "get it with bounds checked": get_long}


def page_measures(count: int, kind: SegmentKind) -> dict[str, Callable[[], object]]:
    pooled = MemoryManager(count * DEFAULT_PAGE_BYTES)
    content = bytes(DEFAULT_PAGE_BYTES)

    def use(manager: MemoryManager) -> None:
        pages = manager.allocate_pages("bench", count, kind=kind)
        for page in pages:
            page.put(0, content)
        manager.release(pages)

    def new() -> None:
        use(MemoryManager(count * DEFAULT_PAGE_BYTES))

    return {
        f"fill a new {kind.value} page": new,
        f"fill one of the {kind.value} pool": lambda: use(pooled),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=20_000)
    records = parser.parse_args().records
    groups = [(view_measures(records), records), (segment_measures(10 * records), 10 * records)]
    groups += [(page_measures(500, kind), 500) for kind in (SegmentKind.HEAP, SegmentKind.OFF_HEAP)]
    print(f"{'':36} {'median':>10}  ratio to the line above")
    for measures, operations in groups:
        found = medians({name: timed(work) for name, work in measures.items()}, _ROUNDS)
        for index, (name, seconds) in enumerate(found.items()):
            ratio = seconds / list(found.values())[index - 1] if index % 2 else None
            shown = "" if ratio is None else f"{ratio:.2f}"
            print(f"{name:36} {seconds / operations * 1e9:7,.0f} ns  {shown}")


if __name__ == "__main__":
    main()
