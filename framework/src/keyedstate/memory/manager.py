"""The budget of managed memory: pages that owners allocate, and bytes that they reserve.

As Flink's ``MemoryManager``.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from keyedstate.errors import MemoryBudgetError, MemoryLeakError, MemoryManagerClosedError
from keyedstate.memory.segments import (
    DEFAULT_PAGE_BYTES,
    Memory,
    MemorySegment,
    SegmentKind,
    check_page_size,
    heap_segment,
    off_heap_segment,
)

_NEW_PAGE: Final[dict[SegmentKind, Callable[[int], MemorySegment]]] = {
    SegmentKind.HEAP: heap_segment,
    SegmentKind.OFF_HEAP: off_heap_segment,
}


class MemoryManager:
    """A budget that pages and reservations of several owners share, for threads.

    A released page's memory goes to the pool of its kind, from which the next page of that kind is made: to
    fill it costs less than a fifth of what a new one costs (``make bench-memory``).  Pools are part of the
    budget and give way to requests.

    Parameters
    ----------
    budget_bytes : int
        What all owners together may have.
    page_bytes : int, default 32 KiB
        Size of each page.

    Raises
    ------
    PageSizeError
        For a page size that segments cannot have.

    Notes
    -----
    An owner is any hashable object, named by ``str`` in errors; equal ones are one owner.
    """

    def __init__(self, budget_bytes: int, page_bytes: int = DEFAULT_PAGE_BYTES) -> None:
        if budget_bytes < 0:
            raise ValueError(f"a budget of {budget_bytes} bytes; it is at least 0")
        self.budget_bytes: Final = budget_bytes
        self.page_bytes: Final = check_page_size(page_bytes)
        self._lock = threading.Lock()
        self._owners: dict[MemorySegment, Hashable] = {}
        self._pages: dict[Hashable, set[MemorySegment]] = {}
        self._reserved: dict[Hashable, int] = {}
        # Free memory by kind.  With it, what the owners have is at most the budget.
        self._pools: dict[SegmentKind, list[Memory]] = {kind: [] for kind in _NEW_PAGE}
        self._used = 0
        self._closed = False

    @property
    def available_bytes(self) -> int:
        """Bytes that the next request may have."""
        return self.budget_bytes - self._used

    def allocated_pages(self, owner: Hashable) -> int:
        """Return how many pages an owner has."""
        return len(self._pages.get(owner, ()))

    def reserved_bytes(self, owner: Hashable) -> int:
        """Return how many bytes an owner has reserved, without its pages."""
        return self._reserved.get(owner, 0)

    def compute_size(self, fraction: float) -> int:
        """Return a fraction of the budget in bytes, rounded down.

        Raises
        ------
        ValueError
            For a fraction that is not above 0 and up to 1.
        """
        if not 0 < fraction <= 1:
            raise ValueError(f"the fraction {fraction} of a memory budget; it is above 0 and up to 1")
        return math.floor(self.budget_bytes * fraction)

    def allocate_pages(
        self, owner: Hashable, count: int, *, kind: SegmentKind = SegmentKind.HEAP
    ) -> list[MemorySegment]:
        """Return new pages, all or none.  What they contain is not specified.

        Raises
        ------
        MemoryBudgetError
            Where the budget has no room for them; all other pages stay valid.
        ValueError
            For a negative count, and for pages of a file, which are no memory.
        """
        if count < 0 or kind not in _NEW_PAGE:
            raise ValueError(f"{count} pages of the kind {kind.value} cannot be allocated")
        size = count * self.page_bytes
        with self._lock:
            self._check(owner, size)
            pool, new_page = self._pools[kind], _NEW_PAGE[kind]
            pages = [MemorySegment(pool.pop(), kind) for _ in range(min(count, len(pool)))]
            self._trim_pools(size)
            pages += [new_page(self.page_bytes) for _ in range(count - len(pages))]
            self._used += size
            self._owners.update(dict.fromkeys(pages, owner))
            if pages:
                self._pages.setdefault(owner, set()).update(pages)
        return pages

    def release(self, pages: Iterable[MemorySegment]) -> None:
        """Free pages; those that were released before are skipped.

        Raises
        ------
        ValueError
            For a page of another manager; those before it are released.
        """
        with self._lock:
            for page in pages:
                if page in self._owners:
                    self._release(page)
                elif not page.is_freed:
                    raise ValueError(f"{page!r} is no page of this memory manager")

    def reserve(self, owner: Hashable, size: int) -> None:
        """Count bytes that an owner allocates by itself, in addition to those that it has reserved.

        Raises
        ------
        MemoryBudgetError
            Where the budget has no room for them; nothing is reserved then.
        """
        if size < 0:
            raise ValueError(f"{size} bytes cannot be reserved")
        with self._lock:
            self._check(owner, size)
            self._trim_pools(size)
            if size:
                self._reserved[owner] = self._reserved.get(owner, 0) + size
                self._used += size

    def release_reservation(self, owner: Hashable, size: int) -> None:
        """Give reserved bytes back: at most what the owner has reserved."""
        if size < 0:
            raise ValueError(f"{size} reserved bytes cannot be released")
        with self._lock:
            self._release_reservation(owner, size)

    def release_all(self, owner: Hashable) -> None:
        """Free the pages of an owner and give its reserved bytes back; again has no effect."""
        with self._lock:
            self._release_all(owner)

    def close(self) -> None:
        """Free everything; again has no effect.

        Raises
        ------
        MemoryLeakError
            Where an owner has not released all; it is freed nevertheless.
        """
        with self._lock:
            leaks = self._users()
            for owner in {*self._pages, *self._reserved}:
                self._release_all(owner)
            for pool in self._pools.values():
                pool.clear()
            self._closed = True
        if leaks:
            raise MemoryLeakError(leaks)

    def _check(self, owner: Hashable, size: int) -> None:
        if self._closed:
            raise MemoryManagerClosedError(str(owner))
        available = self.available_bytes
        if size > available:
            raise MemoryBudgetError(str(owner), size, available, self.budget_bytes, self._users())

    def _users(self) -> list[str]:
        """Return each owner with its bytes."""
        sizes = {owner: len(pages) * self.page_bytes for owner, pages in self._pages.items()}
        for owner, size in self._reserved.items():
            sizes[owner] = sizes.get(owner, 0) + size
        return [f"{owner} ({size} bytes)" for owner, size in sizes.items()]

    def _trim_pools(self, size: int) -> None:
        """Drop free memory until there is room for so many bytes."""
        for pool in self._pools.values():
            pooled = sum(map(len, self._pools.values())) * self.page_bytes
            excess = pooled + size - self.available_bytes
            if excess > 0:
                del pool[max(0, len(pool) - -(-excess // self.page_bytes)) :]

    def _release(self, page: MemorySegment) -> None:
        owner = self._owners.pop(page)
        pages = self._pages[owner]
        pages.remove(page)
        if not pages:
            del self._pages[owner]
        self._used -= self.page_bytes
        memory = page._detach()
        if memory is not None:
            self._pools[page.kind].append(memory)

    def _release_reservation(self, owner: Hashable, size: int) -> None:
        reserved = self._reserved.pop(owner, 0)
        released = min(size, reserved)
        if released < reserved:
            self._reserved[owner] = reserved - released
        self._used -= released

    def _release_all(self, owner: Hashable) -> None:
        for page in list(self._pages.get(owner, ())):
            self._release(page)
        self._release_reservation(owner, self.reserved_bytes(owner))
