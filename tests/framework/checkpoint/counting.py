"""An operator that counts keys, with real backends, deltas and operator state, at any parallelism."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from support.backends import backend_of

from keyedstate import types
from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.format.operator_state import read_operator_state
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement, CheckpointCoordinator
from keyedstate.checkpoint.protocol.full_snapshots import FullSnapshotRules
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.recovery import claim, find_restore_point, handles_for
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.epoch.epoch_writer import EpochWriter
from keyedstate.keygroups import KeyGroupRange, key_group_range_for
from keyedstate.state import OperatorListState, UnionListState, ValueState
from keyedstate.state.context import KeyContext
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

COUNT = ValueState("count", types.INT64, default=0)
SPLIT = OperatorListState("split", types.INT64)
UNION = UnionListState("union", types.INT64)


class CountingOperator:
    """Counts the rows of each key; each task also notes the epochs that it has seen."""

    def __init__(self, storage: CheckpointStorage, backend: str, max_parallelism: int) -> None:
        self.folder = OperatorFolder(storage, "counts")
        self.backend = backend
        self.max_parallelism = max_parallelism
        self.rules = FullSnapshotRules(max_deltas=3, min_bytes=0, max_concurrent=0, tolerable_failures=99)
        self.numbers = itertools.count()
        self.parallelism = 1
        self.run = "run-0"
        self.counts: dict[str, int] = {}
        places = KeyContext(types.STRING, KeyGroupRange(0, max_parallelism - 1), max_parallelism)
        self.group_of = lambda keys: dict(zip(*places.locate(keys), strict=True))

    def restart(self, parallelism: int) -> None:
        self.parallelism = parallelism
        self.run = f"run-{next(self.numbers)}"
        self.coordinator = CheckpointCoordinator(self.folder)

    def epoch(self, epoch: int, keys: list[str]) -> None:
        """Run an epoch over rows with these keys; ``counts`` has what they count to then."""
        groups = self.group_of(sorted(set(keys)))
        self.counts = {}
        for partition in range(self.parallelism):
            own = key_group_range_for(partition, self.parallelism, self.max_parallelism)
            self.task(epoch, partition, own, [key for key in keys if groups[key] in own])
        self.coordinator.drain()

    def task(self, epoch: int, partition: int, own: KeyGroupRange, keys: list[str]) -> None:
        number = next(self.numbers)
        identity = TaskIdentity(
            "counts", "query", self.run, epoch, partition, self.parallelism, self.max_parallelism, number,
            f"n{number}",
        )  # fmt: skip
        claim(self.folder, identity)
        self.folder.write_started(identity)
        restore_point = find_restore_point(self.folder, identity)
        writing = self.rules.choose(restore_point, identity, asynchronous=False, now_ms=0)
        operator = OperatorStateBackend(self.operator_state(restore_point, identity))
        with self.opened(restore_point, own, track=restore_point is not None) as backend:
            writer = EpochWriter(backend, operator, self.folder, self.rules, "zstd")
            writer.begin(identity, restore_point, writing)
            count = backend.get_state(COUNT)
            for key in keys:
                backend.set_current_key(key)
                count.update(count.value() + 1)
                self.counts[key] = count.value()
            operator.get_state(SPLIT).add(epoch)
            operator.get_state(UNION).update([epoch])
            saved = writer.end()
            states = tuple(meta.to_json() for meta in backend.metas())
            entries = backend.entries_by_state()
        manifest = AttemptManifest(
            identity, own, self.backend, "1", states, saved.segments, entries, len(keys), 0, None,
            0.0, 0.0, 0.0, 0.0, saved.bytes, deltas=saved.deltas,
            full_snapshots=saved.full_snapshots, operator_state=saved.operator_state,
        )  # fmt: skip
        same = restore_point is not None and restore_point.parallelism == self.parallelism
        shared = restore_point.parts[partition].kept_files if restore_point is not None and same else ()
        path = self.folder.write_manifest(manifest, shared)
        self.coordinator.acknowledge(Acknowledgement(identity, path))

    def operator_state(self, restore_point: CheckpointMetadata | None, identity: TaskIdentity) -> Any:
        if restore_point is None:
            return ()
        return read_operator_state(
            self.folder.storage,
            [part.operator_state for part in restore_point.parts],
            identity.partition,
            self.parallelism,
            restarted=restore_point.run_id != identity.run_id,
        )

    @contextlib.contextmanager
    def opened(
        self, restore_point: CheckpointMetadata | None, own: KeyGroupRange, track: bool = False
    ) -> Iterator[KeyedStateBackend]:
        chosen = backend_of(self.backend)
        handles = [] if restore_point is None else handles_for(restore_point, self.folder.storage, own)
        backend = KeyedStateBackend.open(
            chosen,
            KeySpace(types.STRING, own, self.max_parallelism),
            handles,
            track_changes=track,
        )
        for handle in handles:
            handle.close()
        with contextlib.closing(backend):
            yield backend

    def stored(self, epoch: int) -> dict[str, int]:
        """Return all counts of a checkpoint."""
        metadata = self.folder.read_metadata(epoch)
        assert metadata is not None
        with self.opened(metadata, KeyGroupRange(0, self.max_parallelism - 1)) as backend:
            count = backend.get_state(COUNT)
            found = {}
            for key in list(backend.get_keys("count")):
                backend.set_current_key(key)
                found[key] = count.value()
            return found

    def operator_lists(self, epoch: int) -> tuple[list[int], list[list[int]]]:
        """Return the split elements of all tasks of a checkpoint, and the union list of each."""
        metadata = self.folder.read_metadata(epoch)
        assert metadata is not None
        split, union = [], []
        for number, part in enumerate(metadata.parts):
            parts = [part.operator_state if other is part else None for other in metadata.parts]
            restored = read_operator_state(self.folder.storage, parts, number, len(parts), restarted=False)
            backend = OperatorStateBackend(restored)
            split += backend.get_state(SPLIT).get()
            union.append(backend.get_state(UNION).get())
        return sorted(split), union
