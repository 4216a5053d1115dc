"""Where a paged output view takes its pages from."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Protocol

from keyedstate.errors import MemoryBudgetError
from keyedstate.memory.manager import MemoryManager
from keyedstate.memory.segments import MemorySegment, SegmentKind


class PageSource(Protocol):
    """Gives pages of one size, all that are asked for or none."""

    @property
    def page_bytes(self) -> int:
        """Size of each page."""

    def take(self, count: int) -> list[MemorySegment]:
        """Return so many pages, which belong to the caller then, or an empty list where it has fewer."""


class ManagedPages:
    """Pages that an owner allocates from a manager, until the budget has no room.

    They are the owner's: it releases them with `MemoryManager.release` or `MemoryManager.release_all`.

    Parameters
    ----------
    manager : MemoryManager
    owner : hashable
    kind : SegmentKind, default HEAP
    """

    def __init__(self, manager: MemoryManager, owner: Hashable, kind: SegmentKind = SegmentKind.HEAP) -> None:
        self._manager = manager
        self._owner = owner
        self._kind = kind

    @property
    def page_bytes(self) -> int:
        """Size of each page of the manager."""
        return self._manager.page_bytes

    def take(self, count: int) -> list[MemorySegment]:
        """Allocate so many pages, or none where the budget has no room for all."""
        try:
            return self._manager.allocate_pages(self._owner, count, kind=self._kind)
        except MemoryBudgetError:
            return []


class ListedPages:
    """Pages that were allocated before, such as those that the views of one sorter share.

    Parameters
    ----------
    pages : iterable of MemorySegment
        At least one, all of one size.

    Raises
    ------
    ValueError
        For pages of several sizes, and for none.
    """

    def __init__(self, pages: Iterable[MemorySegment]) -> None:
        self._pages = list(pages)
        self.page_bytes = one_page_size(self._pages)

    def __len__(self) -> int:
        return len(self._pages)

    def take(self, count: int) -> list[MemorySegment]:
        """Take so many pages out of the list, or none where it has fewer."""
        if count > len(self._pages):
            return []
        kept = len(self._pages) - count
        taken = self._pages[kept:]
        del self._pages[kept:]
        return taken

    def give_back(self, pages: Iterable[MemorySegment]) -> None:
        """Put pages into the list again.

        Raises
        ------
        ValueError
            For pages of another size.
        """
        returned = list(pages)
        if returned and one_page_size(returned) != self.page_bytes:
            raise ValueError(f"pages of {returned[0].size} bytes, and the others have {self.page_bytes}")
        self._pages += returned


def one_page_size(pages: Iterable[MemorySegment]) -> int:
    """Return the size of each of the pages; ValueError for pages of several sizes, and for none."""
    sizes = {page.size for page in pages}
    if len(sizes) != 1:
        raise ValueError(f"pages of one size are needed, these have {sorted(sizes)} bytes")
    return sizes.pop()
