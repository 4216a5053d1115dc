"""Snapshots: canonical ones like those of every backend, and native ones of RocksDB's own files."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keyedstate.backend import (
    AnyStateTable,
    BackendContext,
    NativeFile,
    NativeSnapshot,
    NativeSnapshotStrategy,
    Snapshot,
)
from keyedstate.ordered import OrderedTable, store_of
from keyedstate.tables import FullSnapshotStrategy
from keyedstate_rocksdb.options import INCREMENTAL, METRICS
from keyedstate_rocksdb.store import RocksStore


class RocksSnapshotStrategy(NativeSnapshotStrategy):
    """Flink's ``RocksFullSnapshotStrategy`` and ``RocksIncrementalSnapshotStrategy``."""

    def __init__(self, context: BackendContext) -> None:
        self._context = context
        self._full = FullSnapshotStrategy(context)

    def prepare(self, checkpoint_id: int, tables: Mapping[str, AnyStateTable]) -> Snapshot:
        return self._full.prepare(checkpoint_id, tables)

    def metrics(self) -> Mapping[str, int]:
        """Return the properties and tickers that ``rocksdb.metrics`` names."""
        return store_of(self._context, RocksStore).metrics() if self._context.options[METRICS.name] else {}

    def prepare_native(
        self, checkpoint_id: int, tables: Mapping[str, AnyStateTable]
    ) -> NativeSnapshot | None:
        """Flush, and link the files of the database into a folder of their own."""
        if not self._context.options[INCREMENTAL.name]:
            return None
        numbers: dict[str, int] = {}
        for name, table in tables.items():
            assert isinstance(table, OrderedTable), "a table of this plugin"
            table.write_back()
            numbers[name] = table.codec.next_number
        store = store_of(self._context, RocksStore)
        folder = self._context.local_dir / f"checkpoint-{uuid.uuid4().hex}"
        try:
            store.checkpoint(folder)
            entries = {name: len(table) for name, table in tables.items()}
            return RocksNativeSnapshot(store, folder, entries, numbers)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


class RocksNativeSnapshot(NativeSnapshot):
    """A RocksDB checkpoint: hard links to the table files, and copies of the others."""

    def __init__(
        self, store: RocksStore, folder: Path, entries: Mapping[str, int], numbers: Mapping[str, int]
    ) -> None:
        self._store = store
        self.folder = folder
        self.entries = entries
        self.details: Mapping[str, Any] = {"numbers": dict(numbers)}
        self.files: Sequence[NativeFile] = [
            NativeFile(file.name, file.stat().st_size, store.origins.get(file.name))
            for file in sorted(folder.iterdir())
            if file.is_file()
        ]

    def stored(self, origins: Mapping[str, str]) -> None:
        self._store.know_origins(origins)

    def release(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
