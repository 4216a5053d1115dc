"""Views over pages, through which serializers write and read records that span pages.

They correspond to Flink's ``AbstractPagedOutputView`` and ``RandomAccessInputView``.  A value across the end
of a page is split bytewise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from keyedstate.memory.page_sources import PageSource, one_page_size
from keyedstate.memory.segments import MIN_PAGE_BYTES, MemorySegment
from keyedstate.memory.views import DataInputView, DataOutputView

N = TypeVar("N", int, float)


class PagedOutputView(DataOutputView):
    """An output view whose committed bytes are in pages.

    What is written is gathered like in the base class, and `commit` moves it to the pages: so a record is in
    them as a whole or not at all.

    Parameters
    ----------
    source : PageSource
        Gives a page when those before are full.

    Attributes
    ----------
    pages : list of MemorySegment
        Those taken so far, in the order of their bytes.
    """

    __slots__ = ("_offset", "_page_bytes", "_size", "_source", "pages")

    def __init__(self, source: PageSource) -> None:
        super().__init__()
        self.pages: list[MemorySegment] = []
        self._source = source
        self._page_bytes = source.page_bytes
        # Where the next commit writes, and the end of all commits.
        self._offset = self._size = 0

    @property
    def position(self) -> int:
        """Offset of the next byte."""
        return self._offset + len(self._buffer)

    @property
    def size(self) -> int:
        """Number of committed bytes; what follows in the pages is undefined."""
        return self._size

    def commit(self) -> bool:
        """Move what was written since the last commit to the pages.

        Returns
        -------
        bool
            Whether the pages have room for it.  Where they have not, it is dropped, and all that was
            committed before is as it was.
        """
        buffer, start = self._buffer, self._offset
        end = start + len(buffer)
        missing = -(-end // self._page_bytes) - len(self.pages)
        if missing > 0:
            taken = self._source.take(missing)
            if not taken:
                buffer.clear()
                return False
            self.pages += taken
        number, offset = divmod(start, self._page_bytes)
        if offset + len(buffer) <= self._page_bytes:
            if buffer:
                self.pages[number].put(offset, buffer)
        else:
            copied = 0
            while copied < len(buffer):
                part = buffer[copied : copied + self._page_bytes - offset]
                self.pages[number].put(offset, part)
                copied += len(part)
                number, offset = number + 1, 0
        buffer.clear()
        self._offset = end
        self._size = max(self._size, end)
        return True

    def rollback(self) -> None:
        """Drop what was written since the last commit, for instance by a serializer that raised an error."""
        self._buffer.clear()

    def seek(self, position: int) -> None:
        """Let the next commit overwrite bytes from a position on.

        Raises
        ------
        ValueError
            For a position beyond the committed bytes, and where written bytes are not committed.
        """
        if self._buffer:
            raise ValueError(f"{len(self._buffer)} bytes are not committed: commit them, or roll them back")
        self._offset = _checked(position, self._size)

    def to_bytes(self) -> bytes:
        """Return a copy of all bytes, the uncommitted ones included."""
        data = bytearray().join(page.get(0, page.size) for page in self.pages)
        data[self._size :] = b""
        data[self._offset : self.position] = self._buffer
        return bytes(data)

    def clear(self) -> None:
        """Drop everything, and keep the pages for what is written next."""
        self._buffer.clear()
        self._offset = self._size = 0


def _number(
    read: Callable[[DataInputView], N], get: Callable[[MemorySegment, int], N], size: int
) -> Callable[[PagedInputView], N]:
    """Return the method that reads a number from a page, or from two that it spans."""

    def read_number(self: PagedInputView) -> N:
        start = self._advance(size)
        offset = start & self._mask
        if offset <= self._mask + 1 - size:
            return get(self._pages[start >> self._shift], offset)
        return read(DataInputView(self._data[start : start + size]))

    return read_number


class PagedInputView(DataInputView):
    """An input view over the bytes of pages, with random access.

    Parameters
    ----------
    pages : sequence of MemorySegment
        All of one size.
    size : int
        Number of bytes in the pages, as `PagedOutputView.size`.

    Raises
    ------
    ValueError
        For pages of several sizes, and a size that they do not have.
    CorruptDataError
        From every method that would read more than remains.
    FreedSegmentError
        From every method that would read from a freed page.
    """

    __slots__ = ("_mask", "_pages", "_shift")

    def __init__(self, pages: Sequence[MemorySegment], size: int) -> None:
        self._pages = pages = list(pages)
        page_bytes = one_page_size(pages) if pages else MIN_PAGE_BYTES
        self._end = _checked(size, len(pages) * page_bytes)
        self._position = 0
        # Sizes of pages are powers of two.
        self._shift, self._mask = page_bytes.bit_length() - 1, page_bytes - 1
        # The base class reads bytes by index and slice.  It unpacks numbers in place, so they are read here.
        self._data = _PageBytes(pages, page_bytes, size)  # type: ignore[assignment]

    def seek(self, position: int) -> None:
        """Continue at a position; the end of the bytes is one.

        Raises
        ------
        ValueError
            For a position beyond the bytes.
        """
        self._position = _checked(position, self._end)

    read_short = _number(DataInputView.read_short, MemorySegment.get_short, 2)
    read_int = _number(DataInputView.read_int, MemorySegment.get_int, 4)
    read_long = _number(DataInputView.read_long, MemorySegment.get_long, 8)
    read_float = _number(DataInputView.read_float, MemorySegment.get_float, 4)
    read_double = _number(DataInputView.read_double, MemorySegment.get_double, 8)


class _PageBytes:
    """The bytes of pages as one sequence."""

    __slots__ = ("_page_bytes", "_pages", "_size")

    def __init__(self, pages: list[MemorySegment], page_bytes: int, size: int) -> None:
        self._pages = pages
        self._page_bytes = page_bytes
        self._size = size

    def __getitem__(self, where: int | slice) -> int | bytes:
        if isinstance(where, int):
            number, offset = divmod(where, self._page_bytes)
            return self._pages[number].get_byte(offset) & 0xFF
        start: int = where.start
        left = min(where.stop, self._size) - start
        number, offset = divmod(start, self._page_bytes)
        if 0 < left <= self._page_bytes - offset:
            return self._pages[number].get(offset, left)
        parts: list[bytes] = []
        while left > 0:
            parts.append(self._pages[number].get(offset, min(left, self._page_bytes - offset)))
            left -= len(parts[-1])
            number, offset = number + 1, 0
        return b"".join(parts)


def _checked(position: int, end: int) -> int:
    if not 0 <= position <= end:
        raise ValueError(f"position {position} is not within 0 and {end}")
    return position
