"""The managed memory of a process: shares by weight, objects that several users share, options."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyedstate.errors import InvalidOptionError, MemoryBudgetError
from keyedstate.memory import SORT, SPILL, STATE_BACKEND, ProcessMemory
from keyedstate.options import MEMORY_MANAGED_SIZE, MEMORY_WEIGHTS, Configuration

MIB = 1 << 20


def test_the_default_shares_are_those_that_the_consumers_had_by_themselves() -> None:
    memory = ProcessMemory()
    assert memory.share_of(STATE_BACKEND) == 256 * MIB
    assert memory.share_of(SPILL) == 64 * MIB
    assert memory.share_of(SORT) == 192 * MIB


@given(st.integers(0, 2**40), st.lists(st.integers(0, 1000), min_size=3, max_size=3).filter(any))
def test_all_shares_together_fit_into_the_budget(size: int, weights: list[int]) -> None:
    memory = ProcessMemory(size, dict(zip((STATE_BACKEND, SPILL, SORT), weights, strict=True)))
    shares = [memory.share_of(consumer) for consumer in memory.weights]
    assert size - 3 <= sum(shares) <= size
    for consumer, share in zip(memory.weights, shares, strict=True):
        memory.manager.reserve(consumer, share)


def test_users_of_one_owner_share_an_object_until_the_last_one_ends() -> None:
    memory = ProcessMemory(10 * MIB)
    with memory.shared("cache", 6 * MIB, object) as first:
        with memory.shared("cache", 6 * MIB, object) as second:
            assert second is first
            assert memory.manager.reserved_bytes("cache") == 6 * MIB
        assert memory.manager.reserved_bytes("cache") == 6 * MIB
    assert memory.manager.reserved_bytes("cache") == 0
    with memory.shared("cache", 6 * MIB, object) as third:
        assert third is not first
    memory.manager.close()


def test_two_owners_cannot_have_more_than_the_whole() -> None:
    memory = ProcessMemory(10 * MIB)
    with memory.shared("cache", 6 * MIB, object):
        other = memory.shared("another cache", 6 * MIB, pytest.fail)
        with pytest.raises(MemoryBudgetError, match="another cache wants 6291456 bytes"):
            other.__enter__()
        assert memory.manager.available_bytes == 4 * MIB


def test_nothing_stays_reserved_for_an_object_that_cannot_be_made() -> None:
    memory = ProcessMemory(10 * MIB)
    with pytest.raises(ZeroDivisionError):
        memory.shared("cache", MIB, lambda: 1 // 0).__enter__()
    memory.manager.close()


def test_threads_that_begin_at_once_share_one_object() -> None:
    memory, threads = ProcessMemory(10 * MIB), 8
    together = threading.Barrier(threads)

    def use(_: int) -> object:
        together.wait()
        with memory.shared("cache", 6 * MIB, object) as cache:
            together.wait()
            return cache

    with ThreadPoolExecutor(threads) as pool:
        assert len(set(pool.map(use, range(threads)))) == 1
    memory.manager.close()


def test_weights_that_are_not_named_keep_their_default() -> None:
    assert Configuration()[MEMORY_MANAGED_SIZE] == 512 * MIB
    for given_, expected in [
        ({}, {STATE_BACKEND: 4, SPILL: 1, SORT: 3}),
        ({"memory.weights": "sort=10, spill=0"}, {STATE_BACKEND: 4, SPILL: 0, SORT: 10}),
        ({"memory.weights": {"state-backend": 2}}, {STATE_BACKEND: 2, SPILL: 1, SORT: 3}),
    ]:
        assert dict(Configuration(given_)[MEMORY_WEIGHTS]) == expected


@pytest.mark.parametrize(
    "weights",
    ["sort", "sorter=1", "sort=-1", "sort=1.5", "sort=1,sort=2", "sort=0,spill=0,state-backend=0", 7],
)
def test_weights_that_are_none_are_refused(weights: object) -> None:
    with pytest.raises(InvalidOptionError, match="state-backend=4,spill=1,sort=3, not all of them 0"):
        _ = Configuration({"memory.weights": weights})[MEMORY_WEIGHTS]


def test_a_process_keeps_the_memory_of_its_first_operator() -> None:
    """A warning names what a later one wanted; a caller without options gets what exists."""
    code = """if True:
        import logging
        from keyedstate.epoch.configuration import backend_in_task
        from keyedstate.memory import STATE_BACKEND, process_memory
        logging.basicConfig(format="%(message)s", level=logging.WARNING)
        backend_in_task((("memory.managed-size", 8 << 20), ("memory.weights", "sort=0,spill=0")))
        memory = process_memory()
        assert memory.share_of(STATE_BACKEND) == memory.manager.budget_bytes == 8 << 20
        backend_in_task((("memory.managed-size", 16 << 20),))
        assert process_memory() is memory
        assert memory.share_of(STATE_BACKEND) == 8 << 20
    """
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr.strip() == (
        "memory.managed-size=16777216 bytes and memory.weights=state-backend=4,spill=1,sort=3 have no "
        "effect: this process has 8388608 bytes with state-backend=4,spill=0,sort=0 already"
    )
