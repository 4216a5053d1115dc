"""One epoch of an operator over a backend, killed with SIGKILL at a named point: what the contract kit runs.

It runs the steps of a Spark task and of the driver: claim the folder, restore, write state, write the epoch's
files and manifest, acknowledge, publish.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from keyedstate import types
from keyedstate.backend import (
    AnyStateTable,
    BackendContext,
    EntryBatch,
    Snapshot,
    SnapshotSink,
    SnapshotStrategy,
    StateKind,
    StateMeta,
)
from keyedstate.checkpoint.format.manifest import TaskIdentity
from keyedstate.checkpoint.protocol import retention
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement, CheckpointCoordinator
from keyedstate.checkpoint.protocol.full_snapshots import FullSnapshotRules, SnapshotKind
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.owner import write_attempt
from keyedstate.checkpoint.protocol.recovery import claim, find_restore_point, handles_for
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.epoch.epoch_writer import EpochWriter, state_manifest
from keyedstate.keygroups import KeyGroupRange, key_group_range_for
from keyedstate.plugins import Backend
from keyedstate.state import (
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    StateDescriptor,
    ValueState,
)
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.chosen_backend import ChosenBackend, KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing.instances import chosen_backend
from keyedstate.testing.processes import Ended, call_in_new_process

#: The points at which a process can die, in their order.
POINTS = (
    "in the synchronous part of the snapshot",
    "while the segment is written",
    "between snapshot and manifest",
    "between manifests and publication",
    "while the checkpoint is published",
    "after the publication",
)
PARALLELISM, MAX_PARALLELISM = 2, 8
KEYS = range(24)
UID = "crashing"
#: Larger than any buffer, so that half a file is on the disk when a writer dies.
_BALLAST_BYTES = 3 << 20


class _Seen(AggregateFunction[int, list[int], list[int]]):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> list[int]:
        return list(accumulator)


STATES: dict[StateKind, StateDescriptor[Any]] = {
    StateKind.VALUE: ValueState("value", types.list_of(types.INT64), default=[]),
    StateKind.LIST: ListState("list", types.INT64),
    StateKind.MAP: MapState("map", types.INT64, types.INT64),
    StateKind.REDUCING: ReducingState("reducing", lambda seen, epoch: 10 * seen + epoch, types.INT64),
    StateKind.AGGREGATING: AggregatingState("aggregating", _Seen(), types.list_of(types.INT64)),
}
BALLAST = ValueState("ballast", types.BYTES)


def _count_epoch(kind: StateKind, accessor: Any, epoch: int) -> None:
    match kind:
        case StateKind.VALUE:
            accessor.update([*accessor.value(), epoch])
        case StateKind.MAP:
            accessor.put(epoch, epoch)
        case _:
            accessor.add(epoch)


def _seen(kind: StateKind, accessor: Any) -> Any:
    match kind:
        case StateKind.VALUE:
            return list(accessor.value())
        case StateKind.MAP:
            return sorted(accessor.keys())
        case _:
            return accessor.get()


def expected(kinds: Iterable[StateKind], epochs: int) -> dict[str, Any]:
    """Return the result of `CrashingJob.read` after so many epochs, each of them counted once."""
    seen: dict[int, list[int]] = {key: [] for key in KEYS}
    for epoch in range(epochs):
        for key in KEYS:
            seen[key] = [] if key % 5 == epoch else [*seen[key], epoch]
    found: dict[str, Any] = {}
    for kind in kinds:
        for key, counted in seen.items():
            if counted:
                number = int("".join(map(str, counted)))
                found[f"{kind.value} {key}"] = number if kind is StateKind.REDUCING else counted
    return found


@dataclass(frozen=True)
class CrashingJob:
    """The operator: in each epoch every key records the epoch, and one of five keys clears its state.

    Attributes
    ----------
    folder : str
        The folder of all operators' folders.
    backend : str
    options : mapping
        Options by their full names.
    """

    folder: str
    backend: str
    options: Mapping[str, Any]

    def run(self, run_id: str, epoch: int, point: str = "") -> None:
        """Run an epoch, and die at a point of it."""
        folder = self._folder()
        words = [self._task(folder, run_id, epoch, partition, point) for partition in range(PARALLELISM)]
        _die_at(point, "between manifests and publication")
        if point == "while the checkpoint is published":
            _die_instead_of_renaming(f"chk-{epoch}")
        if point == "after the publication":
            retention.prune = _die  # type: ignore[assignment]
        coordinator = CheckpointCoordinator(folder)
        for word in words:
            coordinator.acknowledge(word)
        coordinator.drain()

    def read(self) -> tuple[int, dict[str, Any]]:
        """Return the newest published epoch, and the state restored from it, by kind and key."""
        folder = self._folder()
        published = (folder.read_metadata(epoch) for epoch in reversed(folder.checkpoints()))
        metadata = next(found for found in published if found is not None)
        found: dict[str, Any] = {}
        for partition in range(PARALLELISM):
            key_groups = key_group_range_for(partition, PARALLELISM, MAX_PARALLELISM)
            backend = self._open(folder, metadata, key_groups)
            for kind, state in self._states():
                for key in list(backend.get_keys(state.name)):
                    backend.set_current_key(key)
                    assert f"{kind.value} {key}" not in found
                    found[f"{kind.value} {key}"] = _seen(kind, backend.get_state(state))
            backend.close()
        return metadata.epoch, found

    def in_another_process(self, action: str, **parameters: Any) -> Ended:
        """Call a method in a new process."""
        # The plugin that this process has chosen stays here.
        return call_in_new_process(getattr(replace(self), action), **parameters)

    def kinds(self) -> list[StateKind]:
        """Return the kinds of state that the backend claims."""
        return [kind for kind, _ in self._states()]

    def _states(self) -> Iterator[tuple[StateKind, StateDescriptor[Any]]]:
        for kind, state in STATES.items():
            if self._chosen[0].description.supports(kind):
                yield kind, state

    @cached_property
    def _chosen(self) -> tuple[Backend, Mapping[str, Any]]:
        return chosen_backend(self.backend, self.options)

    def _folder(self) -> OperatorFolder:
        return OperatorFolder(CheckpointStorage.open(self.folder), UID)

    def _task(
        self, folder: OperatorFolder, run_id: str, epoch: int, partition: int, point: str
    ) -> Acknowledgement:
        identity = TaskIdentity(
            uid=UID,
            query_id="crashing",
            run_id=run_id,
            epoch=epoch,
            partition=partition,
            parallelism=PARALLELISM,
            max_parallelism=MAX_PARALLELISM,
            attempt=partition,
            nonce=f"{run_id}-{epoch}-{partition}",
        )
        claim(folder, identity)
        folder.write_started(identity)
        key_groups = key_group_range_for(partition, PARALLELISM, MAX_PARALLELISM)
        # The first partition finishes; it is the second that dies.
        dying = point if partition == 1 else ""
        restore_point = find_restore_point(folder, identity)
        with contextlib.closing(self._open(folder, restore_point, key_groups, dying)) as backend:
            rules = FullSnapshotRules(max_deltas=0, min_bytes=0)
            # Not the backend's own files: what dies is the writing of a segment.
            writer = EpochWriter(backend, OperatorStateBackend(()), folder, rules, "zstd", native=False)
            writer.begin(identity, restore_point, SnapshotKind.FULL)
            self._count(backend, epoch)
            files = writer.end()
            _die_at(dying, "between snapshot and manifest")
            manifest = state_manifest(identity, self._chosen[0], backend, files)
        return Acknowledgement(identity, write_attempt(folder, manifest))

    def _open(
        self, folder: OperatorFolder, metadata: Any, key_groups: KeyGroupRange, point: str = ""
    ) -> KeyedStateBackend:
        plugin, options = self._chosen
        handles = [] if metadata is None else handles_for(metadata, folder.storage, key_groups)
        try:
            return KeyedStateBackend.open(
                ChosenBackend(
                    cast(Backend, _DyingPlugin(plugin, point)) if point in POINTS[:2] else plugin, options
                ),
                KeySpace(types.INT64, key_groups, MAX_PARALLELISM),
                handles,
                local_base=Path(self.folder),
            )
        finally:
            for handle in handles:
                handle.close()

    def _count(self, backend: KeyedStateBackend, epoch: int) -> None:
        kinds = self.kinds()
        for key in KEYS:
            try:
                backend.set_current_key(key)
            except ValueError:  # of the other instance
                continue
            # First, and of bytes that do not compress, so that it is on the disk when a writer dies.
            if StateKind.VALUE in kinds:
                bytes_of_key = random.Random(1000 * epoch + key).randbytes(_BALLAST_BYTES // len(KEYS))
                backend.get_state(BALLAST).update(bytes_of_key)
            for kind, state in self._states():
                accessor = backend.get_state(state)
                if key % 5 == epoch:
                    accessor.clear()
                else:
                    _count_epoch(kind, accessor, epoch)


def _die(*_arguments: Any) -> Any:
    """End as ``kill -9`` does: no clean-up, no buffer flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


