"""Records over pages: values split at a page's end, full sources, random access, every type of serializer."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyedstate import types
from keyedstate.errors import CorruptDataError, FreedSegmentError
from keyedstate.memory import (
    DataInputView,
    DataOutputView,
    ListedPages,
    ManagedPages,
    MemoryManager,
    PagedInputView,
    PagedOutputView,
    PageSource,
    SegmentKind,
    heap_segment,
    off_heap_segment,
)
from keyedstate.testing.contract.suites.golden import TYPES, pandas_types, same

PAGE = 4096
WINDOW = types.TimeWindow(1, 2**40)
#: A type and a value of each serializer.
CORPUS: dict[str, tuple[types.TypeSerializer[Any], Any]] = {
    **TYPES,
    **pandas_types(),
    "short string": (types.STRING, "abc"),
    "nullable": (types.nullable(types.STRING), None),
    "void": (types.VOID, types.VOID_NAMESPACE),
    "time_window": (types.TIME_WINDOW, WINDOW),
    "global_window": (types.GLOBAL_WINDOW_TYPE, types.GLOBAL_WINDOW),
    "accumulators": (types.accumulators_of({"count": types.nullable(types.INT64)}), (7,)),
    "ttl": (types.TtlSerializer(types.STRING, "processing-time"), (1_700_000_000_000, "a")),
    "ttl-list": (types.TtlListSerializer(types.INT64, "event time"), types.TimedList.of([1, 2], [3, 4])),
    "ttl-map": (
        types.TtlMapSerializer(types.INT64, types.STRING, "event time"),
        types.TimedDict.of({1: "a", 2: None}, {1: 3, 2: 4}),
    ),
}


def pages_of(count: int) -> ListedPages:
    """Return heap and off-heap pages in turn."""
    return ListedPages([heap_segment(PAGE) if n % 2 else off_heap_segment(PAGE) for n in range(count)])


def written(position: int, pages: int = 8) -> PagedOutputView:
    """Return a view at a position behind zeros."""
    out = PagedOutputView(pages_of(pages))
    out.write(bytes(position))
    assert out.commit()
    return out


def read(out: PagedOutputView, position: int = 0) -> PagedInputView:
    source = PagedInputView(out.pages, out.size)
    source.seek(position)
    return source


@pytest.mark.parametrize("before", range(9))
def test_a_long_across_the_end_of_a_page_is_split_bytewise(before: int) -> None:
    """MEM-04: big-endian, in the last bytes of one page and the first of the next."""
    value = 0x0102030405060708
    out = written(PAGE - before)
    out.write_long(value)
    assert out.commit()
    data = bytes(range(1, 9))
    assert out.pages[0].get(PAGE - before, before) == data[:before]
    if before < 8:
        assert out.pages[1].get(0, 8 - before) == data[before:]
    assert read(out, PAGE - before).read_long() == value


def test_a_view_exactly_at_the_end_of_a_page_advances_with_the_next_byte() -> None:
    """MEM-04."""
    out = written(PAGE)
    assert (len(out.pages), out.position, out.size) == (1, PAGE, PAGE)
    out.write_byte(1)
    assert out.commit()
    assert (len(out.pages), out.pages[1].get_byte(0)) == (2, 1)
    source = read(out, PAGE - 1)
    assert (source.read_byte(), source.position, source.read_byte(), source.remaining) == (0, PAGE, 1, 0)


READS: dict[str, Callable[[DataInputView], Any]] = {
    name: getattr(DataInputView, f"read_{name}")
    for name in (
        *("boolean", "byte", "unsigned_byte", "short", "int", "long", "float", "double"),
        *("bytes", "utf", "count", "var_int"),
    )
}


@pytest.mark.parametrize("name", READS)
def test_a_read_beyond_the_end_raises_end_of_data(name: str) -> None:
    """MEM-04: also where the page has more bytes."""
    for size in (0, PAGE - 1, PAGE, PAGE + 1):
        out = written(size)
        source = read(out, size)
        with pytest.raises(CorruptDataError) as raised:
            getattr(source, f"read_{name}")()
        assert (source.position, raised.value.position, source.peek(10)) == (size, size, b"")
    with pytest.raises(CorruptDataError, match="2 bytes wanted, 1 left"):
        read(out, PAGE).read(2)
    with pytest.raises(CorruptDataError):
        read(out, PAGE).skip(2)


WRITES: list[tuple[str, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("byte", st.integers(-128, 127)),
    ("short", st.integers(-(2**15), 2**15 - 1)),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=PAGE * 2)),
    ("utf", st.text(st.characters(exclude_categories=["Cs"]), max_size=300)),
    ("var_int", st.integers(0, 2**32 - 1)),
]
VALUES = st.sampled_from(WRITES).flatmap(lambda one: st.tuples(st.just(one[0]), one[1]))


@given(st.lists(VALUES, max_size=40), st.integers(0, PAGE), st.randoms(use_true_random=False))
def test_values_over_pages_are_those_of_a_plain_view(values: list[Any], start: int, random: Any) -> None:
    """MEM-04: the bytes of the pages, and what is read in order and by position."""
    out, plain = PagedOutputView(pages_of(40)), DataOutputView()
    starts = []
    for view in (out, plain):
        view.write(bytes(start))
    for name, value in values:
        starts.append(out.position)
        for view in (out, plain):
            getattr(view, f"write_{name}")(value)
        if random.random() < 0.5:
            assert out.commit()
    assert out.to_bytes() == plain.to_bytes()
    assert out.commit()
    assert out.to_bytes() == plain.to_bytes() == b"".join(page.get(0, PAGE) for page in out.pages)[: out.size]
    source = read(out, start)
    assert [getattr(source, f"read_{name}")() for name, _ in values] == [value for _, value in values]
    assert source.remaining == 0
    order = list(range(len(values)))
    random.shuffle(order)
    for index in order:
        source.seek(starts[index])
        name, value = values[index]
        assert getattr(source, f"read_{name}")() == value


@pytest.mark.parametrize("name", CORPUS)
def test_a_value_of_each_type_survives_every_split_between_pages(name: str) -> None:
    """MEM-04."""
    serializer, value = CORPUS[name]
    data = serializer.to_bytes(value)
    for before in range(len(data) + 1):
        out = written(PAGE - before)
        serializer.serialize(value, out)
        assert out.commit()
        source = read(out, PAGE - before)
        assert source.peek(len(data)) == data
        assert same(serializer.deserialize(source), value)
        assert source.remaining == 0


def test_the_corpus_has_every_serializer() -> None:
    def names(serializer: types.TypeSerializer[Any]) -> Iterator[str]:
        yield serializer.type_name
        for part in serializer.parts():
            for inner in part if isinstance(part, (tuple, list)) else [part]:
                if isinstance(inner, types.TypeSerializer):
                    yield from names(inner)

    def classes(cls: type[Any]) -> Iterator[type[Any]]:
        yield cls
        for derived in cls.__subclasses__():
            yield from classes(derived)

    known = {
        cls.type_name
        for cls in classes(types.TypeSerializer)
        if cls.__module__.startswith("keyedstate.types") and hasattr(cls, "type_name")
    }
    assert known - {name for serializer, _ in CORPUS.values() for name in names(serializer)} == set()


def test_a_value_larger_than_several_pages_is_written_and_read() -> None:
    text = "ab\U0001f600" * 5000
    out = PagedOutputView(pages_of(20))
    types.STRING.serialize(text, out)
    assert out.commit()
    assert len(out.pages) == -(-out.size // PAGE) > 9
    assert types.STRING.deserialize(read(out)) == text


@pytest.mark.parametrize("source", ["listed", "managed"])
def test_a_record_that_does_not_fit_is_undone_and_the_earlier_ones_stay(source: str) -> None:
    manager = MemoryManager(3 * PAGE, PAGE)
    pages: PageSource = (
        pages_of(3) if source == "listed" else ManagedPages(manager, "sorter", SegmentKind.OFF_HEAP)
    )
    out = PagedOutputView(pages)
    record, count = b"x" * 1000, 0
    while True:
        out.write_int(count)
        out.write(record)
        if not out.commit():
            break
        count += 1
    assert (count, out.position, out.size, len(out.pages)) == (12, 12 * 1004, 12 * 1004, 3)
    out.write(bytes(3 * PAGE - out.size))
    assert out.commit(), "a smaller one still fits"
    out.write_byte(1)
    assert not out.commit()
    found = read(out)
    assert [(found.read_int(), found.read(1000)) for _ in range(count)] == [(n, record) for n in range(count)]
    manager.release_all("sorter")
    manager.close()


def test_a_record_that_needs_more_pages_than_are_left_takes_none() -> None:
    pages = pages_of(3)
    out = PagedOutputView(pages)
    out.write(bytes(PAGE))
    assert out.commit()
    out.write(bytes(3 * PAGE))
    assert not out.commit()
    assert (len(pages), len(out.pages)) == (2, 1)


def test_a_record_is_undone_when_its_serializer_raises() -> None:
    out = written(10)
    with pytest.raises(Exception, match="expected"):
        types.tuple_of(types.INT64, types.INT64).serialize((1, "no number"), out)  # type: ignore[arg-type]
    assert out.position > 10
    out.rollback()
    assert out.position == out.size == 10
    types.INT64.serialize(5, out)
    assert out.commit()
    assert types.INT64.deserialize(read(out, 10)) == 5


def test_committed_bytes_can_be_overwritten_by_position() -> None:
    out = written(2 * PAGE)
    out.seek(PAGE - 2)
    out.write_int(-1)
    assert (out.position, out.to_bytes()[PAGE - 3 : PAGE + 3]) == (PAGE + 2, b"\0\xff\xff\xff\xff\0")
    assert out.commit()
    assert (out.position, out.size) == (PAGE + 2, 2 * PAGE)
    out.seek(2 * PAGE)
    out.write_byte(1)
    assert out.commit()
    assert (out.size, read(out, PAGE - 2).read_int(), read(out, 2 * PAGE).read_byte()) == (
        2 * PAGE + 1,
        -1,
        1,
    )


def test_a_position_outside_of_the_bytes_and_uncommitted_bytes_are_refused() -> None:
    out = written(10)
    for view in (out, read(out)):
        for position in (-1, 11):
            with pytest.raises(ValueError, match=f"position {position} is not within 0 and 10"):
                view.seek(position)
    out.write_byte(1)
    with pytest.raises(ValueError, match="1 bytes are not committed"):
        out.seek(0)
    with pytest.raises(ValueError, match="not within"):
        PagedInputView(out.pages, PAGE + 1)


def test_a_cleared_view_takes_the_same_records_into_the_same_pages() -> None:
    pages = pages_of(2)
    out = PagedOutputView(pages)
    for _ in range(2):
        for number in range(1024):
            out.write_long(number)
            assert out.commit()
        out.write_byte(0)
        assert not out.commit()
        source = read(out)
        assert [source.read_long() for _ in range(1024)] == list(range(1024))
        out.clear()
        assert (out.position, out.size, out.to_bytes()) == (0, 0, b"")
    assert (len(out.pages), len(pages)) == (2, 0)


def test_nothing_is_read_from_an_empty_view() -> None:
    out = PagedOutputView(pages_of(1))
    assert out.commit() and out.pages == []
    with pytest.raises(CorruptDataError):
        read(out).read_byte()
    assert read(out).read(0) == b""


def test_a_freed_page_is_neither_read_nor_written() -> None:
    manager = MemoryManager(4 * PAGE, PAGE)
    out = PagedOutputView(ManagedPages(manager, "sorter"))
    out.write(struct.pack(">4q", 1, 2, 3, 4))
    assert out.commit()
    source = read(out)
    manager.release_all("sorter")
    for access in (
        source.read_long,
        source.read_byte,
        source.read_bytes,
        lambda: source.peek(1),
        out.to_bytes,
    ):
        with pytest.raises(FreedSegmentError):
            access()
    out.write_byte(1)
    with pytest.raises(FreedSegmentError):
        out.commit()


def test_pages_of_several_sizes_are_refused() -> None:
    pages = [heap_segment(PAGE), heap_segment(2 * PAGE)]
    for make in (ListedPages, lambda pages: PagedInputView(pages, 1), ListedPages(pages[:1]).give_back):
        with pytest.raises(ValueError, match=r"these have \[4096, 8192\] bytes"):
            make(pages)


def test_pages_that_are_given_back_can_be_taken_again() -> None:
    pages = pages_of(3)
    taken = pages.take(2)
    assert (len(taken), len(pages), pages.take(2)) == (2, 1, [])
    pages.give_back(taken)
    taken = pages.take(3)
    assert len(taken) == 3
    pages.give_back([])
    with pytest.raises(ValueError, match="pages of 8192 bytes, and the others have 4096"):
        pages.give_back([heap_segment(2 * PAGE)])
    pages.give_back(taken)
    assert len(pages) == 3
