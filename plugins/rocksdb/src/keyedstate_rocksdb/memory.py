"""The memory that all databases of a process share: a block cache, to which the write buffers are charged.

As Flink's ``RocksDBMemoryControllerUtils``.  Of a budget T with the fraction r for writes, the write buffers
get 2*T*r/3 and the cache T*(3-r)/3: while buffers are flushed, new ones replace them, so they may take half
as much again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from rocksdict import Cache, WriteBufferManager

from keyedstate.memory import process_memory
from keyedstate.ordered import ObjectMemory, RowSpace
from keyedstate_rocksdb.errors import SmallBudgetError
from keyedstate_rocksdb.options import MEMORY_BUDGET, OBJECT_RATIO, TUNING, WRITE_RATIO

_log = logging.getLogger(__name__)

#: The least useful budget: a few blocks of each file, and one buffer.
_LEAST = 4 << 20
_LEAST_ARENA_BLOCK = 8 << 10
#: The estimated bytes of a block, which size the table of the cache: it has room for so many of them.
_BLOCK_BYTES = 4 << 10


def cache_bytes(budget: int, write_ratio: float) -> int:
    """Return the capacity of the cache (``calculateActualCacheCapacity``)."""
    return int((3 - write_ratio) * budget / 3)


def write_buffer_bytes(budget: int, write_ratio: float) -> int:
    """Return the capacity of the write buffers (``calculateWriteBufferManagerCapacity``)."""
    return int(2 * budget * write_ratio / 3)


def mutable_bytes(write_buffers: int) -> int:
    """Return the size of active buffers from which one is flushed (``calculateRocksDBMutableLimit``)."""
    return write_buffers * 7 // 8


def arena_block_bytes(mutable: int, write_buffer: int) -> int:
    """Return the step in which a buffer takes memory.

    RocksDB's own step, an eighth of the buffer up to 1 MiB, is also what a buffer of a few rows takes.  With
    one buffer for each state, partition and operator, a few dozen of those would be all the memory, and each
    write would flush.
    """
    return max(min(mutable >> 9, write_buffer // 8, 1 << 20), _LEAST_ARENA_BLOCK)


class SharedMemory:
    """A budget.

    Attributes
    ----------
    cache : Cache
    cache_bytes : int
    write_buffers : WriteBufferManager
        Charged to the cache.
    mutable_bytes : int
        The size of active buffers from which one is flushed.
    objects : ObjectMemory or None
        For entries as Python objects; its part of the budget is subtracted first.
    spaces : WeakSet
        The states whose write buffers it has.
    ratios : tuple of float
        The parts of write buffers and of objects.
    """

    def __init__(self, budget: int, write_ratio: float, object_ratio: float, block_bytes: int) -> None:
        self.ratios = write_ratio, object_ratio
        self.spaces: WeakSet[RowSpace] = WeakSet()
        objects = int(budget * object_ratio)
        self.objects = ObjectMemory(objects) if objects else None
        budget -= objects
        if budget < _LEAST:
            raise SmallBudgetError(budget + objects, int(_LEAST / (1 - min(object_ratio, 0.99))))
        write_bytes = write_buffer_bytes(budget, write_ratio)
        self.mutable_bytes = mutable_bytes(write_bytes)
        self.cache_bytes = cache_bytes(budget, write_ratio)
        # RocksDB splits an LRU cache into up to 64 shards, some of which the reserved write buffers and a
        # large filter fill; this one is a single shard up to 64 MiB.
        self.cache = Cache.new_hyper_clock_cache(self.cache_bytes, min(block_bytes, _BLOCK_BYTES))
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            write_bytes, False, self.cache
        )

    @property
    def buffers_are_short(self) -> bool:
        """Whether the write buffers have more than half of the bytes at which one is flushed."""
        return self.write_buffers.get_usage() > self.mutable_bytes // 2


@contextmanager
def shared_memory(options: Mapping[str, Any], consumer: str) -> Iterator[SharedMemory | None]:
    """Share the memory of this process that options describe, from entering to leaving the returned context.

    Without a fixed budget it is the part of a consumer of the managed memory, and reserved there.  Other
    ratios than those of its first user have no effect but a warning.

    Parameters
    ----------
    options : mapping
        The plugin's options by their full names.
    consumer : str
        Of the managed memory: `STATE_BACKEND` or `SPILL`.

    Returns
    -------
    context manager
        Of the memory; of None where each state has its own.

    Raises
    ------
    SmallBudgetError, MemoryBudgetError
        When it is entered.
    """
    fixed, write_ratio, object_ratio, block_bytes = (
        options[option.name] for option in (MEMORY_BUDGET, WRITE_RATIO, OBJECT_RATIO, TUNING["block_bytes"])
    )
    if fixed == 0:
        yield None
        return
    memory = process_memory()
    budget = memory.share_of(consumer) if fixed is None else fixed
    kind = f"the share {consumer!r}" if fixed is None else f"a fixed budget of {fixed} bytes"
    with memory.shared(
        f"rocksdb with {kind}",
        budget if fixed is None else 0,
        lambda: SharedMemory(budget, write_ratio, object_ratio, block_bytes or _BLOCK_BYTES),
    ) as found:
        if found.ratios != (write_ratio, object_ratio):
            _log.warning(
                "%s=%s and %s=%s have no effect: other databases of this process have %s and %s already",
                *(WRITE_RATIO.name, write_ratio, OBJECT_RATIO.name, object_ratio, *found.ratios),
            )
        yield found
