"""Chains of deltas over histories of an operator: repeats, restarts, rescaling, crashes, clean-up at random.

Whatever is published is read after every step and compared with a model.  So a checkpoint that loses a file,
or a delta that misses a change, is found with the step that did it.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.backends import backend_of

from keyedstate import types
from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement, CheckpointCoordinator
from keyedstate.checkpoint.protocol.full_snapshots import FullSnapshotRules, SnapshotKind
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.recovery import claim, find_restore_point, handles_for
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.epoch.epoch_writer import EpochWriter
from keyedstate.keygroups import KeyGroupRange, key_group_range_for
from keyedstate.state import (
    IncrementalCleanup,
    ListState,
    ManualClock,
    MapState,
    ReducingState,
    Ttl,
    UpdateType,
    ValueState,
)
from keyedstate.state.context import KeyContext
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

pytestmark = pytest.mark.slow

GROUPS = 6
RETAINED = 3
TTL = 25
EPOCH_MS = 10


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


@dataclass
class Visit:
    page: str
    count: int
    colour: Colour | None


STATES: dict[str, Any] = {
    state.name: state
    for state in (
        ValueState("value", types.nullable(types.STRING)),
        ValueState("visit", types.record_of(Visit)),
        ValueState("pickled", types.pickled()),
        ListState("list", types.record_of(Visit)),
        MapState("map", types.FLOAT64, types.record_of(Visit)),
        ReducingState("sum", lambda a, b: a + b, types.INT64),
        ValueState("timed", types.INT64, ttl=Ttl.of(TTL, incremental=IncrementalCleanup(2))),
        MapState("timed map", types.INT64, types.record_of(Visit), ttl=Ttl.of(TTL, expiry_index=True)),
        ListState(
            "timed list",
            types.INT64,
            ttl=Ttl.of(TTL, update=UpdateType.ON_READ_AND_WRITE, full_snapshot=True),
        ),
    )
}
KEYS = [None, *range(40)]
KEY = types.nullable(types.INT64)
_PLACES = KeyContext(KEY, KeyGroupRange(0, GROUPS - 1), GROUPS)
GROUP_OF = dict(zip(*_PLACES.locate(KEYS), strict=True))

#: By state and key: what is stored, with the times of writing where it has a time to live.
Model = dict[tuple[str, Any], Any]


def visit(rng: random.Random) -> Visit:
    return Visit(f"page {rng.randrange(50)}", rng.randrange(9), rng.choice([None, *Colour]))


def change(backend: KeyedStateBackend, model: Model, rng: random.Random, now: int) -> None:
    """Do the same to a backend and to a model, with states that are chosen at random."""
    used = rng.sample(sorted(STATES), rng.randrange(len(STATES) + 1))
    keys = [key for key in KEYS if GROUP_OF[key] in backend.key_groups]
    handles = {name: backend.get_state(STATES[name]) for name in used}
    for _ in range(rng.randrange(25) if used else 0):
        name, key = rng.choice(used), rng.choice(keys)
        handle: Any = handles[name]
        backend.set_current_key(key)
        address = name, key
        before = living(name, model.get(address), now)
        if rng.random() < 0.25:
            handle.clear()
            after = None
        elif name == "value":
            handle.update(after := str(rng.random()))
        elif name == "visit":
            handle.update(after := visit(rng))
        elif name == "pickled":
            handle.update(after := {"set": {rng.randrange(9)}})
        elif name == "list":
            handle.add(added := visit(rng))
            after = [*(before or ()), added]
        elif name == "map":
            map_key, put = rng.choice([-0.0, 1.5, 2.5]), rng.choice([None, visit(rng)])
            if before and rng.random() < 0.4:
                handle.remove(map_key)
                after = {other: value for other, value in before.items() if other != map_key} or None
            else:
                handle.put(map_key, put)
                after = {**(before or {}), map_key: put}
        elif name == "sum":
            number = rng.randrange(9)
            handle.add_many([key], [number])
            after = (before or 0) + number
        elif name == "timed":
            if rng.random() < 0.3:
                assert handle.value() == (before and before[1])
                after = before
            else:
                handle.update(number := rng.randrange(9))
                after = now, number
        elif name == "timed map":
            if rng.random() < 0.3:
                assert dict(handle.items()) == {k: value for k, (_, value) in (before or {}).items()}
                after = before
            else:
                map_key, put = rng.randrange(3), visit(rng)
                handle.put(map_key, put)
                after = {**(before or {}), map_key: (now, put)}
        else:
            if rng.random() < 0.5:
                assert handle.get() == [element for _, element in before or ()]
                after = [(now, element) for _, element in before or ()] or None
            else:
                handle.add(number := rng.randrange(9))
                after = [*(before or ()), (now, number)]
        model[address] = after


def living(name: str, stored: Any, now: int) -> Any:
    """Return what lives of the model's entry, or None."""
    if stored is None or not name.startswith("timed"):
        return stored
    if name == "timed":
        return stored if stored[0] + TTL > now else None
    if name == "timed map":
        return {key: value for key, value in stored.items() if value[0] + TTL > now} or None
    return [element for element in stored if element[0] + TTL > now] or None


