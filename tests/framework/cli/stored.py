"""An operator that writes checkpoints without Spark: full snapshots, deltas, operator state."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator
from typing import Any

from keyedstate.backend import AddressBatch, EntryBatch, SnapshotSink, StateKind, StateMeta
from keyedstate.checkpoint.format.delta import write_delta
from keyedstate.checkpoint.format.manifest import AttemptManifest, TaskIdentity
from keyedstate.checkpoint.format.operator_state import OperatorStateFile, write_operator_state
from keyedstate.checkpoint.format.segment import SegmentWriter
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement, CheckpointCoordinator
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder, data_paths
from keyedstate.checkpoint.protocol.recovery import claim
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import KeyGroupRange, key_group_range_for
from keyedstate.operator_state import OPERATOR_KEY_GROUP, OperatorStateKind, OperatorStateMeta
from keyedstate.tables import GatheredChanges, GroupChanges
from keyedstate.types import FLOAT64, INT64, STRING, VOID, VOID_NAMESPACE, list_of, map_of, nullable

KEY = nullable(STRING)
STATES = {
    "flights": StateMeta("flights", StateKind.VALUE, KEY, VOID, INT64),
    "delay": StateMeta("delay", StateKind.VALUE, KEY, VOID, FLOAT64),
    "seen": StateMeta("seen", StateKind.LIST, KEY, VOID, list_of(STRING)),
    "destinations": StateMeta("destinations", StateKind.MAP, KEY, VOID, map_of(STRING, INT64)),
}
RULES = OperatorStateMeta("rules", OperatorStateKind.BROADCAST, STRING, INT64)
OFFSETS = OperatorStateMeta.of_list("offsets", OperatorStateKind.LIST, INT64)


class Query:
    """One operator of a query; its state is a plain dict, by state and key."""

    def __init__(
        self,
        uri: Any,
        uid: str = "aircraft",
        *,
        query_id: str = "query-1",
        parallelism: int = 2,
        max_parallelism: int = 8,
        retained: int = 2,
        operator_state: bool = False,
        states: dict[str, StateMeta] | None = None,
    ) -> None:
        self.folder = OperatorFolder(CheckpointStorage.open(uri), uid)
        self.query_id = query_id
        self.run_id = "run-1"
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self.operator_state = operator_state
        self.metas = states or dict(STATES)
        self.state: dict[str, dict[Any, Any]] = {name: {} for name in self.metas}
        self._coordinator = CheckpointCoordinator(self.folder, retained=retained)
        self._attempts = itertools.count()
        #: Of the newest epoch, by partition: its files, and the state in them.
        self._before: dict[int, AttemptManifest] = {}
        self._written: dict[str, dict[Any, Any]] = {}

    def fill(self, keys: int = 40) -> None:
        """Give every state entries: text and None as keys, NaN among the values."""
        for number in range(keys):
            key = None if number == 0 else f"N{number}"
            self.state["flights"][key] = number
            self.state["delay"][key] = math.nan if number % 7 == 0 else number / 4
            self.state["seen"][key] = [f"s{number}", "x"]
            self.state["destinations"][key] = {"JFK": number, "EWR": 1}

    def group_of(self, key: Any) -> int:
        return zlib.crc32(repr(key).encode()) % self.max_parallelism

    def identity(self, epoch: int, partition: int) -> TaskIdentity:
        attempt = next(self._attempts)
        return TaskIdentity(
            uid=self.folder.uid,
            query_id=self.query_id,
            run_id=self.run_id,
            epoch=epoch,
            partition=partition,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            attempt=attempt,
            nonce=f"{self.run_id}-e{epoch}p{partition}t{attempt}",
        )

    def epoch(self, epoch: int, *, delta: bool = False, publish: bool = True) -> list[Acknowledgement]:
        """Run an epoch; `delta` writes what changed since the one before."""
        words = [self.task(epoch, partition, delta=delta) for partition in range(self.parallelism)]
        self._written = {name: dict(entries) for name, entries in self.state.items()}
        if publish:
            for word in words:
                self._coordinator.acknowledge(word)
            # Clean-up continues in the background; a test wants to see what it leaves.
            assert self._coordinator.drain(600)
        return words

    def task(self, epoch: int, partition: int, *, delta: bool = False) -> Acknowledgement:
        identity = self.identity(epoch, partition)
        claim(self.folder, identity)
        self.folder.write_started(identity)
        groups = key_group_range_for(partition, self.parallelism, self.max_parallelism)
        before = self._before.get(partition) if delta else None
        if before is None:
            segments, deltas = (self._whole(identity, groups),), ()
        else:
            segments, deltas = before.segments, (*before.deltas, self._changes(identity, groups))
        operator_state = self._operator_state(identity) if self.operator_state else None
        own = (*segments, *deltas)[-1]
        manifest = AttemptManifest(
            identity=identity,
            key_groups=groups,
            backend="nested-map",
            backend_version="0.1.0",
            states=tuple(meta.to_json() for meta in self.metas.values()),
            segments=segments,
            deltas=deltas,
            entries={
                name: sum(self.group_of(key) in groups for key in entries)
                for name, entries in self.state.items()
            },
            rows_in=100 + partition,
            rows_out=50,
            largest_event_time=1_700_000_000_000,
            watermark=1_699_999_940_000,
            sync_ms=0.25,
            write_ms=2.5,
            restore_ms=4.0,
            process_ms=70.0 + partition,
            bytes=own.bytes,
            key_columns=(("tailnum", "string"),),
            operator_state=operator_state,
        )
        self._before[partition] = manifest
        shared = set() if before is None else before.data_files
        return Acknowledgement(identity, self.folder.write_manifest(manifest, shared))

    def _whole(self, identity: TaskIdentity, groups: KeyGroupRange) -> SegmentFile:
        writer = SegmentWriter(self.folder.storage, self.folder.data_path(identity), groups)
        for name, meta in self.metas.items():
            writer.begin_state(meta)
            for group in groups:
                entries = list(self._entries(name, group))
                writer.write_entries(group, [_batch(entries)])
        return writer.finish()

    def _entries(self, name: str, group: int) -> Iterator[tuple[Any, Any]]:
        return ((key, value) for key, value in self.state[name].items() if self.group_of(key) == group)

    def _changes(self, identity: TaskIdentity, groups: KeyGroupRange) -> SegmentFile:
        changes = {}
        for name, now in self.state.items():
            before = self._written.get(name, {})
            by_group = {}
            for group in groups:
                put = [(key, now[key]) for key in now if key not in before or before[key] is not now[key]]
                gone = [key for key in before if key not in now]
                mine = [key for key in gone if self.group_of(key) == group]
                by_group[group] = GroupChanges(
                    _batch([entry for entry in put if self.group_of(entry[0]) == group]),
                    AddressBatch([VOID_NAMESPACE] * len(mine), mine),
                )
            changes[name] = GatheredChanges(by_group)
        path = self.folder.data_path(identity)
        return write_delta(self.folder.storage, path, groups, self.metas, changes)

    def _operator_state(self, identity: TaskIdentity) -> OperatorStateFile:
        def write(sink: SnapshotSink) -> None:
            sink.begin_state(RULES.entries_meta)
            sink.write_entries(OPERATOR_KEY_GROUP, [_batch([("delayed", 15), ("late", 60)])])
            sink.begin_state(OFFSETS.entries_meta)
            first = 10 * identity.partition
            sink.write_entries(OPERATOR_KEY_GROUP, [_batch([(0, first), (1, first + 1)])])

        path = data_paths(identity.nonce)[1]
        return write_operator_state(self.folder.storage, path, [RULES, OFFSETS], write)


def _batch(entries: list[tuple[Any, Any]]) -> EntryBatch[Any, Any, Any]:
    keys, values = [key for key, _ in entries], [value for _, value in entries]
    return EntryBatch([VOID_NAMESPACE] * len(entries), keys, values)
