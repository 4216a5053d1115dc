"""The store of spilled entries: a RocksDB database per instance, with a column family per table."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from keyedstate.backend import BackendContext, StateMeta
from keyedstate.memory import SPILL, process_memory
from keyedstate.ordered import RowSpace, store_of
from keyedstate_rocksdb import RocksStore, default_options
from keyedstate_spillable.options import DISK_MEMORY

#: Look-ups of keys that do not exist are the rule while a key group is spilled.
_BLOOM_BITS = 10
_LEAST_BUFFER = 1 << 20
#: Small files have small filters.  The filter of a large file is as large as a shard of the block cache, so
#: that each look-up would evict the one that the next look-up needs.
_FILE_BYTES = 2 << 20
_NUMBERS = "numbers of spaces"


def disk_memory(options: Mapping[str, Any]) -> int:
    """Return the bytes that the databases of this process share."""
    fixed: int | None = options[DISK_MEMORY.name]
    return process_memory().share_of(SPILL) if fixed is None else fixed


def open_store(context: BackendContext) -> RocksStore:
    """Open the database of an instance.

    Its tables keep entries as objects, so RocksDB caches none.
    """
    memory = disk_memory(context.options)
    options = {
        **default_options(),
        "rocksdb.memory-budget": context.options[DISK_MEMORY.name],
        # A sixth of the memory is for all write buffers; one that is larger would be flushed constantly.
        "rocksdb.write-buffer-size": max(memory // 16, _LEAST_BUFFER),
        "rocksdb.target-file-size": _FILE_BYTES,
        # A look-up that finds its block in the system's page cache would spend more time decompressing it.
        "rocksdb.compression": "none",
        "rocksdb.memory-object-ratio": 0.0,
        "rocksdb.bloom-filter-bits": _BLOOM_BITS,
    }
    return RocksStore(
        BackendContext(
            context.key_groups,
            context.max_parallelism,
            options,
            context.local_base,
            closing=context.closing,
        ),
        SPILL,
    )


def open_space(meta: StateMeta, context: BackendContext) -> RowSpace:
    """Return a new, empty space for a table; a state whose types change has a second one."""
    numbers = context.resources.setdefault(_NUMBERS, count())
    return store_of(context, open_store).open_space(f"{next(numbers)}:{meta.name}")
