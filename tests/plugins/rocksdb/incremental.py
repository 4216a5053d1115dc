"""Epochs of an operator over rocksdb without Spark: the state writer, real checkpoints and clean-up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.inside import rocksdb_rows, state_tables

from keyedstate import types
from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, Owner, TaskIdentity
from keyedstate.checkpoint.protocol.full_snapshots import FullSnapshotRules, SnapshotKind
from keyedstate.checkpoint.protocol.local_copies import open_with_copies
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.recovery import handles_for
from keyedstate.checkpoint.protocol.retention import prune
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.epoch.epoch_writer import EpochWriter
from keyedstate.keygroups import KeyGroupRange, key_group_ranges
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.chosen_backend import ChosenBackend, KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing.instances import chosen_backend

INCREMENTAL = {"rocksdb.incremental": True}
_nonces = itertools.count()


class Job:
    """An operator whose instances stay open from epoch to epoch, until `restart`.

    Attributes
    ----------
    folder : OperatorFolder
    instances : list of KeyedStateBackend
    """

    def __init__(
        self,
        directory: Path,
        *,
        backend: str = "rocksdb",
        options: Mapping[str, object] = INCREMENTAL,
        max_parallelism: int = 10,
        retained: int = 2,
        copies: Path | None = None,
        timer_queue: str = "auto",
    ) -> None:
        self.timer_queue = timer_queue
        self._copies = copies
        self._directory = directory
        self.folder = OperatorFolder(CheckpointStorage.open(directory / "checkpoints"), "job")
        self.folder.write_owner(Owner("q", "job", max_parallelism, 0, ("r",)))
        self._backend, self._options = backend, options
        self._max_parallelism, self._retained = max_parallelism, retained
        self.instances: list[KeyedStateBackend] = []
        self._writers: list[EpochWriter] = []
        self.point: CheckpointMetadata | None = None
        self.epoch = 0

    def restart(
        self,
        parallelism: int = 1,
        *,
        backend: str | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """Open new instances from the last checkpoint."""
        self.close()
        self._options = self._options if options is None else options
        if self._copies is not None:
            plain = OperatorFolder(CheckpointStorage.open(self._directory / "checkpoints"), "job")
            self.folder = open_with_copies(self._copies, plain, self.epoch, self.point)
        self._backend = backend or self._backend
        options = self._options if self._backend == "rocksdb" else {}
        plugin, parsed = chosen_backend(self._backend, options)
        for key_groups in key_group_ranges(parallelism, self._max_parallelism):
            with ExitStack() as opened:
                handles = []
                if self.point is not None:
                    handles = handles_for(self.point, self.folder.storage, key_groups)
                for handle in handles:
                    opened.callback(handle.close)
                instance = KeyedStateBackend.open(
                    ChosenBackend(plugin, parsed, timer_queue=self.timer_queue),
                    KeySpace(types.INT64, key_groups, self._max_parallelism),
                    handles,
                    local_base=self._directory,
                    track_changes=True,
                )
            self.instances.append(instance)
            rules = FullSnapshotRules(max_deltas=5, min_bytes=0)
            self._writers.append(EpochWriter(instance, OperatorStateBackend(), self.folder, rules, "zstd"))

    def run(
        self,
        change: Callable[[KeyedStateBackend], None],
        *,
        writing: SnapshotKind = SnapshotKind.FULL,
        publish: bool = True,
    ) -> list[AttemptManifest]:
        """Run an epoch in each instance; without `publish` it is aborted, and the epoch runs again."""
        parts = []
        for partition, (instance, writer) in enumerate(zip(self.instances, self._writers, strict=True)):
            nonce = f"n{next(_nonces)}"
            identity = TaskIdentity(
                "job", "q", "r", self.epoch, partition, len(self.instances), self._max_parallelism, 1, nonce
            )
            self.folder.write_started(identity)
            same = self.point is not None and self.point.parallelism == len(self.instances)
            writer.begin(identity, self.point, writing if same else SnapshotKind.FULL)
            change(instance)
            saved = writer.end()
            assert saved.entries == instance.entries_by_state()
            manifest = AttemptManifest(
                identity=identity,
                key_groups=instance.key_groups,
                backend=instance.backend_name,
                backend_version="1",
                states=tuple(meta.to_json() for meta in instance.metas()),
                segments=saved.segments,
                deltas=saved.deltas,
                native=saved.native,
                entries=saved.entries,
                rows_in=0,
                rows_out=0,
                largest_event_time=None,
                sync_ms=saved.sync_ms,
                write_ms=0.0,
                restore_ms=0.0,
                process_ms=0.0,
                bytes=saved.bytes,
                full_snapshots=saved.full_snapshots,
                unfinished=saved.unfinished,
                metrics=instance.metrics(),
            )
            shared = set().union(*(part.kept_files for part in self.point.parts)) if self.point else set()
            self.folder.write_manifest(manifest, shared)
            parts.append(manifest)
        if publish:
            self.point = CheckpointMetadata.of(parts)
            self.folder.write_metadata(self.point)
            prune(self.folder, self.point, self._retained)
            self.epoch += 1
        return parts

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
        for instance in self.instances:
            instance.close()
        self._writers, self.instances = [], []

    @property
    def stored(self) -> set[str]:
        """The data files in the storage."""
        return set(self.folder.data_files())


def tables_of(part: AttemptManifest) -> dict[str, str]:
    """Return the paths of a native base's table files by their names."""
    assert part.native is not None
    return {file.name: file.path for file in part.native.files if file.name.endswith(".sst")}


def column_family(instance: Any, state: str) -> Any:
    """Return RocksDB's handle of a state's column family."""
    return rocksdb_rows(state_tables(instance)[state])


def full_range(max_parallelism: int) -> KeyGroupRange:
    return KeyGroupRange(0, max_parallelism - 1)
