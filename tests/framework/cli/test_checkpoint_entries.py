"""The numbers of entries in a manifest are those of the state, also where files leave out expired ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keyedstate import types
from keyedstate.checkpoint.format.manifest import TaskIdentity
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement, CheckpointCoordinator
from keyedstate.checkpoint.protocol.full_snapshots import FullSnapshotRules, SnapshotKind
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.owner import write_attempt
from keyedstate.checkpoint.protocol.recovery import claim, find_restore_point
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.epoch.epoch_writer import EpochWriter, state_manifest
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import ManualClock, Ttl, ValueState
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.chosen_backend import ChosenBackend, KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing.instances import chosen_backend

FULL, DELTA, BOTH = SnapshotKind
STATES = [
    ValueState("kept", types.INT64),
    ValueState("left out", types.INT64, ttl=Ttl(100, full_snapshot=True, background_cleanup=False)),
]


@pytest.mark.parametrize("backend", ["heap-cow", "rocksdb"])
def test_expired_entries_count_until_they_are_removed_and_no_checkpoint_looks_damaged(
    backend: str, tmp_path: Path, invoke: Any
) -> None:
    folder = OperatorFolder(CheckpointStorage.open(tmp_path / "op"), "op")
    coordinator = CheckpointCoordinator(folder)
    plugin, options = chosen_backend(backend, {})
    clock, groups = ManualClock(0), KeyGroupRange(0, 3)
    keyed = KeyedStateBackend.open(
        ChosenBackend(plugin, options),
        KeySpace(types.INT64, groups, 4),
        [],
        track_changes=True,
        clock=clock,
        event_time=False,
    )
    writer = EpochWriter(
        keyed, OperatorStateBackend(()), folder, FullSnapshotRules(max_deltas=9, min_bytes=0), "zstd"
    )

    def run(epoch: int, kind: SnapshotKind, keys: range) -> tuple[dict[str, int], dict[str, int]]:
        identity = TaskIdentity("op", "q", "run", epoch, 0, 1, 4, 0, f"run-{epoch}-0")
        claim(folder, identity)
        folder.write_started(identity)
        before = find_restore_point(folder, identity)
        writer.begin(identity, before, kind)
        for key in keys:
            keyed.set_current_key(key)
            for state in STATES:
                keyed.get_state(state).update(epoch)
        keyed.end_epoch()
        manifest = state_manifest(identity, plugin, keyed, writer.end())
        shared = () if before is None else before.parts[0].kept_files
        coordinator.acknowledge(Acknowledgement(identity, write_attempt(folder, manifest, shared)))
        assert coordinator.drain(60)
        return dict(manifest.entries), dict(manifest.segments[0].entries)

    stored = {"kept": 50, "left out": 50}
    assert run(0, FULL, range(50)) == (stored, stored)
    clock.advance(150)
    left = {"kept": 50, "left out": 2}
    for epoch, (kind, keys) in enumerate(
        [(FULL, range(2)), (DELTA, range(0)), (DELTA, range(1)), (FULL, range(1)), (BOTH, range(0))], 1
    ):
        assert run(epoch, kind, keys) == (stored, left), epoch
    writer.close()
    keyed.close()
    ran = invoke("checkpoint", "verify", str(tmp_path / "op"), "--format", "json")
    assert json.loads(ran.stdout)["ok"], ran.stdout
