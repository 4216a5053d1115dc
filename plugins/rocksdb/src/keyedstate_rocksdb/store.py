"""The ordered byte store over RocksDB: a database per instance, a column family per state.

The write-ahead log is off: what lasts is what a checkpoint holds.
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
from keyedstate.ordered import ObjectMemory, OrderedStore, RowCopy, RowSpace
from keyedstate_rocksdb.engine_metrics import EngineMetrics
from keyedstate_rocksdb.errors import NOT_OF_ROCKSDB, opened, reading, unreadable, writing
from keyedstate_rocksdb.options import METRICS, SMALL_FILES
from keyedstate_rocksdb.tuning import Tuning

_log = logging.getLogger(__name__)

#: What the names of column families begin with: "default" is RocksDB's own.
_FAMILY = "state:"
_LEVELS = 7
#: Batches of so many rows are sorted first: neighbours then meet the same part of the processor's caches.
_SORTED_ROWS = 4096
#: So many at once: their order is worth less than what it costs to sort many more.
_SORTED_AT_ONCE = 8192
_SMALL_FILE_BYTES = 50_000
#: What the names of table files end with.
_TABLE = ".sst"
#: The name of the database's folder below the private one of an instance.
DATABASE = "db"


class RocksStore(OrderedStore):
    """A database in the private folder of an instance.

    Handles of column families, iterators and snapshots each keep the database open, so it is closed by the
    last of them; a copy that another thread is reading is never torn away (Flink's ``ResourceGuard``).

    Parameters
    ----------
    context : BackendContext
    """

    def __init__(self, context: BackendContext) -> None:
        self._tuning = Tuning(context.options)
        self._small_files: int = context.options[SMALL_FILES.name]
        self.path: Path = context.local_dir / DATABASE
        #: By the name of a table file, where it was uploaded to; the thread that uploads adds to it.
        self.origins: dict[str, str] = {}
        self._write_options = WriteOptions()
        # Its stub has an attribute as a method.
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
            families = Rdict.list_cf(str(self.path)) if self.path.exists() else ["default"]
            self._database: Rdict | None = Rdict(
                str(self.path),
                options=options,
                column_families={family: self._family_options(family) for family in families},
            )
        for family in families:
            if family.startswith(_FAMILY):
                self._add(family, self._database.get_column_family(family))

    def _family_options(self, family: str) -> Options:
        return self._tuning.column_family(family.removeprefix(_FAMILY))

    def _add(self, family: str, rows: Rdict) -> RocksSpace:
        state = family.removeprefix(_FAMILY)
        space = RocksSpace(self.database, rows, family, self._write_options, self._tuning)
        self._spaces[state] = space
        return space

    @property
    def objects(self) -> ObjectMemory | None:
        """What entries of tables may be cached in."""
        memory = self._tuning.memory
        return None if memory is None else memory.objects

    @property
    def database(self) -> Rdict:
        """The open database."""
        assert self._database is not None, "the store is closed"
        return self._database

    def open_space(self, state: str) -> RocksSpace:
        """Return the space of a state: the column family that was restored, or a new one."""
        if state in self._spaces:
            return self._spaces[state]
        family = _FAMILY + state
        with opened(self.path):
            rows = self.database.create_column_family(family, self._family_options(family))
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
        """Remember where table files are; a database gives no name twice, and what else it has it changes."""
        self.origins.update({name: origin for name, origin in origins.items() if name.endswith(_TABLE)})

    def metrics(self) -> dict[str, int]:
        """Return what was asked for with ``rocksdb.metrics``."""
        return self._engine_metrics.read(
            {state: space.rows for state, space in self._spaces.items()}, self._options
        )

    def checkpoint(self, folder: Path) -> None:
        """Link what is there now into a folder, memory written to disk before."""
        with writing(self.path):
            for space in self._spaces.values():
                space.rows.flush(wait=True)
                space.merge_small_files(self._small_files)
            Checkpoint(self.database).create_checkpoint(str(folder))

    def compact(self) -> None:
        """Begin to compact everything beside the work; closing waits until RocksDB has given that up."""
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
        """Wait for a compaction that was begun."""
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
        # Bound once: this is called for each look-up.
        self._get = rows.get

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._get(key)
        except NOT_OF_ROCKSDB:
            raise
        except Exception as error:  # rocksdict raises no other class
            raise unreadable(self._path, error) from error

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        wanted = keys if type(keys) is list else list(keys)
        with reading(self._path):
            return cast("list[bytes | None]", self.rows.get(wanted)) if wanted else []

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        with reading(self._path):
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
        # `put` returns None: a loop without a step of Python for each row.
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
        with writing(self._path):
            self._database.write(batch, self._write_options)

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Remove the rows from a key, included, to another, excluded, by one mark."""
        with writing(self._path):
            self.rows.delete_range(start, end, self._write_options)

    def merge_small_files(self, count: int) -> None:
        """Merge all files where there are so many, and small ones; 0 for never.

        RocksDB does not do so where their keys do not overlap: it moves them down a level as they are
        (Flink's ``RocksDBManualCompactionManager``).
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
        """Merge all files into one level: what was removed leaves the disk."""
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        self.rows.compact_range(None, None, options)

    def ingest(self, rows: Iterator[tuple[bytes, bytes]], folder: Path) -> None:
        """Take over rows, which come in the order of their keys, as table files of their own.

        Parameters
        ----------
        rows : iterator
        folder : Path
            On the disk of the database, for the files until they are taken over; it is made and deleted.
        """
        options = self._tuning.column_family(self.family)
        files: list[str] = []
        folder.mkdir()
        try:
            with writing(self._path):
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
        """Return an iterator, which holds on to what is there now."""
        return _Copy(self.rows, self._path)

    def close(self) -> None:
        """Give the handles up."""
        _close(self.rows)
        del self.rows, self._database, self._handle, self._get


class _Copy(RowCopy):
    """An iterator, which sees what was there when it was made.

    A snapshot of rocksdict's is none for its own iterators: up to 0.3.29 they show what was written later.
    """

    def __init__(self, rows: Rdict, path: Path) -> None:
        self._iterator: RdictIter | None = rows.iter(_scanning())
        self._path = path

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        rows = self._held()
        found: list[bytes | None] = []
        with reading(self._path):
            for key in keys:
                rows.seek(key)
                found.append(rows.value() if rows.valid() and rows.key() == key else None)
            rows.status()
        return found

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        rows = self._held()
        rows.seek(start)
        while rows.valid():
            key = rows.key()
            if end is not None and key >= end:
                return
            yield key, rows.value()
            rows = self._held()
            # Another scan or look-up may have moved it.
            if not rows.valid() or rows.key() != key:
                rows.seek(key)
            rows.next()
        with reading(self._path):
            rows.status()

    def _held(self) -> RdictIter:
        iterator = self._iterator
        if iterator is None:
            raise ValueError("the copy was released")
        return iterator

    def release(self) -> None:
        """Give the iterator up; one that another thread is reading goes when that is through."""
        self._iterator = None


def _close(rows: Rdict) -> None:
    """Close a handle, which flushes: where that fails, as on a full disk, nothing is lost by it."""
    try:
        rows.close()
    except Exception as error:  # rocksdict raises no other class
        _log.info("rocksdb: memory was not flushed before it was given up: %s", error)


def _scanning() -> ReadOptions:
    """Return how a pass over everything reads: what is read often stays in the cache."""
    options = ReadOptions()
    options.fill_cache(False)  # type: ignore[call-arg] # its stub leaves the argument out
    return options


def _items(rows: Rdict, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    bounds = ReadOptions()
    if end is not None:
        bounds.set_iterate_upper_bound(end)
    # A generator, since the bound lies in the options and nobody else keeps them: without them rocksdict
    # compares with whatever comes to lie there.
    yield from rows.items(from_key=start, read_opt=bounds)
