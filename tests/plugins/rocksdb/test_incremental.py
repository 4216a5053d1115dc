"""Checkpoints of RocksDB's own files: what is uploaded, shared, deleted and restored."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rocksdb_incremental import Job, column_family, full_range, tables_of
from rocksdict import BottommostLevelCompaction, CompactOptions
from support.inside import rocksdb_space, rocksdb_store, state_tables
from typer.testing import CliRunner

from keyedstate import types
from keyedstate.checkpoint.protocol.full_snapshots import SnapshotKind
from keyedstate.checkpoint.protocol.recovery import handles_for
from keyedstate.checkpoint.savepoint.canonical import write_canonical
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.cli.app import app
from keyedstate.errors import CheckpointError, CorruptFileError
from keyedstate.state import ListState, MapState, ValueState

COUNTS = ValueState("counts", types.INT64, default=0)
SEEN = ListState("seen", types.INT64)
LAST = MapState("last", types.STRING, types.INT64)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    made.restart()
    yield made
    made.close()


def own_keys(instance: Any, keys: Any) -> list[int]:
    return [key for key in keys if instance.current.key_group_of(key) in instance.key_groups]


def count(*keys: int) -> Any:
    """Return a change that counts each key once, in three kinds of state."""

    def change(instance: Any) -> None:
        counts, seen, last = (instance.get_state(state) for state in (COUNTS, SEEN, LAST))
        for key in own_keys(instance, keys):
            instance.set_current_key(key)
            counts.update(counts.value() + 1)
            seen.add(counts.value())
            last.put(f"entry-{counts.value() % 2}", counts.value())

    return change


def counted(job: Job) -> dict[int, int]:
    """Return the counts of all keys; the other states must agree with them."""
    found: dict[int, int] = {}
    for instance in job.instances:
        counts, seen, last = (instance.get_state(state) for state in (COUNTS, SEEN, LAST))
        for key in list(instance.get_keys("counts")):
            assert key not in found and instance.current.key_group_of(key) in instance.key_groups
            instance.set_current_key(key)
            found[key] = counts.value()
            assert seen.get() == list(range(1, found[key] + 1))
            assert max(dict(last.items()).values()) == found[key]
        assert instance.num_entries() == 3 * len(list(instance.get_keys("counts")))
    return found


# -- what is uploaded --------------------------------------------------------------


def test_only_new_files_are_uploaded_and_the_others_shared(job: Job) -> None:
    """INC-01: a checkpoint of one change more costs about that change."""
    (first,) = job.run(count(*range(2_000)))
    (second,) = job.run(count(1))
    before, after = tables_of(first), tables_of(second)
    assert before.items() <= after.items()
    assert len(after) > len(before)
    assert second.native is not None
    assert second.bytes < second.native.bytes / 3
    names = {file.name for file in second.native.files}
    assert any(name.startswith("MANIFEST") for name in names) and "CURRENT" in names
    others = {file.name: file.path for file in second.native.files if file.name not in after}
    assert not set(others.values()) & first.data_files, "what RocksDB changes is uploaded every time"


def test_files_of_a_failed_attempt_are_uploaded_again(job: Job) -> None:
    """INC-02: only a completed checkpoint is gone on from."""
    (first,) = job.run(count(*range(100)))
    (aborted,) = job.run(count(*range(100, 200)), publish=False)
    (second,) = job.run(count())
    new = set(tables_of(aborted)) - set(tables_of(first))
    assert new and new <= set(tables_of(second))
    assert not set(tables_of(second).values()) & (aborted.data_files - first.data_files)
    assert tables_of(first).items() <= tables_of(second).items()
    job.run(count())
    assert not job.stored & (aborted.data_files - first.data_files), "and its own are deleted"


def test_a_file_that_is_gone_from_the_storage_is_uploaded_again(job: Job) -> None:
    """INC-03."""
    (first,) = job.run(count(*range(100)))
    path = next(iter(tables_of(first).values()))
    job.folder.storage.delete_file(path)
    (second,) = job.run(count(1))
    assert path not in second.data_files
    assert second.data_files <= job.stored
    job.restart()
    assert counted(job) == {key: 1 + (key == 1) for key in range(100)}


def test_a_background_full_snapshot_replaces_a_native_one_and_its_deltas(
    job: Job,
) -> None:
    job.run(count(*range(100)))
    (first,) = job.run(count(1), writing=SnapshotKind.DELTA)
    (second,) = job.run(count(2), writing=SnapshotKind.DELTA)
    assert first.native == second.native and len(second.deltas) == 2
    (idle,) = job.run(count(), writing=SnapshotKind.DELTA)
    assert (idle.native, idle.deltas) == (second.native, second.deltas)
    (third,) = job.run(count(3), writing=SnapshotKind.DELTA_AND_FULL)
    assert third.native is not None and third.native != second.native and len(third.deltas) == 1
    job.run(count(4), writing=SnapshotKind.DELTA)
    for _ in range(2):
        assert counted(job) == {key: 1 + (key in (1, 2, 3, 4)) for key in range(100)}
        job.restart()


# -- the textbook's example --------------------------------------------------------------


def test_exactly_the_files_that_no_retained_checkpoint_uses_are_gone(job: Job) -> None:
    """INC-02: two retained, and compactions that merge files 1 to 3, and then 4 to 6."""
    (instance,) = job.instances
    groups = {instance.current.key_group_of(key): key for key in range(200)}
    low, high = groups[1], groups[8]
    values = ValueState("numbers", types.INT64)
    number = iter(range(100))

    def flushed(*keys: int) -> Any:
        """Return a change that makes one table file for each key."""

        def change(instance: Any) -> None:
            state = instance.get_state(values)
            rows = column_family(instance, "numbers")
            rows.set_options({"disable_auto_compactions": "true"})
            for key in keys:
                instance.set_current_key(key)
                state.update(next(number))
                state_tables(instance)["numbers"].write_back()
                rows.flush(wait=True)

        return change

    def compacted(first: bytes, last: bytes) -> None:
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        column_family(instance, "numbers").compact_range(first, last, options)

    def kept() -> set[str]:
        """The table files in the storage."""
        tables = set()
        for epoch in job.folder.checkpoints():
            metadata = job.folder.read_metadata(epoch)
            assert metadata is not None
            tables |= set(tables_of(metadata.parts[0]).values())
        used = {path for path in job.stored if path in tables}
        assert used == tables, "what a retained checkpoint uses is there"
        return used

    def checkpoint(change: Any) -> dict[str, str]:
        (part,) = job.run(change)
        everything = set().union(
            *(
                part.data_files
                for epoch in job.folder.checkpoints()
                for part in job.folder.read_metadata(epoch).parts  # type: ignore[union-attr]
            )
        )
        assert job.stored == everything, "and nothing else is"
        return tables_of(part)

    one = checkpoint(flushed(low, low))
    assert len(one) == 2
    two = checkpoint(flushed(low, high))
    assert one.items() < two.items() and len(two) == 4
    compacted(b"\x00", b"\x05")
    three = checkpoint(flushed(high))
    (four_name,) = two.keys() & three.keys()
    assert len(three) == 3 and four_name not in one
    assert kept() == {*two.values(), *three.values()}, "CP1 is gone, and CP2 still needs 1, 2 and 3"
    flushed(high)(instance)
    compacted(b"\x05", b"\x09")
    four = checkpoint(flushed())
    assert len(four) == 2 and len(four.keys() & three.keys()) == 1
    assert kept() == {*three.values(), *four.values()}, "CP2 is gone, and with it 1, 2 and 3"
    assert not (set(two.values()) - set(three.values())) & job.stored
    (five,) = job.run(flushed())
    assert kept() == set(tables_of(five).values()) == set(four.values()), "4 and 5 went with CP3"


# -- restores --------------------------------------------------------------


def test_a_restore_of_the_same_range_continues_with_the_files_as_they_are(job: Job) -> None:
    (first,) = job.run(count(*range(2_000)))
    job.restart()
    assert counted(job) == dict.fromkeys(range(2_000), 1)
    (second,) = job.run(count(7))
    assert tables_of(first).items() <= tables_of(second).items(), "incremental at once"
    assert second.bytes < first.bytes / 2


@pytest.mark.parametrize(("threshold", "ingests"), [(0.75, True), (1.0, True), (1.0, False), (0.0, False)])
@pytest.mark.parametrize("writing", [SnapshotKind.FULL, SnapshotKind.DELTA], ids=["full snapshots", "deltas"])
@pytest.mark.slow
def test_state_follows_its_key_groups_up_and_down(
    tmp_path: Path, threshold: float, ingests: bool, writing: SnapshotKind
) -> None:
    """SCALE-01, SCALE-02: opened in place, cut, ingested and copied, whatever the threshold."""
    options = {
        "rocksdb.incremental": True,
        "rocksdb.restore-overlap-threshold": threshold,
        "rocksdb.restore-ingest": ingests,
        "rocksdb.compact-after-restore": ingests,
    }
    job = Job(tmp_path, options=options)
    keys = range(60)
    for epoch, parallelism in enumerate((1, 2, 3, 3, 2, 1)):
        job.restart(parallelism)
        assert counted(job) == (dict.fromkeys(keys, epoch * 2) if epoch else {})
        job.run(count(*keys), writing=writing)
        job.run(count(*keys), writing=writing)
    job.close()


@pytest.mark.long
def test_other_numbers_of_instances_lose_and_double_nothing(tmp_path: Path) -> None:
    """SCALE-01: from (1, 2, 3, 8) instances to (1, 2, 3, 7, 8), keys added and removed between."""
    for before in (1, 2, 3, 8):
        for after in (1, 2, 3, 7, 8):
            folder = tmp_path / f"{before}-{after}"
            job = Job(folder, max_parallelism=16)
            job.restart(before)
            job.run(count(*range(40)))
            job.restart(after)
            job.run(count(*range(20, 50)))
            assert counted(job) == {key: 1 + (20 <= key < 40) for key in range(50)}
            job.close()
            shutil.rmtree(folder)


def bounds_of(instance: Any) -> list[tuple[int, int]]:
    """Return the first and the last key group in each table file of an instance."""
    files = column_family(instance, "counts").live_files()
    return [(file["start_key"][0], file["end_key"][0]) for file in files]


@pytest.mark.parametrize("ingests", [True, False])
def test_rows_outside_the_range_never_return_and_a_compaction_deletes_them(
    tmp_path: Path, ingests: bool
) -> None:
    """RANGE-01: a full snapshot whose files exceed its key groups gives the rows of these and no others."""
    options = {"rocksdb.incremental": True, "rocksdb.restore-ingest": ingests}
    job = Job(tmp_path, options={**options, "rocksdb.restore-overlap-threshold": 0.0})
    job.restart(1)
    job.run(count(*range(100)))
    job.restart(2)
    job.run(count())
    for instance in job.instances:
        own = instance.key_groups
        assert any(first < own.start or last > own.end for first, last in bounds_of(instance))
    # Removed where they belong: a copy of the other one's file would bring them back.
    job.run(lambda instance: [instance.get_state(COUNTS).clear_many(own_keys(instance, range(50)))])
    job.restart(3, options={**options, "rocksdb.compact-after-restore": True})
    found = sorted(key for instance in job.instances for key in map(int, instance.get_keys("counts")))
    assert found == list(range(50, 100))
    for instance in job.instances:
        for table in state_tables(instance).values():
            table.write_back()
            rocksdb_space(table).compact()
        for first, last in bounds_of(instance):
            assert instance.key_groups.start <= first <= last <= instance.key_groups.end
    job.close()


def test_a_database_is_compacted_in_the_background_after_it_was_cut(tmp_path: Path) -> None:
    job = Job(tmp_path, options={"rocksdb.incremental": True, "rocksdb.compact-after-restore": True})
    job.restart(1)
    job.run(count(*range(2_000)))
    job.restart(2)
    for instance in job.instances:
        store = rocksdb_store(instance)
        store.finish_compaction()
        assert bounds_of(instance)
        for first, last in bounds_of(instance):
            assert instance.key_groups.start <= first <= last <= instance.key_groups.end
    assert counted(job) == dict.fromkeys(range(2_000), 1)
    job.restart(3)  # closed while it may be compacting
    assert counted(job) == dict.fromkeys(range(2_000), 1)
    job.close()


def test_native_files_are_fetched_from_local_copies_that_are_what_was_written(tmp_path: Path) -> None:
    """LOC-01, LOC-02."""
    job = Job(tmp_path, copies=tmp_path / "copies")
    job.restart()
    (part,) = job.run(count(*range(200)))
    names = {Path(path).name for path in tables_of(part).values()}
    copies = {file.name: file for file in (tmp_path / "copies").rglob("*.native")}
    assert names < copies.keys()
    stored = {name: tmp_path / "checkpoints" / "job" / "data" / name for name in copies}
    kept = {name: file.read_bytes() for name, file in stored.items()}
    assert {name: file.read_bytes() for name, file in copies.items()} == kept
    for file in stored.values():
        file.write_bytes(b"")
    job.restart(2)
    assert counted(job) == dict.fromkeys(range(200), 1)
    for name, file in stored.items():
        file.write_bytes(kept[name])
    damaged = copies[sorted(names)[0]]
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    job.restart(1)
    assert counted(job) == dict.fromkeys(range(200), 1)
    assert not damaged.exists(), "what is not the file is deleted"
    job.close()


@pytest.mark.parametrize("other", ["heap-cow", "nested-map"])
def test_a_query_continues_with_another_backend_from_native_files(tmp_path: Path, other: str) -> None:
    job = Job(tmp_path)
    job.restart(2)
    job.run(count(*range(50)))
    job.run(count(1, 2), writing=SnapshotKind.DELTA)
    job.restart(3, backend=other)
    job.run(count(3))
    assert counted(job) == {key: 1 + (key in (1, 2, 3)) for key in range(50)}
    job.restart(1, backend="rocksdb")
    assert counted(job) == {key: 1 + (key in (1, 2, 3)) for key in range(50)}
    job.close()


def test_a_savepoint_of_native_files_is_canonical_and_shares_nothing(job: Job, tmp_path: Path) -> None:
    job.run(count(*range(50)))
    job.run(count(1), writing=SnapshotKind.DELTA)
    assert job.point is not None
    target = CheckpointStorage.open(tmp_path / "savepoint")
    whole = write_canonical(job.point, job.folder.storage, target)
    (part,) = whole.parts
    assert part.native is None and part.entries == {"counts": 50, "seen": 50, "last": 50}
    shutil.rmtree(tmp_path / "checkpoints")
    (handle,) = handles_for(whole, target, full_range(10))
    values = [batch.values for group in range(10) for batch in handle.entries("counts", group)]
    assert sorted(value for column in values for value in column) == [1] * 49 + [2]
    handle.close()


# -- bad days --------------------------------------------------------------


def test_the_command_line_verifies_and_shows_native_files(job: Job, tmp_path: Path) -> None:
    (part,) = job.run(count(*range(100)))
    place = str(tmp_path / "checkpoints")

    def command(*arguments: str) -> tuple[int, Any]:
        run = CliRunner().invoke(app, ["checkpoint", *arguments, "--format", "json"])
        return run.exit_code, json.loads(run.stdout)

    code, found = command("verify", place)
    assert code == 0, found
    code, shown = command("show", place, "--part", "0")
    (files,) = (part["files"] for part in shown["parts"])
    assert {file["path"] for file in files} == part.data_files
    assert {file["role"] for file in files} == {"native full snapshot"}
    victim = tmp_path / "checkpoints" / "job" / sorted(tables_of(part).values())[0]
    victim.write_bytes(victim.read_bytes()[:-1] + b"x")
    code, found = command("verify", place)
    assert code == 1
    assert victim.name in json.dumps(found) and "not the file that was written" in json.dumps(found)


@pytest.mark.parametrize("damage", ["missing", "swapped", "flipped"])
def test_a_native_file_that_is_not_the_one_that_was_written_is_refused(job: Job, damage: str) -> None:
    (part,) = job.run(count(*range(100)))
    assert part.native is not None
    paths = sorted(tables_of(part).values())
    root = Path(str(job.folder.storage.root))
    victim = root / paths[0]
    if damage == "missing":
        victim.unlink()
    elif damage == "swapped":
        victim.write_bytes((root / paths[1]).read_bytes())
    else:
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
    with pytest.raises(CheckpointError, match=victim.name) as caught:
        job.restart()
    assert damage == "missing" or isinstance(caught.value, CorruptFileError)


def test_an_upload_that_fails_leaves_nothing_and_the_next_one_succeeds(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SNAP-01, SNAP-02, SNAP-03: what was linked and what was uploaded is deleted."""
    job.run(count(*range(100)))
    before = job.stored
    storage = type(job.folder.storage)
    real = storage.open_output
    uploads = 0

    def full(self: Any, path: str) -> Any:
        nonlocal uploads
        if path.endswith(".native"):
            uploads += 1
            if uploads == 3:
                raise CheckpointError("no space left on device")
        return real(self, path)

    monkeypatch.setattr(storage, "open_output", full)
    with pytest.raises(CheckpointError, match="no space"):
        job.run(count(1))
    monkeypatch.undo()
    assert job.stored == before
    (private,) = (path for path in tmp_path.iterdir() if path.name.startswith("keyedstate-"))
    assert {path.name for path in private.iterdir()} == {"db", ".keyedstate-work"}
    job.restart()
    job.run(count(2))
    job.restart()
    assert counted(job) == {key: 1 + (key == 2) for key in range(100)}
    job.close()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
