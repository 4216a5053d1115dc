"""The store of spilled entries: a RocksDB database per instance, with a column family per table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from keyedstate.backend import BackendContext, StateMeta
from keyedstate.memory import SPILL, process_memory
from keyedstate.ordered import RowCopy, RowSpace, store_of
from keyedstate_rocksdb import RocksSpace, RocksStore, default_options
from keyedstate_spillable.options import DISK_MEMORY

#: Look-ups of keys that do not exist are the rule while a key group is spilled.
_BLOOM_BITS = 10
_LEAST_BUFFER = 1 << 20
#: With ten times the budget on disk, rows are a tenth faster than with RocksDB's 64 MiB.
_FILE_BYTES = 2 << 20
_NUMBERS = "numbers of spaces"
#: Rows begin with a key group, or with what is above all key groups.
_ABOVE_ALL_ROWS = b"\xff" * 8


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
        # Entries come back and leave again, to rows between all others: merging levels would write the whole
        # database again for each few buffers.  A look-up asks the Bloom filter of each sorted run instead.
        "rocksdb.compaction-style": "universal",
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


def open_space(meta: StateMeta, context: BackendContext) -> SpillSpace:
    """Return a new, empty space for a table; a state whose types change has a second one."""
    numbers = context.resources.setdefault(_NUMBERS, count())
    store, name = store_of(context, open_store), f"{next(numbers)}:{meta.name}"
    return SpillSpace(lambda: store.open_space(name))


class SpillSpace(RowSpace):
    """A space that is opened for its first row: that takes milliseconds, and most tables never spill.

    Parameters
    ----------
    open_space : callable
        Returns the empty space.
    """

    def __init__(self, open_space: Callable[[], RocksSpace]) -> None:
        self._open_space = open_space
        self._space: RocksSpace | None = None

    @property
    def unused(self) -> bool:
        """Whether there has never been a row."""
        return self._space is None

    def get(self, key: bytes) -> bytes | None:
        return None if self._space is None else self._space.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(keys) if self._space is None else self._space.get_many(keys)

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return iter(()) if self._space is None else self._space.scan(start, end)

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        if self._space is None:
            if not any(data is not None for data in rows.values()):
                return
            self._space = self._open_space()
        self._space.write(rows)

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        if self._space is None:
            self._space = self._open_space()
        self._space.put_many(keys, values)

    def trim(self) -> None:
        if self._space is not None:
            self._space.trim()

    def copy(self) -> RowCopy:
        return _NoRows() if self._space is None else self._space.copy()

    def clear(self) -> None:
        """Remove all rows and free their disk space; copies have them until they are released.

        The column family stays until the database is closed: a copy of it would read freed memory.
        """
        if self._space is not None:
            self._space.delete_range(b"", _ABOVE_ALL_ROWS)
            self._space.compact()


class _NoRows(RowCopy):
    """The copy of a space without rows."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def release(self) -> None:
        pass
