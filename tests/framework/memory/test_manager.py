"""The budget of managed memory: pages and reservations of owners, pools, leaks, threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from keyedstate.errors import (
    FreedSegmentError,
    MemoryBudgetError,
    MemoryLeakError,
    MemoryManagerClosedError,
    PageSizeError,
)
from keyedstate.memory import DEFAULT_PAGE_BYTES, MemoryManager, SegmentKind, heap_segment

PAGE = 4096
PAGES = 100


@pytest.fixture
def manager() -> MemoryManager:
    return MemoryManager(PAGES * PAGE, PAGE)


@pytest.mark.parametrize("at_once", [1, PAGES // 4, PAGES])
@pytest.mark.parametrize("kind", [SegmentKind.HEAP, SegmentKind.OFF_HEAP])
def test_all_pages_can_be_allocated_singly_and_in_bulk(
    manager: MemoryManager, at_once: int, kind: SegmentKind
) -> None:
    """MEM-01."""
    pages = [
        page
        for _ in range(0, PAGES, at_once)
        for page in manager.allocate_pages("sorter", at_once, kind=kind)
    ]
    assert len(set(pages)) == PAGES == manager.allocated_pages("sorter")
    assert {(page.size, page.kind) for page in pages} == {(PAGE, kind)}
    assert manager.available_bytes == 0
    manager.release(pages)
    assert manager.available_bytes == PAGES * PAGE
    manager.close()


def test_an_allocation_beyond_the_budget_raises_and_earlier_pages_stay_valid(manager: MemoryManager) -> None:
    """MEM-01."""
    pages = manager.allocate_pages("sorter", PAGES - 1)
    with pytest.raises(MemoryBudgetError) as raised:
        manager.allocate_pages("joiner", 2)
    assert (raised.value.owner, raised.value.wanted, raised.value.available) == ("joiner", 2 * PAGE, PAGE)
    assert f"In use by sorter ({(PAGES - 1) * PAGE} bytes)" in str(raised.value)
    assert "Raise the option memory.managed-size" in str(raised.value)
    assert manager.available_bytes == PAGE
    for page in pages:
        page.put_long(0, 1)
    manager.release(pages)
    manager.close()


def test_the_release_of_one_owner_frees_only_its_pages(manager: MemoryManager) -> None:
    """MEM-01."""
    mine = manager.allocate_pages("a", 10) + manager.allocate_pages("a", 5, kind=SegmentKind.OFF_HEAP)
    others = manager.allocate_pages("b", 20)
    manager.reserve("a", 100)
    manager.reserve("b", 200)
    manager.release_all("a")
    assert all(page.is_freed for page in mine) and not any(page.is_freed for page in others)
    assert (manager.reserved_bytes("a"), manager.reserved_bytes("b")) == (0, 200)
    assert manager.available_bytes == PAGES * PAGE - 20 * PAGE - 200
    manager.release_all("b")
    manager.release_all("b")
    manager.close()


def test_a_page_that_is_released_twice_counts_once(manager: MemoryManager) -> None:
    """MEM-01: by two calls, in two collections, twice in one, after the release of its owner."""
    pages = manager.allocate_pages("a", 10)
    manager.release(pages[:6])
    manager.release(pages[4:])
    manager.release([pages[0], pages[0]])
    assert manager.available_bytes == PAGES * PAGE
    again = manager.allocate_pages("a", 3)
    manager.release_all("a")
    manager.release(again)
    manager.release(pages)
    assert manager.available_bytes == PAGES * PAGE
    manager.close()


def test_a_released_page_is_freed_though_its_memory_is_used_again(manager: MemoryManager) -> None:
    (page,) = manager.allocate_pages("a", 1)
    manager.release([page])
    (other,) = manager.allocate_pages("b", 1)
    with pytest.raises(FreedSegmentError):
        page.get_byte(0)
    manager.release([page])
    assert not other.is_freed
    manager.release([other])
    manager.close()


def test_memory_of_which_a_slice_is_left_is_not_used_again(manager: MemoryManager) -> None:
    pages = manager.allocate_pages("a", PAGES, kind=SegmentKind.OFF_HEAP)
    slices = [page.view[:8] for page in pages]
    manager.release(pages)
    for page in manager.allocate_pages("b", PAGES, kind=SegmentKind.OFF_HEAP):
        page.put_long(0, -1)
    assert set(map(bytes, slices)) == {bytes(8)}
    manager.release_all("b")
    manager.close()


def test_a_page_that_was_freed_by_itself_is_released_all_the_same(manager: MemoryManager) -> None:
    (page,) = manager.allocate_pages("a", 1)
    page.free()
    assert manager.available_bytes == (PAGES - 1) * PAGE
    manager.release([page])
    manager.close()


def test_a_page_of_another_manager_is_refused(manager: MemoryManager) -> None:
    with pytest.raises(ValueError, match="no page of this memory manager"):
        manager.release([heap_segment(PAGE)])


def test_reservations_go_up_to_the_limit_and_not_beyond(manager: MemoryManager) -> None:
    """MEM-02."""
    manager.reserve("rocksdb", PAGES * PAGE - 1)
    manager.reserve("sorter", 1)
    with pytest.raises(MemoryBudgetError, match="sorter wants 1 bytes of managed memory, and 0 of"):
        manager.reserve("sorter", 1)
    manager.reserve("sorter", 0)
    manager.release_all("sorter")
    manager.release_all("rocksdb")
    with pytest.raises(MemoryBudgetError):
        manager.reserve("rocksdb", PAGES * PAGE + 1)
    manager.close()


def test_the_release_of_more_than_is_reserved_is_clamped(manager: MemoryManager) -> None:
    """MEM-02."""
    manager.reserve("a", 100)
    manager.reserve("b", 50)
    manager.release_reservation("a", 40)
    assert manager.reserved_bytes("a") == 60
    manager.release_reservation("a", 1000)
    manager.release_reservation("a", 1000)
    manager.release_reservation("another owner", 1000)
    assert manager.available_bytes == PAGES * PAGE - 50
    manager.release_all("b")
    manager.close()


def test_pages_and_reservations_share_the_limit(manager: MemoryManager) -> None:
    """MEM-02."""
    manager.reserve("rocksdb", PAGE + 1)
    with pytest.raises(MemoryBudgetError):
        manager.allocate_pages("sorter", PAGES - 1)
    manager.allocate_pages("sorter", PAGES - 2)
    with pytest.raises(MemoryBudgetError):
        manager.reserve("rocksdb", PAGE)
    manager.reserve("rocksdb", PAGE - 1)
    assert manager.available_bytes == 0
    manager.release_all("rocksdb")
    manager.release_all("sorter")
    manager.close()


@pytest.mark.parametrize("fraction", [1, 1.0, 0.5, 1 / 3, 1e-9])
def test_a_fraction_of_the_budget_is_rounded_down(fraction: float) -> None:
    """MEM-03."""
    assert MemoryManager(1_000_003).compute_size(fraction) == int(1_000_003 * fraction)


@pytest.mark.parametrize("fraction", [0, -0.1, 1.1, float("nan")])
def test_a_fraction_that_is_none_is_refused(manager: MemoryManager, fraction: float) -> None:
    """MEM-03."""
    with pytest.raises(ValueError, match=f"the fraction {fraction} of a memory budget"):
        manager.compute_size(fraction)


def test_an_owner_that_leaks_is_named_when_the_manager_closes(manager: MemoryManager) -> None:
    pages = manager.allocate_pages("the sorter of partition 3", 2)
    manager.reserve("rocksdb", 100)
    manager.release(manager.allocate_pages("tidy", 1))
    with pytest.raises(MemoryLeakError) as raised:
        manager.close()
    assert raised.value.owners == (f"the sorter of partition 3 ({2 * PAGE} bytes)", "rocksdb (100 bytes)")
    assert all(page.is_freed for page in pages)
    manager.close()


def test_a_closed_manager_gives_nothing(manager: MemoryManager) -> None:
    manager.close()
    with pytest.raises(
        MemoryManagerClosedError, match="sorter wants managed memory of a manager that is closed"
    ):
        manager.allocate_pages("sorter", 1)
    with pytest.raises(MemoryManagerClosedError):
        manager.reserve("sorter", 1)


def test_pages_have_32_kib_unless_another_power_of_two_is_chosen() -> None:
    (page,) = MemoryManager(1 << 20).allocate_pages("a", 1)
    assert page.size == DEFAULT_PAGE_BYTES
    with pytest.raises(PageSizeError):
        MemoryManager(1 << 20, 5000)


def test_negative_sizes_and_pages_of_files_are_refused(manager: MemoryManager) -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        MemoryManager(-1)
    with pytest.raises(ValueError, match="-1 pages"):
        manager.allocate_pages("a", -1)
    with pytest.raises(ValueError, match="of the kind file cannot be allocated"):
        manager.allocate_pages("a", 1, kind=SegmentKind.FILE)
    with pytest.raises(ValueError, match="-1 bytes cannot be reserved"):
        manager.reserve("a", -1)
    with pytest.raises(ValueError, match="-1 reserved bytes"):
        manager.release_reservation("a", -1)
    assert manager.available_bytes == PAGES * PAGE


def test_threads_that_allocate_at_once_never_get_the_same_page() -> None:
    threads, rounds = 8, 200
    manager = MemoryManager(threads * 4 * PAGE, PAGE)
    barrier = threading.Barrier(threads)

    def work(number: int) -> int:
        barrier.wait()
        wrong = 0
        for round_ in range(rounds):
            kind = SegmentKind.HEAP if (round_ + number) % 2 else SegmentKind.OFF_HEAP
            pages = manager.allocate_pages(number, 4, kind=kind)
            for index, page in enumerate(pages):
                page.put_long(0, number * 10 + index)
            manager.reserve(number, 0)
            wrong += [page.get_long(0) for page in pages] != [number * 10 + index for index in range(4)]
            manager.release(pages)
        return wrong

    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(work, range(threads))) == [0] * threads
    assert manager.available_bytes == threads * 4 * PAGE
    manager.close()
