"""The ordered byte store over RocksDB: a database per instance, a column family per state.

The write-ahead log is off: only checkpoints are durable.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import cast

from rocksdict import (
    BottommostLevelCompaction,
    Checkpoint,
    CompactOptions,
    IngestExternalFileOptions,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    SstFileWriter,
    WriteBatch,
    WriteOptions,
)

from keyedstate.backend import BackendContext
from keyedstate.memory import STATE_BACKEND
from keyedstate.ordered import ObjectMemory, OrderedStore, RowCopy, RowSpace
from keyedstate_rocksdb.engine_metrics import EngineMetrics
from keyedstate_rocksdb.errors import NOT_OF_ROCKSDB, opened, reading, unreadable, writing
from keyedstate_rocksdb.memory import shared_memory
from keyedstate_rocksdb.options import METRICS, SMALL_FILES
from keyedstate_rocksdb.tuning import Tuning

_log = logging.getLogger(__name__)

#: The prefix of column families of states: "default" is RocksDB's own.
_FAMILY = "state:"
_LEVELS = 7
#: Batches of so many rows are sorted first, which makes better use of the processor's caches.
_SORTED_ROWS = 4096
#: Rows that are sorted together: sorting more costs more than it saves.
_SORTED_AT_ONCE = 8192
_SMALL_FILE_BYTES = 50_000
#: The first distance between keys for which a copy tries the next row before a search.
_FIRST_STEP = 16
#: Rows of a scan that an iterator reads, before `Rdict.items` reads the rest.
_FIRST_ROWS = 16
#: The suffix of table files.
_TABLE = ".sst"
#: The name of the database's folder in the private folder of an instance.
DATABASE = "db"


class RocksStore(OrderedStore):
    """A database in the private folder of an instance.

    Each handle of a column family, iterator and snapshot keeps the database open, and the last of them closes
    it.  So a copy that another thread reads stays valid (Flink's ``ResourceGuard``).

    Parameters
    ----------
    context : BackendContext
        Of the instance; the database gives its part of the managed memory back when it is closed.
    consumer : str, default STATE_BACKEND
        Whose part that is.
    """

    def __init__(self, context: BackendContext, consumer: str = STATE_BACKEND) -> None:
        memory = context.closing.enter_context(shared_memory(context.options, consumer))
        self._tuning = Tuning(context.options, memory)
        self._small_files: int = context.options[SMALL_FILES.name]
        self.path: Path = context.local_dir / DATABASE
        #: Where each table file was uploaded to, by its name; the uploading thread adds to it.
        self.origins: dict[str, str] = {}
        self._write_options = WriteOptions()
        # The stub declares the attribute as a method.
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        self._spaces: dict[str, RocksSpace] = {}
        self._compaction: threading.Thread | None = None
        self._stopping = threading.Event()
        self._engine_metrics = EngineMetrics.of(context.options[METRICS.name])
        options = self._tuning.database()
        if self._engine_metrics.tickers:
            options.enable_statistics()
        self._options = options
        with opened(self.path):
            found = Rdict.list_cf(str(self.path)) if self.path.exists() else []
            states = [family for family in found if family.startswith(_FAMILY)]
            # RocksDB's own family has no rows.
            families = {"default": self._family_options("default")}
            families |= {family: self._family_options(family, n) for n, family in enumerate(states, 1)}
            self._database: Rdict | None = Rdict(str(self.path), options=options, column_families=families)
        for family in states:
            self._add(family, self._database.get_column_family(family))

    def _family_options(self, family: str, new: int = 0) -> Options:
        return self._tuning.column_family(family.removeprefix(_FAMILY), new)

    def _add(self, family: str, rows: Rdict) -> RocksSpace:
        state = family.removeprefix(_FAMILY)
        space = RocksSpace(self.database, rows, family, self._write_options, self._tuning)
        self._spaces[state] = space
        return space

    @property
    def objects(self) -> ObjectMemory | None:
        """The memory for cached entries of tables."""
        memory = self._tuning.memory
        return None if memory is None else memory.objects

    @property
    def database(self) -> Rdict:
        """The open database."""
        assert self._database is not None, "the store is closed"
        return self._database

    def open_space(self, state: str) -> RocksSpace:
        """Return the space of a state: its restored column family, or a new one."""
        if state in self._spaces:
            return self._spaces[state]
        family = _FAMILY + state
        with opened(self.path):
            rows = self.database.create_column_family(family, self._family_options(family, 1))
        return self._add(family, rows)

    def drop_space(self, state: str) -> None:
        """Remove the column family of a state."""
        self._spaces.pop(state).close()
        self.database.drop_column_family(_FAMILY + state)

    @property
    def states(self) -> list[str]:
        """The states that have a column family."""
        return list(self._spaces)

    def know_origins(self, origins: Mapping[str, str]) -> None:
        """Remember where table files were uploaded to: their names are unique, and other files change."""
        self.origins.update({name: origin for name, origin in origins.items() if name.endswith(_TABLE)})

    def metrics(self) -> dict[str, int]:
        """Return the metrics that ``rocksdb.metrics`` names."""
        return self._engine_metrics.read(
            {state: space.rows for state, space in self._spaces.items()}, self._options
        )

    def checkpoint(self, folder: Path) -> None:
        """Flush memory to disk, and link the files into a folder."""
        with writing(self.path):
            for space in self._spaces.values():
                space.rows.flush(wait=True)
                space.merge_small_files(self._small_files)
            Checkpoint(self.database).create_checkpoint(str(folder))

    def compact(self) -> None:
        """Begin to compact everything in the background; `close` aborts that and waits for its end."""
        self._compaction = threading.Thread(
            target=self._compact, args=(list(self._spaces.values()),), name="keyedstate-rocksdb-compaction"
        )
        self._compaction.start()

    def _compact(self, spaces: list[RocksSpace]) -> None:
        for space in spaces:
            if self._stopping.is_set():
                return
            try:
                space.compact()
            except Exception as error:  # rocksdict raises no other class
                _log.warning("rocksdb: the compaction of %s after a restore ended: %s", self.path, error)
                return

    def finish_compaction(self) -> None:
        """Wait for the end of a compaction."""
        if self._compaction is not None:
            self._compaction.join()
            self._compaction = None

    def close(self) -> None:
        if self._compaction is not None:
            self._stopping.set()
            self.database.cancel_all_background(False)
            self.finish_compaction()
        spaces, self._spaces = self._spaces, {}
        for space in spaces.values():
            space.close()
        if self._database is not None:
            _close(self._database)
            self._database = None


class RocksSpace(RowSpace):
    """A column family."""

    def __init__(
        self, database: Rdict, rows: Rdict, family: str, write_options: WriteOptions, tuning: Tuning
    ) -> None:
        self._database = database
        self.rows = rows
        self.family = family
        self._handle = database.get_column_family_handle(family)
        self._write_options = write_options
        self._tuning = tuning
        self._path = Path(database.path())
        self._state = family.removeprefix(_FAMILY)
        #: Keys that are looked up at once.
        self._together = tuning.looked_up_together
        # Bound once, for each look-up.
        self._get = rows.get
        if tuning.memory is not None:
            tuning.memory.spaces.add(self)

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._get(key)
        except NOT_OF_ROCKSDB:
            raise
        except Exception as error:  # rocksdict raises no other class
            raise unreadable(self._path, self._state, error) from error

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        wanted = keys if type(keys) is list else list(keys)
        found: list[bytes | None] = []
        with reading(self._path, self._state):
            for start in range(0, len(wanted), self._together):
                found += cast("list[bytes | None]", self.rows.get(wanted[start : start + self._together]))
        return found

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        with reading(self._path, self._state):
            yield from _items(self.rows, start, end)

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Write a batch without the write-ahead log."""
        batch = WriteBatch(raw_mode=True)
        batch.set_default_column_family(self._handle)
        put, delete = batch.put, batch.delete
        for key, value in rows.items():
            if value is None:
                delete(key)
            else:
                put(key, value)
        self._write(batch)

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        batch = WriteBatch(raw_mode=True)
        batch.set_default_column_family(self._handle)
        # `put` returns None, so `any` is a loop without Python code for each row.
        if len(keys) < _SORTED_ROWS:
            any(map(batch.put, keys, values))
        else:
            for start in range(0, len(keys), _SORTED_AT_ONCE):
                part = slice(start, start + _SORTED_AT_ONCE)
                rows = dict(zip(keys[part], values[part], strict=True))
                ordered = sorted(rows)
                any(map(batch.put, ordered, map(rows.__getitem__, ordered)))
        self._write(batch)

    def _write(self, batch: WriteBatch) -> None:
        with writing(self._path, self._state):
            self._database.write(batch, self._write_options)

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Remove the rows from a key, included, to another, excluded, with one tombstone."""
        with writing(self._path, self._state):
            self.rows.delete_range(start, end, self._write_options)

    def trim(self) -> None:
        """Flush the write buffer if the buffers of all databases take more than half of their memory.

        RocksDB flushes only buffers of the database that is written to.  So those of databases that are not
        leave the others the rest, at worst a flush for every batch.
        """
        memory = self._tuning.memory
        if memory is not None and memory.buffers_are_short:
            with writing(self._path, self._state):
                self.rows.flush()

    def merge_small_files(self, count: int) -> None:
        """Merge all files where there are at least `count`, and they are small; 0 for never.

        RocksDB moves files whose keys do not overlap to the next level without merging them (Flink's
        ``RocksDBManualCompactionManager``).
        """
        if not count:
            return
        levels = (
            self.rows.property_int_value(f"rocksdb.num-files-at-level{level}") for level in range(_LEVELS)
        )
        files = sum(number or 0 for number in levels)
        size = self.rows.property_int_value("rocksdb.total-sst-files-size") or 0
        if files >= count and size <= files * _SMALL_FILE_BYTES:
            self.compact()

    def compact(self) -> None:
        """Merge all files into one level, which frees the disk space of removed rows."""
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        self.rows.compact_range(None, None, options)

    def ingest(self, rows: Iterator[tuple[bytes, bytes]], folder: Path) -> None:
        """Add rows, which must be in the order of their keys, as table files.

        Parameters
        ----------
        rows : iterator
        folder : Path
            A temporary folder on the disk of the database; it is made and deleted.
        """
        options = self._tuning.column_family(self.family)
        files: list[str] = []
        folder.mkdir()
        try:
            with writing(self._path, self._state):
                while part := list(islice(rows, _SORTED_ROWS)):
                    files.append(str(folder / f"{len(files)}.sst"))
                    writer = SstFileWriter(options)
                    writer.open(files[-1])
                    while part:
                        any(map(writer.__setitem__, map(itemgetter(0), part), map(itemgetter(1), part)))
                        full = writer.file_size() >= self._tuning.values["target_file_bytes"]
                        part = [] if full else list(islice(rows, _SORTED_ROWS))
                    writer.finish()
                if files:
                    moving = IngestExternalFileOptions()
                    moving.set_move_files(True)
                    self.rows.ingest_external_file(files, moving)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def copy(self) -> RowCopy:
        """Return an iterator, which shows the present rows."""
        return _Copy(self.rows, self._path, self._state)

    def close(self) -> None:
        """Close the handles."""
        if self._tuning.memory is not None:
            self._tuning.memory.spaces.discard(self)
        _close(self.rows)
        del self.rows, self._database, self._handle, self._get


class _Copy(RowCopy):
    """An iterator, which shows the rows of the time when it was made.

    Iterators over a snapshot of rocksdict show later writes too, up to its version 0.3.29.
    """

    def __init__(self, rows: Rdict, path: Path, state: str) -> None:
        self._iterator: RdictIter | None = rows.iter(_scanning())
        #: How often a scan or a look-up has moved it to another place.
        self._moves = 0
        self._path = path
        self._state = state

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        rows = self._live()
        self._moves += 1
        found: dict[bytes, bytes] = {}
        with reading(self._path, self._state):
            # In their order, the keys of a block are read from the block at once.
            follows, step, tried = False, _FIRST_STEP, 1
            for number, key in enumerate(sorted(keys)):
                # The next row costs a tenth of a search, and new keys are often neighbours.  But it may lie
                # behind many removed rows, so the copy tries it less often each time that it is another one.
                if (follows or number == tried) and rows.valid():
                    rows.next()
                    follows = _is_at(rows, key)
                    tried, step = number + step, _FIRST_STEP if follows else 2 * step
                if not follows:
                    rows.seek(key)
                if follows or _is_at(rows, key):
                    found[key] = rows.value()
        return list(map(found.get, keys))

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        rows = self._live()
        valid, key_of, value_of, following = rows.valid, rows.key, rows.value, rows.next
        moves = self._move_to(rows, start)
        while valid():
            key = key_of()
            if end is not None and key >= end:
                return
            yield key, value_of()
            rows = self._live()
            if self._moves != moves:
                moves = self._move_to(rows, key)
            following()
        with reading(self._path, self._state):
            rows.status()

    def _move_to(self, rows: RdictIter, key: bytes) -> int:
        """Move the iterator, and return the number of this move, by which others see that it was moved."""
        self._moves += 1
        rows.seek(key)
        return self._moves

    def _live(self) -> RdictIter:
        iterator = self._iterator
        if iterator is None:
            raise ValueError("the copy was released")
        return iterator

    def release(self) -> None:
        """Drop the iterator; it is freed when no other thread reads it any more."""
        self._iterator = None


def _is_at(rows: RdictIter, key: bytes) -> bool:
    """Return whether an iterator is at a key; raises where it cannot read, which its next move would hide."""
    if rows.valid():
        found: bytes = rows.key()
        return found == key
    rows.status()
    return False


def _close(rows: Rdict) -> None:
    """Close a handle, which flushes; a failure, as on a full disk, does no harm."""
    try:
        rows.close()
    except Exception as error:  # rocksdict raises no other class
        _log.info("rocksdb: memory was not flushed when a handle was closed: %s", error)


def _scanning() -> ReadOptions:
    """Return options for a scan of everything, which must not evict other blocks from the cache."""
    options = ReadOptions()
    options.fill_cache(False)  # type: ignore[call-arg] # its stub leaves the argument out
    return options


def _items(rows: Rdict, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    bounds = ReadOptions()
    if end is not None:
        bounds.set_iterate_upper_bound(end)
    # A generator, to keep the options alive: they own the memory of the bound that rocksdict compares with.
    found = rows.iter(bounds)
    found.seek(start)
    valid, key, value, following = found.valid, found.key, found.value, found.next
    # `Rdict.items` costs two thirds of the iterator's three calls for each row, but as much to make as the
    # iterator, and a scan of a few rows is what lists and maps ask for most.
    for _ in range(_FIRST_ROWS):
        if not valid():
            break
        yield key(), value()
        following()
    if valid():
        last: bytes | None = None
        # The database is raw, which the stub does not know.
        for row in cast("Iterator[tuple[bytes, bytes]]", rows.items(from_key=key(), read_opt=bounds)):
            yield row
            last = row[0]
        # The items also end where RocksDB cannot read the next one.  The iterator tells of it, or reads on
        # where it can: it may have older files, and a disk may have failed once.
        if last is not None:
            found.seek(last)
            if valid():
                following()
        while valid():
            yield key(), value()
            following()
    found.status()
