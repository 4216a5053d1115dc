"""The memory manager against a plain model: owners, pages, reservations, double releases, over-allocation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from keyedstate.errors import FreedSegmentError, MemoryBudgetError, MemoryLeakError
from keyedstate.memory import MemoryManager, MemorySegment, SegmentKind

PAGE = 4096
#: No multiple of a page.
BUDGET = 10 * PAGE + 1000
OWNERS = st.sampled_from(["sorter", "rocksdb", ("spill", 3)])
KINDS = st.sampled_from([SegmentKind.HEAP, SegmentKind.OFF_HEAP])


class ManagerMachine(RuleBasedStateMachine):
    """Runs operations on a manager and on two dicts."""

    pages: Bundle[MemorySegment] = Bundle("pages")

    def __init__(self) -> None:
        super().__init__()
        self.manager = MemoryManager(BUDGET, PAGE)
        #: Each live page with its owner and the number that was written to it.
        self.live: dict[MemorySegment, tuple[Any, int]] = {}
        self.freed: set[MemorySegment] = set()
        self.reserved: dict[Any, int] = {}
        self.written = 0

    def used(self) -> int:
        return len(self.live) * PAGE + sum(self.reserved.values())

    def forget(self, page: MemorySegment) -> None:
        if self.live.pop(page, None) is not None:
            self.freed.add(page)

    @rule(target=pages, owner=OWNERS, count=st.integers(0, 12), kind=KINDS, shown=st.booleans())
    def allocate(self, owner: Any, count: int, kind: SegmentKind, shown: bool) -> Any:
        if count * PAGE > BUDGET - self.used():
            with pytest.raises(MemoryBudgetError):
                self.manager.allocate_pages(owner, count, kind=kind)
            return multiple()
        pages = self.manager.allocate_pages(owner, count, kind=kind)
        assert len(pages) == count == len(set(pages))
        for page in pages:
            assert page not in self.live and page not in self.freed
            assert page.kind is kind
            if shown:
                _ = page.view
            self.written += 1
            page.put_long(0, self.written)
            self.live[page] = owner, self.written
        return multiple(*pages)

    @rule(first=pages, second=pages)
    def release(self, first: MemorySegment, second: MemorySegment) -> None:
        self.manager.release([first, second, first])
        self.forget(first)
        self.forget(second)

    @rule(page=consumes(pages))
    def free_without_the_manager(self, page: MemorySegment) -> None:
        page.free()
        self.manager.release([page])
        self.forget(page)

    @rule(owner=OWNERS, size=st.integers(0, BUDGET + 1))
    def reserve(self, owner: Any, size: int) -> None:
        if size > BUDGET - self.used():
            with pytest.raises(MemoryBudgetError):
                self.manager.reserve(owner, size)
        else:
            self.manager.reserve(owner, size)
            self.reserved[owner] = self.reserved.get(owner, 0) + size

    @rule(owner=OWNERS, size=st.integers(0, BUDGET + 1))
    def release_reservation(self, owner: Any, size: int) -> None:
        self.manager.release_reservation(owner, size)
        self.reserved[owner] = max(0, self.reserved.get(owner, 0) - size)

    @rule(owner=OWNERS)
    def release_all(self, owner: Any) -> None:
        self.manager.release_all(owner)
        self.reserved.pop(owner, None)
        for page in [page for page, (of, _) in self.live.items() if of == owner]:
            self.forget(page)

    @invariant()
    def what_is_used_is_that_of_the_owners(self) -> None:
        assert self.manager.available_bytes == BUDGET - self.used()
        for owner in ("sorter", "rocksdb", ("spill", 3)):
            assert self.manager.reserved_bytes(owner) == self.reserved.get(owner, 0)
            assert self.manager.allocated_pages(owner) == sum(of == owner for of, _ in self.live.values())

    @invariant()
    def live_pages_have_their_bytes_and_freed_ones_none(self) -> None:
        assert [page.get_long(0) for page in self.live] == [number for _, number in self.live.values()]
        for page in self.freed:
            with pytest.raises(FreedSegmentError):
                page.get_long(0)

    def teardown(self) -> None:
        owners = {str(owner) for owner, _ in self.live.values()}
        owners |= {str(owner) for owner, size in self.reserved.items() if size}
        if owners:
            with pytest.raises(MemoryLeakError) as raised:
                self.manager.close()
            assert {leak.rpartition(" (")[0] for leak in raised.value.owners} == owners
        else:
            self.manager.close()
        assert all(page.is_freed for page in self.live)


TestManager = ManagerMachine.TestCase
TestManager.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
