"""Pages of memory with bounds checks: on the heap, outside of it, or mapped from a file.

They correspond to Flink's ``MemorySegment``.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
import os
from collections.abc import Callable
from struct import Struct
from typing import Final, TypeAlias, TypeVar, cast

from keyedstate.errors import FreedSegmentError, PageSizeError, SegmentBoundsError

DEFAULT_PAGE_BYTES: Final = 32 * 1024
MIN_PAGE_BYTES: Final = 4 * 1024

#: What the bytes of a segment are in.
Memory: TypeAlias = bytearray | mmap.mmap
N = TypeVar("N", int, float)


class SegmentKind(enum.Enum):
    """Where the bytes of a segment are."""

    HEAP = "heap"  # A bytearray
    OFF_HEAP = "off-heap"  # An anonymous mmap
    FILE = "file"  # An mmap of a file


def _number(
    kind: type[N], code: str
) -> tuple[Callable[[MemorySegment, int], N], Callable[[MemorySegment, int, N], None]]:
    """Return the methods that read and write a number with a code of module ``struct``."""
    # Bound once: no access looks up a method of a struct.
    layout = Struct(code)
    size, pack = layout.size, layout.pack_into
    unpack: Callable[[memoryview, int], tuple[N]] = layout.unpack_from

    def get(self: MemorySegment, offset: int) -> N:
        """Return the number at an offset."""
        if not 0 <= offset <= self._end - size:
            raise self._fault(offset, size)
        return unpack(self._memory, offset)[0]

    def put(self: MemorySegment, offset: int, value: N) -> None:
        """Write a number at an offset."""
        if not 0 <= offset <= self._end - size:
            raise self._fault(offset, size)
        pack(self._memory, offset, value)

    return get, put


class MemorySegment:
    """A page of bytes; equality is identity.

    ``get_int(offset)`` returns the number at a byte offset, and ``put_int(offset, value)`` writes it.  Signed
    numbers are a ``byte``, ``short``, ``int`` or ``long`` of 8 to 64 bits, IEEE 754 numbers a ``float`` or
    ``double`` of 32 and 64 bits.  Numbers are big-endian unless the name ends with ``_little_endian``.

    Attributes
    ----------
    size : int
        In bytes.

    Parameters
    ----------
    memory : bytearray or mmap
        Its length is the size: a power of two of at least `MIN_PAGE_BYTES`.

    Raises
    ------
    PageSizeError
        For another length.
    FreedSegmentError
        From every access after `free`.
    SegmentBoundsError
        From every access to bytes outside of the segment; nothing is read or written then.
    struct.error
        From every method that puts a number, for one beyond its width; its bytes are undefined then.
    """

    __slots__ = ("_end", "_memory", "_shown", "kind", "size")

    def __init__(self, memory: Memory, kind: SegmentKind) -> None:
        self.kind = kind
        self.size = check_page_size(len(memory))
        self._memory = memoryview(memory)
        # The size, and -1 after `free`: one comparison finds accesses out of bounds and after that.
        self._end = self.size
        self._shown = False

    def __repr__(self) -> str:
        freed = ", freed" if self.is_freed else ""
        return f"<MemorySegment of {self.size} bytes, {self.kind.value}{freed}>"

    @property
    def is_freed(self) -> bool:
        """Whether the segment was freed."""
        return self._end < 0

    @property
    def view(self) -> memoryview:
        """The bytes of the segment, writable.

        After `free` the view raises ValueError.  A slice or an array of it keeps the memory alive and raises
        nothing; the memory is then never used for another segment.
        """
        self._part(0, 0)
        self._shown = True
        return self._memory

    get_byte, put_byte = _number(int, "b")
    get_short, put_short = _number(int, ">h")
    get_short_little_endian, put_short_little_endian = _number(int, "<h")
    get_int, put_int = _number(int, ">i")
    get_int_little_endian, put_int_little_endian = _number(int, "<i")
    get_long, put_long = _number(int, ">q")
    get_long_little_endian, put_long_little_endian = _number(int, "<q")
    get_float, put_float = _number(float, ">f")
    get_float_little_endian, put_float_little_endian = _number(float, "<f")
    get_double, put_double = _number(float, ">d")
    get_double_little_endian, put_double_little_endian = _number(float, "<d")

    def get(self, offset: int, size: int) -> bytes:
        """Return a copy of `size` bytes at an offset."""
        return self._part(offset, size).tobytes()

    def put(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write bytes at an offset; a memoryview must be contiguous."""
        source = data.cast("B") if isinstance(data, memoryview) else data
        self._part(offset, len(source))[:] = source

    def copy_to(self, offset: int, target: MemorySegment, target_offset: int, size: int) -> None:
        """Copy bytes to a segment of any kind; the ranges may overlap in one segment."""
        source = self._part(offset, size)
        target._part(target_offset, size)[:] = source

    def swap(self, other: MemorySegment, offset: int, other_offset: int, size: int) -> None:
        """Exchange bytes with a segment of any kind.

        Raises
        ------
        ValueError
            Where the ranges overlap in one segment.
        """
        mine, theirs = self._part(offset, size), other._part(other_offset, size)
        if other is self and 0 < abs(offset - other_offset) < size:
            raise ValueError(f"{size} bytes at {offset} and at {other_offset} overlap and cannot be swapped")
        mine[:], theirs[:] = theirs.tobytes(), mine.tobytes()

    def compare(self, other: MemorySegment, offset: int, other_offset: int, size: int) -> int:
        """Return -1, 0 or 1: the first byte that differs decides, as a number without sign."""
        mine, theirs = self.get(offset, size), other.get(other_offset, size)
        return (mine > theirs) - (mine < theirs)

    def equal_to(self, other: MemorySegment, offset: int, other_offset: int, size: int) -> bool:
        """Return whether the bytes of two ranges are equal."""
        return self.get(offset, size) == other.get(other_offset, size)

    def free(self) -> None:
        """Give the memory back; again has no effect.

        A file keeps the bytes that were written.  A page of a `MemoryManager` is released there instead.
        """
        self._detach()

    def _detach(self) -> Memory | None:
        """Free the segment and return its memory for another one, or None where it may still be in use."""
        if self._end < 0:
            return None
        self._end = -1
        memory, self._memory = self._memory, _NOTHING
        content = cast(Memory, memory.obj)
        with contextlib.suppress(BufferError):
            memory.release()
        # A shown view may have slices, which share the memory.
        return None if self._shown or self.kind is SegmentKind.FILE else content

    def _part(self, offset: int, size: int) -> memoryview:
        """Return a range of the bytes."""
        if size < 0 or not 0 <= offset <= self._end - size:
            raise self._fault(offset, size)
        return self._memory[offset : offset + size]

    def _fault(self, offset: int, size: int) -> FreedSegmentError | SegmentBoundsError:
        if self._end < 0:
            return FreedSegmentError(self.size)
        return SegmentBoundsError(offset, size, self.size)


