"""Operator state files of an attempt: referenced by its manifest, verified, and cleaned up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keyedstate.backend import EntryBatch, SnapshotSink
from keyedstate.checkpoint.format.json_document import encode_document
from keyedstate.checkpoint.format.manifest import TaskIdentity
from keyedstate.checkpoint.format.operator_state import (
    OperatorStateFile,
    read_operator_state,
    write_operator_state,
)
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement, CheckpointCoordinator
from keyedstate.checkpoint.protocol.operator_folder import data_paths
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import (
    CorruptFileError,
    MissingFileError,
    UnwritableEntryError,
)
from keyedstate.operator_state import OPERATOR_KEY_GROUP, OperatorStateKind, OperatorStateMeta
from keyedstate.types import INT64, STRING, VOID_NAMESPACE

NUMBERS = OperatorStateMeta.of_list("numbers", OperatorStateKind.LIST, INT64)
RULES = OperatorStateMeta("rules", OperatorStateKind.BROADCAST, STRING, INT64)
PATH = "data/one.operator.seg"


def write_to(sink: SnapshotSink) -> None:
    sink.begin_state(NUMBERS.entries_meta)
    batches = [EntryBatch([VOID_NAMESPACE] * 2, [n, n + 1], [n, n + 1]) for n in (0, 2)]
    sink.write_entries(OPERATOR_KEY_GROUP, batches)
    sink.begin_state(RULES.entries_meta)
    sink.write_entries(OPERATOR_KEY_GROUP, [EntryBatch([VOID_NAMESPACE], ["a"], [1])])


def written(storage: CheckpointStorage, path: str = PATH) -> OperatorStateFile:
    return write_operator_state(storage, path, [NUMBERS, RULES], write_to)


def read(storage: CheckpointStorage, part: OperatorStateFile, task: int = 0, parallelism: int = 1) -> Any:
    """Return the entries of each state."""
    found: dict[str, list[Any]] = {}
    for meta, batches in read_operator_state(storage, [part], task, parallelism):
        entries = found.setdefault(meta.name, [])
        entries += [entry for batch in batches for entry in zip(batch.keys, batch.values, strict=True)]
    return found


INTACT = {"numbers": [(n, n) for n in range(4)], "rules": [("a", 1)]}


def test_a_file_is_read_as_a_whole_or_by_runs_of_its_elements(storage: CheckpointStorage):
    part = written(storage)
    assert read(storage, part) == INTACT
    found = [read(storage, part, task, 3) for task in range(3)]
    assert [entry for part in found for entry in part["numbers"]] == INTACT["numbers"]
    assert [len(part["numbers"]) for part in found] == [2, 1, 1]
    assert [part["rules"] for part in found] == [[("a", 1)]] * 3


def test_the_file_is_a_segment_file_of_one_key_group(local: CheckpointStorage):
    segment = written(local).segment
    assert list(segment.key_groups) == [OPERATOR_KEY_GROUP]
    assert segment.entries == {"numbers": 4, "rules": 1}


def test_a_flipped_bit_in_any_byte_is_found(local: CheckpointStorage):
    part = written(local)
    data = local.read(PATH)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        Path(f"{local.root}/{PATH}").write_bytes(damaged)
        with pytest.raises(CorruptFileError, match=r"data/one\.operator\.seg is damaged"):
            read(local, part)
    Path(f"{local.root}/{PATH}").write_bytes(data)
    assert read(local, part) == INTACT


def test_a_file_cut_off_anywhere_is_found(local: CheckpointStorage):
    part = written(local)
    data = local.read(PATH)
    for length in range(len(data)):
        Path(f"{local.root}/{PATH}").write_bytes(data[:length])
        with pytest.raises(CorruptFileError, match=r"data/one\.operator\.seg is damaged"):
            read(local, part)


def test_the_intact_file_of_another_task_in_its_place_is_found(local: CheckpointStorage):
    part = written(local)

    def others(sink: SnapshotSink) -> None:
        sink.begin_state(NUMBERS.entries_meta)
        sink.write_entries(OPERATOR_KEY_GROUP, [EntryBatch([VOID_NAMESPACE], [0], [7])])

    write_operator_state(local, "data/other.operator.seg", [NUMBERS], others)
    local.write_atomic(PATH, local.read("data/other.operator.seg"))
    with pytest.raises(CorruptFileError, match=r"data/one\.operator\.seg"):
        read(local, part)


def test_a_file_that_is_gone_is_named(local: CheckpointStorage):
    part = written(local)
    local.delete_file(PATH)
    with pytest.raises(MissingFileError, match=r"data/one\.operator\.seg"):
        read(local, part)


def test_only_the_files_that_a_task_needs_are_read(local: CheckpointStorage):
    first, second = written(local), written(local, "data/two.operator.seg")
    local.delete_file("data/two.operator.seg")
    restored = read_operator_state(local, [first, second], 0, 2)
    assert sum(len(batch) for _, batches in restored for batch in batches) == 5
    with pytest.raises(MissingFileError, match=r"data/two\.operator\.seg"):
        read_operator_state(local, [first, second], 1, 2)


def test_a_value_that_cannot_be_written_leaves_no_file(local: CheckpointStorage):
    def wrong(sink: SnapshotSink) -> None:
        sink.begin_state(NUMBERS.entries_meta)
        sink.write_entries(OPERATOR_KEY_GROUP, [EntryBatch([VOID_NAMESPACE], [0], ["a word"])])

    with pytest.raises(UnwritableEntryError, match="numbers"):
        write_operator_state(local, PATH, [NUMBERS], wrong)
    assert local.list("data") == []


# -- in manifests and checkpoints ------------------------------------------------------------------


def attempt(job: Any, identity: TaskIdentity) -> Acknowledgement:
    """Run one task to its end, operator state included."""
    segment = job.write_data(identity, job.begin(identity))
    file = written(job.folder.storage, data_paths(identity.nonce)[1])
    acknowledgement: Acknowledgement = job.write_manifest(identity, segment, file)
    return acknowledgement


def epoch(job: Any, number: int, coordinator: CheckpointCoordinator, run: str = "run-1") -> None:
    for partition in range(job.parallelism):
        coordinator.acknowledge(attempt(job, job.identity(run, number, partition)))
    coordinator.drain()


def test_a_checkpoint_names_the_operator_state_of_each_task(job: Any):
    epoch(job, 0, CheckpointCoordinator(job.folder))
    metadata = job.folder.read_metadata(0)
    assert [read(job.folder.storage, part.operator_state) for part in metadata.parts] == [INTACT, INTACT]
    assert [meta.to_json() for meta in metadata.parts[0].operator_state.metas()] == [
        NUMBERS.to_json(),
        RULES.to_json(),
    ]


def test_a_checkpoint_without_operator_state_has_none_in_its_manifest(job: Any):
    job.epoch("run-1", 0, CheckpointCoordinator(job.folder))
    document = json.loads(job.folder.storage.read("chk-0/_metadata"))
    assert [part["operator_state"] for part in document["body"]["parts"]] == [None, None]
    parts = [part.operator_state for part in job.folder.read_metadata(0).parts]
    assert read_operator_state(job.folder.storage, parts, 0, 5) == []


@pytest.mark.parametrize("damage", [{}, {"segment": {}, "states": []}, [], "x"], ids=repr)
def test_a_malformed_description_is_refused_with_the_files_name(job: Any, damage: Any):
    epoch(job, 0, CheckpointCoordinator(job.folder))
    document = json.loads(job.folder.storage.read("chk-0/_metadata"))
    document["body"]["parts"][1]["operator_state"] = damage
    job.folder.storage.write_atomic("chk-0/_metadata", encode_document("checkpoint", 1, document["body"]))
    with pytest.raises(CorruptFileError, match=r"chk-0/_metadata.*malformed"):
        job.folder.read_metadata(0)


def test_a_manifest_may_name_its_own_operator_state_only(job: Any):
    identity = job.identity("run-1", 0, 0)
    segment = job.write_data(identity, job.begin(identity))
    file = written(job.folder.storage, data_paths(identity.nonce)[1])
    foreign = replace(file, segment=replace(file.segment, path="data/another.operator.seg"))
    with pytest.raises(ValueError, match=r"data/another\.operator\.seg"):
        job.write_manifest(identity, segment, foreign)


def test_operator_state_lives_as_long_as_its_checkpoint(job: Any):
    coordinator = CheckpointCoordinator(job.folder)
    for number in range(4):
        epoch(job, number, coordinator)
    used = {
        path
        for number in job.folder.checkpoints()
        for part in job.folder.read_metadata(number).parts
        for path in part.data_files
    }
    assert job.folder.checkpoints() == [2, 3]
    assert len(used) == 8
    assert set(job.folder.data_files()) == used


def test_what_a_killed_task_and_a_superseded_run_left_of_operator_state_goes_away(job: Any):
    coordinator = CheckpointCoordinator(job.folder)
    epoch(job, 0, coordinator)
    killed = job.identity("run-1", 1, 0)
    job.begin(killed)
    written(job.folder.storage, data_paths(killed.nonce)[1])
    attempt(job, job.identity("run-1", 1, 1))
    left = set(job.folder.data_files())
    # A newer run at the same epoch clears away what the older one has left of it.
    newer = CheckpointCoordinator(job.folder)
    newer.acknowledge(attempt(job, job.identity("run-2", 1, 0)))
    newer.drain()
    gone = left.difference(job.folder.data_files())
    assert len(left) == 4 + 3 and len(gone) == 3
    assert data_paths(killed.nonce)[1] in gone