def _die_at(point: str, here: str) -> None:
    if point == here:
        _die()


def _die_instead_of_renaming(name: str) -> None:
    """Die between the temporary file and its new name, if that contains `name`."""
    rename = os.replace

    def rename_or_die(source: Any, target: Any) -> None:
        if name in str(target):
            _die()
        rename(source, target)

    os.replace = rename_or_die  # type: ignore[assignment]


class _DyingPlugin:
    """A plugin whose snapshots die in their synchronous part, or while they are written."""

    def __init__(self, plugin: Backend, point: str) -> None:
        self._plugin = plugin
        self._point = point

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plugin, name)

    def create_snapshot_strategy(self, context: BackendContext) -> SnapshotStrategy:
        return _DyingStrategy(self._plugin.create_snapshot_strategy(context), self._point)


class _DyingStrategy(SnapshotStrategy):
    def __init__(self, strategy: SnapshotStrategy, point: str) -> None:
        self._strategy = strategy
        self._point = point

    def prepare(self, checkpoint_id: int, tables: Mapping[str, AnyStateTable]) -> Snapshot:
        if self._point == "while the segment is written":
            return _DyingSnapshot(self._strategy.prepare(checkpoint_id, tables))
        self._strategy.prepare(checkpoint_id, _DyingTables(tables))
        # A strategy that reads no table, since its plugin keeps all of them in one store.
        return cast(Snapshot, _die())


class _DyingSnapshot(Snapshot):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def write(self, sink: SnapshotSink) -> None:
        self._snapshot.write(_DyingSink(sink))

    def release(self) -> None:
        self._snapshot.release()


class _DyingTables(dict[str, AnyStateTable]):
    """Dies after half of the tables were read."""

    def __iter__(self) -> Iterator[str]:
        for number, name in enumerate(super().__iter__()):
            if number >= len(self) // 2:
                _die()
            yield name

    def values(self) -> Any:
        return (self[name] for name in self)

    def items(self) -> Any:
        return ((name, self[name]) for name in self)


class _DyingSink(SnapshotSink):
    """Dies after the ballast and one more state, with a part of a file on the disk."""

    def __init__(self, writer: SnapshotSink) -> None:
        self._writer = writer
        self._written = 0

    def begin_state(self, meta: StateMeta) -> None:
        self._writer.begin_state(meta)

    def write_entries(self, key_group: int, batches: Iterable[EntryBatch[Any, Any, Any]]) -> None:
        self._writer.write_entries(key_group, batches)
        self._written += 1
        if self._written == MAX_PARALLELISM:
            _die()
