"""Segments of every kind: numbers in both byte orders, bytes in bulk, bounds, and accesses after free."""

from __future__ import annotations

import inspect
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyedstate.errors import FreedSegmentError, PageSizeError, SegmentBoundsError
from keyedstate.memory import (
    DEFAULT_PAGE_BYTES,
    MIN_PAGE_BYTES,
    MemorySegment,
    SegmentKind,
    file_segment,
    heap_segment,
    off_heap_segment,
)

KINDS = [kind.value for kind in SegmentKind]
SIZE = MIN_PAGE_BYTES
#: The methods for numbers by the end of their names, with the code of module ``struct``.
WIDTHS = {
    "byte": "b",
    **{
        name + order: sign + code
        for name, code in {"short": "h", "int": "i", "long": "q", "float": "f", "double": "d"}.items()
        for order, sign in {"": ">", "_little_endian": "<"}.items()
    },
}
Make = Callable[..., MemorySegment]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that makes a segment of a kind."""

    def segment(kind: str, size: int = SIZE) -> MemorySegment:
        if kind == "file":
            return file_segment(tmp_path / f"page-{len(list(tmp_path.iterdir()))}", size)
        return heap_segment(size) if kind == "heap" else off_heap_segment(size)

    return segment


def values_of(code: str) -> st.SearchStrategy[Any]:
    bits = 8 * struct.calcsize(code)
    if code[-1] in "fd":
        return st.floats(width=bits, allow_nan=False)  # type: ignore[arg-type]
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_segment_has_its_size_and_zeros(make: Make, kind: str) -> None:
    segment = make(kind, 2 * SIZE)
    assert (segment.size, segment.kind.value, segment.is_freed) == (2 * SIZE, kind, False)
    assert segment.get(0, 2 * SIZE) == bytes(2 * SIZE)


def test_a_segment_has_32_kib_by_default(tmp_path: Path) -> None:
    assert DEFAULT_PAGE_BYTES == 32 * 1024
    for segment in (heap_segment(), off_heap_segment(), file_segment(tmp_path / "page")):
        assert segment.size == DEFAULT_PAGE_BYTES


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, -4096, 1024, 4095, 4097, 12_288])
def test_a_size_that_is_no_power_of_two_from_4_kib_is_refused(make: Make, kind: str, size: int) -> None:
    with pytest.raises(PageSizeError, match=f"{size} bytes.*power of two of at least 4096"):
        make(kind, size)


@pytest.mark.parametrize("width", WIDTHS)
@given(data=st.data())
def test_a_number_has_the_bytes_of_its_width_and_order(width: str, data: st.DataObject) -> None:
    code = WIDTHS[width]
    bytes_ = struct.calcsize(code)
    segment = off_heap_segment(SIZE)
    value = data.draw(values_of(code))
    offset = data.draw(st.integers(0, SIZE - bytes_))
    getattr(segment, f"put_{width}")(offset, value)
    assert getattr(segment, f"get_{width}")(offset) == value
    expected = bytearray(SIZE)
    struct.pack_into(code, expected, offset, value)
    assert segment.get(0, SIZE) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_number_out_of_bounds_is_refused_and_nothing_is_written(make: Make, kind: str, width: str) -> None:
    segment = make(kind)
    bytes_ = struct.calcsize(WIDTHS[width])
    for offset in (-1, -bytes_, SIZE - bytes_ + 1, SIZE, 2**70):
        with pytest.raises(SegmentBoundsError):
            getattr(segment, f"get_{width}")(offset)
        with pytest.raises(SegmentBoundsError, match=f"{bytes_} bytes at offset {offset} are not within"):
            getattr(segment, f"put_{width}")(offset, 1)
    getattr(segment, f"put_{width}")(SIZE - bytes_, 1)
    assert getattr(segment, f"get_{width}")(SIZE - bytes_) == 1
    assert segment.get(0, SIZE - bytes_) == bytes(SIZE - bytes_)


@pytest.mark.parametrize("width", [width for width in WIDTHS if WIDTHS[width][-1] not in "fd"])
def test_a_number_beyond_its_width_is_refused(width: str) -> None:
    segment = heap_segment(SIZE)
    with pytest.raises(struct.error):
        getattr(segment, f"put_{width}")(8, 2 ** (8 * struct.calcsize(WIDTHS[width]) - 1))
    assert segment.get(0, 8) + segment.get(16, 8) == bytes(16)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_written_and_read_in_bulk(make: Make, kind: str) -> None:
    segment = make(kind)
    for data in (b"abc", bytearray(b"abc"), memoryview(b"abc"), np.frombuffer(b"abc", "u1").data):
        segment.put(SIZE - 3, data)
        assert segment.get(SIZE - 3, 3) == b"abc"
    segment.put(4, memoryview(np.array([1, 2], ">i4")))
    assert (segment.get_int(4), segment.get_int(8)) == (1, 2)
    segment.put(SIZE, b"")
    assert segment.get(SIZE, 0) == b""


@pytest.mark.parametrize("kind", KINDS)
def test_a_bulk_access_out_of_bounds_is_refused(make: Make, kind: str) -> None:
    segment, other = make(kind), make("heap")
    for offset, size in [(-1, 1), (SIZE, 1), (SIZE - 1, 2), (0, SIZE + 1), (0, -1), (SIZE + 1, 0)]:
        accesses: list[Callable[[int, int], Any]] = [
            segment.get,
            lambda offset, size: segment.copy_to(offset, other, 0, size),
            lambda offset, size: other.copy_to(0, segment, offset, size),
            lambda offset, size: segment.compare(other, offset, 0, size),
            lambda offset, size: other.compare(segment, 0, offset, size),
            lambda offset, size: segment.equal_to(other, offset, 0, size),
            lambda offset, size: segment.swap(other, offset, 0, size),
            lambda offset, size: other.swap(segment, 0, offset, size),
        ]
        for access in accesses:
            with pytest.raises(SegmentBoundsError):
                access(offset, size)
        if size > 0:
            with pytest.raises(SegmentBoundsError):
                segment.put(offset, b"x" * size)
    assert segment.get(0, SIZE) == other.get(0, SIZE) == bytes(SIZE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other_kind", KINDS)
def test_bytes_are_copied_and_swapped_between_kinds(make: Make, kind: str, other_kind: str) -> None:
    segment, other = make(kind), make(other_kind)
    segment.put(10, b"left")
    segment.copy_to(10, other, 20, 4)
    assert (segment.get(10, 4), other.get(20, 4)) == (b"left", b"left")
    assert segment.equal_to(other, 10, 20, 4) and not segment.equal_to(other, 10, 21, 4)
    other.put(20, b"more")
    segment.swap(other, 10, 20, 4)
    assert (segment.get(10, 4), other.get(20, 4)) == (b"more", b"left")
    assert (segment.get(9, 1), segment.get(14, 1), other.get(19, 1), other.get(24, 1)) == (b"\0",) * 4


@pytest.mark.parametrize("kind", KINDS)
def test_ranges_of_one_segment_may_overlap_when_copied_and_not_when_swapped(make: Make, kind: str) -> None:
    segment = make(kind)
    segment.put(0, b"abcdef")
    segment.copy_to(0, segment, 2, 6)
    assert segment.get(0, 8) == b"ababcdef"
    segment.copy_to(2, segment, 0, 6)
    assert segment.get(0, 8) == b"abcdefef"
    with pytest.raises(ValueError, match="overlap"):
        segment.swap(segment, 0, 1, 2)
    segment.swap(segment, 0, 2, 2)
    assert segment.get(0, 8) == b"cdabefef"


@given(st.binary(min_size=1, max_size=20), st.binary(min_size=1, max_size=20), st.integers(0, 20))
def test_segments_are_compared_as_unsigned_bytes(left: bytes, right: bytes, shared: int) -> None:
    """MEM-04: the first byte that differs decides, from 0x00 to 0xff."""
    size = min(len(left), len(right))
    one, other = heap_segment(SIZE), off_heap_segment(SIZE)
    one.put(0, b"\xff" * shared + left)
    other.put(100, b"\xff" * shared + right)
    expected = (left[:size] > right[:size]) - (left[:size] < right[:size])
    assert one.compare(other, 0, 100, shared + size) == expected
    assert other.compare(one, 100, 0, shared + size) == -expected
    assert one.equal_to(other, 0, 100, shared + size) is (expected == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_access_after_free_raises(make: Make, kind: str) -> None:
    segment, alive = make(kind), make("heap")
    segment.free()
    segment.free()
    assert segment.is_freed
    arguments: dict[str, tuple[Any, ...]] = {
        "copy_to": (0, alive, 0, 1),
        "swap": (alive, 0, 0, 1),
        "compare": (alive, 0, 0, 1),
        "equal_to": (alive, 0, 0, 1),
        "get": (0, 0),
        "put": (0, b""),
    }
    for name, method in inspect.getmembers(MemorySegment, inspect.isfunction):
        if name.startswith("_") or name == "free":
            continue
        given_ = arguments.get(name, (0, 1)[: len(inspect.signature(method).parameters) - 1])
        with pytest.raises(FreedSegmentError, match=f"of {SIZE} bytes is used after it was freed"):
            method(segment, *given_)
        if name in ("copy_to", "swap", "compare", "equal_to"):
            swapped = (0, segment, 0, 1) if name == "copy_to" else (segment, 0, 0, 1)
            with pytest.raises(FreedSegmentError):
                method(alive, *swapped)
    with pytest.raises(FreedSegmentError):
        _ = segment.view
    assert alive.get(0, SIZE) == bytes(SIZE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_view_is_the_memory_itself_until_the_segment_is_freed(make: Make, kind: str) -> None:
    segment = make(kind)
    view = segment.view
    view[1] = 7
    assert segment.get_byte(1) == 7 and len(view) == SIZE
    segment.free()
    with pytest.raises(ValueError, match="released"):
        view[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_slice_or_an_array_of_a_view_outlives_the_segment(make: Make, kind: str) -> None:
    segment = make(kind)
    part, array = segment.view[:4], np.frombuffer(segment.view, "u1")
    part[0] = 1
    segment.free()
    assert (part[0], array[0]) == (1, 1)


def test_a_file_keeps_what_was_written_and_its_other_bytes(tmp_path: Path) -> None:
    path = tmp_path / "page"
    path.write_bytes(b"before" + bytes(2 * SIZE))
    segment = file_segment(path, SIZE)
    assert segment.get(0, 6) == b"before"
    segment.put_long(8, 42)
    segment.free()
    again = file_segment(path, SIZE)
    assert (again.get_long(8), path.stat().st_size) == (42, 2 * SIZE + 6)


def test_a_file_is_made_or_extended_and_belongs_to_its_user(tmp_path: Path) -> None:
    made, short = tmp_path / "made", tmp_path / "short"
    short.write_bytes(b"abc")
    assert file_segment(os.fspath(made), SIZE).get(0, SIZE) == bytes(SIZE)
    assert file_segment(short, SIZE).get(0, SIZE) == b"abc" + bytes(SIZE - 3)
    assert [path.stat().st_size for path in (made, short)] == [SIZE, SIZE]
    assert stat.S_IMODE(made.stat().st_mode) == 0o600


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no-folder"):
        file_segment(tmp_path / "no-folder" / "page")


def test_an_off_heap_page_of_a_forked_process_is_its_own() -> None:
    segment = off_heap_segment(SIZE)
    child = os.fork()
    if child == 0:
        segment.put_byte(0, 1)
        os._exit(0)
    os.waitpid(child, 0)
    assert segment.get_byte(0) == 0