#: The memory of a freed segment.
_NOTHING: Final = memoryview(b"")


def check_page_size(size: int) -> int:
    """Return a page size; `PageSizeError` for one that is below `MIN_PAGE_BYTES` or no power of two."""
    if size < MIN_PAGE_BYTES or size & (size - 1):
        raise PageSizeError(size, MIN_PAGE_BYTES)
    return size


def heap_segment(size: int = DEFAULT_PAGE_BYTES) -> MemorySegment:
    """Return a segment of zeros in a bytearray."""
    return MemorySegment(bytearray(check_page_size(size)), SegmentKind.HEAP)


def off_heap_segment(size: int = DEFAULT_PAGE_BYTES) -> MemorySegment:
    """Return a segment of zeros outside of Python's heap, in an anonymous mmap."""
    # Private: a forked worker gets its own copy, and the kernel joins neighbours to one mapping, of which a
    # process may have 65,530.
    memory = mmap.mmap(-1, check_page_size(size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return MemorySegment(memory, SegmentKind.OFF_HEAP)


def file_segment(path: str | os.PathLike[str], size: int = DEFAULT_PAGE_BYTES) -> MemorySegment:
    """Return a segment of the first `size` bytes of a file, which is made or extended with zeros.

    A new file belongs to its user alone (0600).  The disk space is allocated at once: a write to a mapping of
    a full disk would kill the process.

    Raises
    ------
    OSError
        Where the file cannot be opened, or the disk is full.
    """
    check_page_size(size)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:  # macOS
            os.ftruncate(descriptor, max(size, os.fstat(descriptor).st_size))
        memory = mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
    return MemorySegment(memory, SegmentKind.FILE)