def shown(model: Model, now: int) -> dict[tuple[str, Any], Any]:
    """Return what reads show of a model."""
    result = {}
    for (name, key), stored in model.items():
        value = living(name, stored, now)
        if value is None:
            continue
        if name == "timed":
            value = value[1]
        elif name == "timed map":
            value = {map_key: entry for map_key, (_, entry) in value.items()}
        elif name == "timed list":
            value = [element for _, element in value]
        result[name, key] = value
    return result


class History:
    """One operator, whose runs, acknowledgements and crashes are up to the test."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.folder = OperatorFolder(CheckpointStorage.open(path), "views")
        self.numbers = itertools.count()
        self.runs = 0
        self.longest = 0
        self.beside = 0
        #: What each finished attempt has left, by its nonce.
        self.left: dict[str, Model] = {}
        self.restart()

    def restart(self) -> None:
        self.runs += 1
        self.run = f"run-{self.runs}"
        self.parallelism = self.rng.choice([1, 2, 2, 2, 3])
        self.rules = FullSnapshotRules(
            max_deltas=self.rng.choice([0, 2, 3, 4]),
            min_bytes=0,
            max_concurrent=self.rng.choice([0, 1]),
            tolerable_failures=99,
        )
        self.backend = self.rng.choice(["heap-cow", "nested-map"])
        self.coordinator = CheckpointCoordinator(self.folder, retained=RETAINED)

    @contextlib.contextmanager
    def opened(
        self, metadata: CheckpointMetadata | None, groups: KeyGroupRange, now: int, track: bool = False
    ) -> Iterator[KeyedStateBackend]:
        chosen = backend_of(self.backend)
        handles = [] if metadata is None else handles_for(metadata, self.folder.storage, groups)
        backend = KeyedStateBackend.open(
            chosen,
            KeySpace(KEY, groups, GROUPS),
            handles,
            clock=ManualClock(now),
            track_changes=track,
        )
        for handle in handles:
            handle.close()
        with contextlib.closing(backend):
            yield backend

    def task(self, epoch: int, partition: int, finish: bool = True) -> Acknowledgement | None:
        """Do what a task does; without `finish` it dies after it has written its data."""
        number = next(self.numbers)
        identity = TaskIdentity(
            "views", "query", self.run, epoch, partition, self.parallelism, GROUPS, number, f"n{number}"
        )
        claim(self.folder, identity)
        self.folder.write_started(identity)
        restore_point = find_restore_point(self.folder, identity)
        groups = key_group_range_for(partition, self.parallelism, GROUPS)
        writing = self.rules.choose(
            restore_point, identity, asynchronous=self.backend == "heap-cow", now_ms=0
        )
        if writing is SnapshotKind.DELTA and self.backend == "heap-cow" and self.rng.random() < 0.3:
            # States are too small here for the rules to want it.
            writing = SnapshotKind.DELTA_AND_FULL
        model = {} if restore_point is None else self.model_of(restore_point, groups)
        tracked = writing is not SnapshotKind.FULL
        with self.opened(restore_point, groups, epoch * EPOCH_MS, track=tracked) as backend:
            compression = self.rng.choice(["zstd", "lz4", "none"])
            writer = EpochWriter(backend, OperatorStateBackend(), self.folder, self.rules, compression)
            writer.begin(identity, restore_point, writing)
            change(backend, model, self.rng, epoch * EPOCH_MS)
            backend.end_epoch()
            saved = writer.end()
            states = tuple(meta.to_json() for meta in backend.metas())
            entries = backend.entries_by_state()
            self.beside += any(report.background for report in saved.full_snapshots)
        if not finish:
            return None
        manifest = AttemptManifest(
            identity, groups, self.backend, "1", states, saved.segments, entries,
            0, 0, None, 0.0, 0.0, 0.0, 0.0, saved.bytes, deltas=saved.deltas,
            full_snapshots=saved.full_snapshots,
        )  # fmt: skip
        self.left[identity.nonce] = model
        self.longest = max(self.longest, len(saved.deltas))
        return Acknowledgement(
            identity,
            self.folder.write_manifest(
                manifest, restore_point.parts[partition].kept_files if restore_point and tracked else ()
            ),
        )

    def model_of(self, metadata: CheckpointMetadata, groups: KeyGroupRange) -> Model:
        return {
            address: value
            for part in metadata.parts
            for address, value in self.left[part.identity.nonce].items()
            if GROUP_OF[address[1]] in groups
        }

    def run_epoch(self, epoch: int) -> list[Acknowledgement]:
        words = [self.task(epoch, partition) for partition in range(self.parallelism)]
        return [word for word in words if word is not None]

    def check(self) -> None:
        """Read every checkpoint that is published, also those of abandoned futures."""
        self.coordinator.drain()
        groups = KeyGroupRange(0, GROUPS - 1)
        for epoch in self.folder.checkpoints():
            metadata = self.folder.read_metadata(epoch)
            assert metadata is not None
            now = epoch * EPOCH_MS
            found = {}
            with self.opened(metadata, groups, now) as backend:
                for name, state in STATES.items():
                    handle: Any = backend.get_state(state)
                    for key in list(backend.get_keys(name)):
                        backend.set_current_key(key)
                        if isinstance(state, ValueState):
                            value = handle.value()
                        else:
                            value = dict(handle.items()) if isinstance(state, MapState) else handle.get()
                        if value not in (None, [], {}):
                            found[name, key] = value
            assert found == shown(self.model_of(metadata, groups), now), f"chk-{epoch}"
            self.check_columns(metadata, groups)

    def check_columns(self, metadata: CheckpointMetadata, groups: KeyGroupRange) -> None:
        """Hold the entries that are read as columns to those that are read as objects."""
        for handle in handles_for(metadata, self.folder.storage, groups):
            for meta in handle.states:
                for group in handle.key_groups:
                    batches = list(handle.entries(meta.name, group))
                    keys = meta.key_serializer.to_arrow([key for batch in batches for key in batch.keys])
                    values = meta.value_serializer.to_arrow(
                        [value for batch in batches for value in batch.values]
                    )
                    expected = zip(keys.to_pylist(), values.to_pylist(), strict=True)
                    stored = [
                        entry
                        for batch in handle.columns(meta.name, group)
                        for entry in zip(*(batch.column(n).to_pylist() for n in (1, 2)), strict=True)
                    ]
                    assert sorted(map(repr, stored)) == sorted(map(repr, expected))
            handle.close()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_every_checkpoint_of_a_random_history_is_complete(tmp_path: Path, seed: int) -> None:
    """CL-03, CL-06: deltas are switched on and off between runs, and lost attempts leave nothing."""
    history = History(tmp_path, seed)
    rng, epoch = history.rng, 0
    for _ in range(20):
        step = rng.choice(["epoch"] * 6 + ["twice", "lost", "lost", "repeated", "died", "set back"])
        if step == "died":
            for partition in range(rng.randrange(history.parallelism) + 1):
                history.task(epoch, partition, finish=rng.random() < 0.3)
            history.restart()
            continue
        words = history.run_epoch(epoch)
        if step == "lost":
            # The driver receives nothing from the tasks, and yet Spark has committed their output.
            for word in words[: rng.randrange(len(words))]:
                history.coordinator.acknowledge(word)
            history.restart()
        else:
            for word in words:
                history.coordinator.acknowledge(word)
        if step == "twice":
            history.check()
            for word in history.run_epoch(epoch):
                history.coordinator.acknowledge(word)
                history.check()
        elif step == "repeated":
            history.check()
            history.restart()
            continue
        elif step == "set back":
            history.coordinator.drain()
            ready = [published for published in history.folder.checkpoints() if published < epoch]
            epoch = rng.choice(ready) if ready else epoch
            history.folder.storage.write_atomic(f"_set-back-to-{epoch + 1}", b"")
            history.restart()
        epoch += 1
        history.check()
    assert history.longest > 0 and history.beside > 0
