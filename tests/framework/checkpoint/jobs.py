"""An operator reduced to its checkpoints: every key holds the list of the epochs that it has seen.

A state in which an epoch is missing was lost, one in which it occurs twice counted it twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from keyedstate.backend import EntryBatch, StateKind, StateMeta
from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.format.operator_state import OperatorStateFile
from keyedstate.checkpoint.format.segment import SegmentWriter
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement, CheckpointCoordinator
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.owner import write_attempt
from keyedstate.checkpoint.protocol.recovery import claim, find_restore_point, handles_for
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import KeyGroupRange, key_group_range_for
from keyedstate.types import INT64, STRING, VOID, VOID_NAMESPACE, list_of

EPOCHS = StateMeta("epochs", StateKind.VALUE, STRING, VOID, list_of(INT64))

State = dict[int, list[int]]


class Job:
    """The tasks of one operator; the key of key group 3 is ``key-3``.

    Before its first epoch each key has seen those `before`.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        *,
        uid: str = "views",
        query: str = "query-1",
        parallelism: int = 2,
        max_parallelism: int = 8,
        first_attempt: int = 0,
        before: Sequence[int] = (),
    ) -> None:
        self.folder = OperatorFolder(storage, uid)
        self.query = query
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self._attempts = itertools.count(first_attempt)
        self.before = before

    def identity(self, run: str, epoch: int, partition: int) -> TaskIdentity:
        """Return the identity of a new attempt."""
        attempt = next(self._attempts)
        return TaskIdentity(
            uid=self.folder.uid,
            query_id=self.query,
            run_id=run,
            epoch=epoch,
            partition=partition,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            attempt=attempt,
            nonce=f"{run}x{epoch}x{partition}x{attempt}",
        )

    def key_groups(self, identity: TaskIdentity) -> KeyGroupRange:
        return key_group_range_for(identity.partition, identity.parallelism, identity.max_parallelism)

    def begin(self, identity: TaskIdentity) -> State:
        """Do what a task does before its rows; returns the restored state."""
        claim(self.folder, identity)
        self.folder.write_started(identity)
        base = find_restore_point(self.folder, identity)
        return {} if base is None else self.read(base, self.key_groups(identity))

    def write_data(self, identity: TaskIdentity, state: State) -> SegmentFile:
        """Count the epoch for every key and write the state."""
        key_groups = self.key_groups(identity)
        writer = SegmentWriter(self.folder.storage, self.folder.data_path(identity), key_groups)
        writer.begin_state(EPOCHS)
        for group in key_groups:
            seen = [*state.get(group, self.before), identity.epoch]
            writer.write_entries(group, [EntryBatch([VOID_NAMESPACE], [f"key-{group}"], [seen])])
        return writer.finish()

    def write_manifest(
        self,
        identity: TaskIdentity,
        segment: SegmentFile,
        operator_state: OperatorStateFile | None = None,
    ) -> Acknowledgement:
        manifest = self.manifest(identity, segment, operator_state)
        return Acknowledgement(identity, write_attempt(self.folder, manifest))

    def manifest(
        self,
        identity: TaskIdentity,
        segment: SegmentFile,
        operator_state: OperatorStateFile | None = None,
    ) -> AttemptManifest:
        """Return the manifest of an attempt that has written its state."""
        return AttemptManifest(
            identity=identity,
            key_groups=self.key_groups(identity),
            backend="none",
            backend_version="1",
            states=(EPOCHS.to_json(),),
            segments=(segment,),
            entries=segment.entries,
            rows_in=10,
            rows_out=5,
            largest_event_time=None,
            sync_ms=0.1,
            write_ms=2.5,
            restore_ms=0.0,
            process_ms=7.0,
            bytes=segment.bytes,
            key_columns=(("app_id", "string"),),
            operator_state=operator_state,
        )

    def task(self, run: str, epoch: int, partition: int) -> Acknowledgement:
        """Run one task to its end."""
        identity = self.identity(run, epoch, partition)
        return self.write_manifest(identity, self.write_data(identity, self.begin(identity)))

    def epoch(
        self, run: str, epoch: int, coordinator: CheckpointCoordinator | None = None
    ) -> list[Acknowledgement]:
        """Run all tasks of an epoch, and acknowledge them where there is a coordinator."""
        words = [self.task(run, epoch, partition) for partition in range(self.parallelism)]
        if coordinator is not None:
            for word in words:
                coordinator.acknowledge(word)
            coordinator.drain()
        return words

    def read(self, metadata: CheckpointMetadata, key_groups: KeyGroupRange | None = None) -> State:
        """Return the epochs that every key has seen, by key group."""
        key_groups = key_groups or KeyGroupRange(0, self.max_parallelism - 1)
        state: State = {}
        for handle in handles_for(metadata, self.folder.storage, key_groups):
            for group in handle.key_groups.intersection(key_groups):
                for batch in handle.entries(EPOCHS.name, group):
                    assert (group not in state, batch.keys) == (True, [f"key-{group}"])
                    state[group] = batch.values[0]
            handle.close()
        return state

    def published(self, epoch: int) -> State | None:
        """Return the state of a published checkpoint, or None."""
        metadata = self.folder.read_metadata(epoch)
        return None if metadata is None else self.read(metadata)

    def state_of(self, *epochs: int) -> State:
        """Return the state after every key has seen these epochs."""
        return {group: [*self.before, *epochs] for group in range(self.max_parallelism)}

    def files(self, folder: str = "data") -> list[str]:
        return list(self.folder.storage.list(folder))


def entries_of(batches: Any) -> list[tuple[Any, Any, Any]]:
    """Return batches as a list of (namespace, key, value)."""
    return [
        entry for batch in batches for entry in zip(batch.namespaces, batch.keys, batch.values, strict=True)
    ]
