"""Full snapshots: when one is written; one that fails, or lasts for epochs, loses nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.backends import backend_of

from keyedstate import types
from keyedstate.checkpoint.format.manifest import (
    AttemptManifest,
    CheckpointMetadata,
    FailureReason,
    FullSnapshotReport,
    TaskIdentity,
)
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement, CheckpointCoordinator
from keyedstate.checkpoint.protocol.full_snapshots import FullSnapshotRules, SnapshotKind, failed_epochs
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.recovery import claim, find_restore_point, handles_for
from keyedstate.epoch.epoch_writer import EpochFiles, EpochWriter
from keyedstate.errors import TooManyFailedSnapshotsError
from keyedstate.keygroups import KeyGroupRange, key_group_range_for
from keyedstate.state import ValueState
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

_SPEC = importlib.util.spec_from_file_location("unruly", Path(__file__).parents[1] / "unruly.py")
assert _SPEC is not None and _SPEC.loader is not None
unruly = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(unruly)

GROUPS = 4
EXPIRED = FailureReason.EXPIRED
ALL = KeyGroupRange(0, GROUPS - 1)
TOTAL = ValueState("total", types.INT32)
WIDE = ValueState("total", types.INT64)
ALWAYS = FullSnapshotRules(max_deltas=2, min_bytes=0, tolerable_failures=1)


# -- when ------------------------------------------------------------------------------------------


def identity(epoch: int, partition: int = 0, parallelism: int = 1, run: str = "run", attempt: int = 0) -> Any:
    nonce = f"{run}-{epoch}-{partition}-{attempt}"
    return TaskIdentity("views", "query", run, epoch, partition, parallelism, GROUPS, attempt, nonce)


def checkpoint(*chains: tuple[int, ...], ended_ms: int = 0) -> CheckpointMetadata:
    """Return a checkpoint with the sizes of each partition's full snapshot and deltas."""
    parts = []
    for partition, sizes in enumerate(chains):
        groups = key_group_range_for(partition, len(chains), GROUPS)
        files = [SegmentFile(f"{n}.seg", size, "", groups, {}) for n, size in enumerate(sizes)]
        report = FullSnapshotReport(0, False, None, "", 0.0, 0.0, 0, 0, ended_ms)
        who = identity(5, partition, len(chains))
        parts.append(
            AttemptManifest(
                who, groups, "none", "1", (), (files[0],), {}, 0, 0, None, 0, 0, 0, 0, 0,
                deltas=tuple(files[1:]), full_snapshots=(report,),
            )
        )  # fmt: skip
    return CheckpointMetadata.of(parts)


def writings(
    rules: FullSnapshotRules, before: CheckpointMetadata, now_ms: int = 0, **how: Any
) -> list[SnapshotKind]:
    count = before.parallelism
    return [
        rules.choose(before, identity(6, partition, count), now_ms=now_ms, **{"asynchronous": True, **how})
        for partition in range(count)
    ]


FULL, DELTA, BOTH = SnapshotKind


def test_deltas_are_written_until_the_chain_is_long_or_half_as_large_as_its_full_snapshot() -> None:
    assert writings(FullSnapshotRules(2, 1000), checkpoint((1000,))) == [DELTA]
    assert writings(FullSnapshotRules(2, 1001), checkpoint((1000,))) == [FULL], "a small state"
    assert writings(FullSnapshotRules(0, 0), checkpoint((1000,))) == [FULL], "deltas are off"
    assert writings(FullSnapshotRules(3, 0), checkpoint((1000, 10, 10))) == [DELTA]
    assert writings(FullSnapshotRules(2, 0), checkpoint((1000, 10, 10))) == [BOTH]
    assert writings(FullSnapshotRules(9, 0), checkpoint((1000, 250, 250))) == [DELTA]
    assert writings(FullSnapshotRules(9, 0), checkpoint((1000, 250, 251))) == [FULL], "too much for both"
    assert writings(FullSnapshotRules(9, 0), checkpoint((1000, 200, 200, 200))) == [BOTH]


def test_a_backend_without_async_snapshots_writes_synchronously() -> None:
    assert writings(FullSnapshotRules(2, 0), checkpoint((1000, 10, 10)), asynchronous=False) == [FULL]


def test_a_new_operator_and_a_rescaled_one_write_full_snapshots() -> None:
    rules = FullSnapshotRules(9, 0)
    assert rules.choose(None, identity(0), asynchronous=True, now_ms=0) is FULL
    other = rules.choose(checkpoint((1000,)), identity(6, 1, 2), asynchronous=True, now_ms=0)
    assert other is FULL


def test_full_snapshots_rest_between_each_other_unless_the_chain_is_far_too_long() -> None:
    """CP-06."""
    rules = FullSnapshotRules(2, 0, min_pause_ms=1000)
    long, too_long = (10_000, 1, 1, 1, 1, 1), (10_000, 1, 1, 1, 1, 1, 1)
    assert writings(rules, checkpoint(long, ended_ms=50), now_ms=1049) == [DELTA]
    assert writings(rules, checkpoint(long, ended_ms=50), now_ms=1050) == [BOTH]
    assert writings(rules, checkpoint(too_long, ended_ms=50), now_ms=51) == [BOTH]


@pytest.mark.parametrize(("limit", "begin"), [(1, [1]), (2, [1, 2]), (5, [0, 1, 2])])
def test_tasks_with_the_longest_chains_begin_full_snapshots_first_up_to_a_number(
    limit: int, begin: list[int]
) -> None:
    """CP-13."""
    before = checkpoint((1000, 1, 1), (1000, 1, 1, 1), (1000, 9, 9), (1000, 1))
    found = writings(FullSnapshotRules(2, 0, max_concurrent=limit), before)
    assert [partition for partition, writing in enumerate(found) if writing is BOTH] == begin
    assert FULL not in found


def test_failures_count_once_for_each_epoch_and_from_the_last_success_on() -> None:
    """CP-07: the same id counts once, a success resets the count, failures before it do not count."""

    def report(epoch: int, failure: FailureReason | None) -> FullSnapshotReport:
        return FullSnapshotReport(epoch, True, failure, "", 0.0, 0.0, 0, 0, 0)

    def failures(*reports: FullSnapshotReport) -> int:
        return len(failed_epochs(reports))

    assert failures() == 0
    assert failures(report(1, EXPIRED), report(1, FailureReason.IO), report(2, EXPIRED)) == 2
    assert failures(report(1, EXPIRED), report(2, None), report(4, EXPIRED)) == 1
    assert failures(report(3, None), report(3, EXPIRED)) == 1, "one of two tasks failed"
    assert failures(report(1, EXPIRED), report(2, None)) == 0


# -- what comes of them ----------------------------------------------------------------------------


class Gate:
    """Where the writers of full snapshots stop until it is opened, or until it breaks."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.broken: OSError | None = None

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def watch(self, operation: str, path: str) -> None:
        if operation == "write" and ".base.seg" in path:
            assert self._open.wait(600), "the test has not opened the gate"
            if self.broken is not None:
                raise self.broken


class Task:
    """The only task of an operator, in a process that keeps its state from epoch to epoch."""

    def __init__(self, path: Path, *, share: float = 1.0, rules: FullSnapshotRules = ALWAYS) -> None:
        self.gate = Gate()
        files = unruly.UnrulyStorage(path)
        files.handler.watcher = self.gate.watch
        self.folder = OperatorFolder(files.storage, "views")
        self.coordinator = CheckpointCoordinator(self.folder)
        self.rules = rules
        self.share = share
        self.model: dict[int, int] = {}
        self.models: dict[int, dict[int, int]] = {}
        self.epoch = -1
        self.run = "run-0"
        self.restore()

    def opened(self, metadata: CheckpointMetadata | None) -> KeyedStateBackend:
        chosen = backend_of("heap-cow")
        handles = [] if metadata is None else handles_for(metadata, self.folder.storage, ALL)
        backend = KeyedStateBackend.open(
            chosen,
            KeySpace(types.INT64, ALL, GROUPS),
            handles,
            track_changes=True,
        )
        for handle in handles:
            handle.close()
        return backend

    def restore(self) -> None:
        """Begin again, as a process does that has lost its state."""
        self.before = self.folder.read_metadata(self.epoch) if self.epoch >= 0 else None
        self.keyed = self.opened(self.before)
        self.model = dict(self.models.get(self.epoch, {}))
        self.writer = EpochWriter(
            self.keyed, OperatorStateBackend(), self.folder, self.rules, "zstd", self.share
        )

    def run_epoch(
        self,
        writing: SnapshotKind,
        changes: dict[int, int],
        *,
        wait: bool = False,
        state: Any = TOTAL,
    ) -> EpochFiles:
        who = replace(identity(self.epoch + 1), run_id=self.run, nonce=f"{self.run}x{self.epoch + 1}")
        claim(self.folder, who)
        self.folder.write_started(who)
        assert find_restore_point(self.folder, who) == self.before
        self.writer.begin(who, self.before, writing)
        handle: Any = self.keyed.get_state(state)
        for key, value in changes.items():
            self.keyed.set_current_key(key)
            handle.update(value)
        self.keyed.end_epoch()
        saved = self.writer.end(wait=wait)
        assert saved.entries == self.keyed.entries_by_state()
        manifest = AttemptManifest(
            who, ALL, "heap-cow", "1", tuple(meta.to_json() for meta in self.keyed.metas()), saved.segments,
            saved.entries, 0, 0, None, 0.0, 0.0, 0.0, 0.0, saved.bytes, deltas=saved.deltas,
            full_snapshots=saved.full_snapshots, unfinished=saved.unfinished,
        )  # fmt: skip
        shared = () if self.before is None else self.before.parts[0].kept_files
        self.coordinator.acknowledge(Acknowledgement(who, self.folder.write_manifest(manifest, shared)))
        assert self.coordinator.drain(600)
        self.epoch += 1
        self.before = self.folder.read_metadata(self.epoch)
        self.model.update(changes)
        self.models[self.epoch] = dict(self.model)
        return saved

    def stored(self, epoch: int, state: Any = TOTAL) -> dict[int, int]:
        metadata = self.folder.read_metadata(epoch)
        assert metadata is not None
        with contextlib.closing(self.opened(metadata)) as backend:
            handle: Any = backend.get_state(state)
            found = {}
            for key in list(backend.get_keys(state.name)):
                backend.set_current_key(key)
                found[key] = handle.value()
            return found

    def check(self) -> None:
        for epoch in self.folder.checkpoints():
            assert self.stored(epoch) == self.models[epoch]

    def files(self) -> set[str]:
        return set(self.folder.data_files())


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    task = Task(tmp_path)
    yield task
    task.gate.open()
    task.writer.close()
    task.keyed.close()


def begin(task: Task) -> None:
    task.run_epoch(FULL, {key: key for key in range(100)})
    task.run_epoch(DELTA, {1: 11, 200: 1})


def test_a_full_snapshot_that_lasts_for_epochs_replaces_the_chain_before_it(task: Task) -> None:
    """INC-02: only files of the checkpoint that an epoch continues from are used again."""
    begin(task)
    task.gate.shut()
    saved = task.run_epoch(BOTH, {2: 22})
    assert saved.unfinished is not None and len(saved.deltas) == 2
    assert task.run_epoch(DELTA, {3: 33}).unfinished == saved.unfinished
    assert saved.unfinished in task.files(), "clean-up leaves alone what is being written"
    task.gate.open()
    saved = task.run_epoch(DELTA, {4: 44, 1: 12}, wait=True)
    assert (saved.unfinished, saved.segments[0].path) == (None, "data/run-0x2.base.seg")
    assert [delta.path for delta in saved.deltas] == [f"data/run-0x{epoch}.seg" for epoch in (2, 3, 4)]
    (report,) = saved.full_snapshots
    assert (report.epoch, report.background, report.failure, report.entries) == (1, True, None, 101)
    assert report.bytes == saved.segments[0].bytes and report.async_ms > 0
    task.check()
    task.run_epoch(DELTA, {5: 55})
    task.run_epoch(DELTA, {6: 66})
    task.check()
    metadata = [task.folder.read_metadata(epoch) for epoch in task.folder.checkpoints()]
    assert task.files() == {path for kept in metadata if kept for path in kept.parts[0].kept_files}


def test_a_failed_full_snapshot_keeps_the_chain_and_is_tried_again(task: Task) -> None:
    """SNAP-02: what was written of it is deleted."""
    begin(task)
    task.gate.broken = OSError(5, "Input/output error")
    saved = task.run_epoch(BOTH, {2: 22}, wait=True)
    assert len(saved.deltas) == 2 and saved.unfinished is None
    failed = saved.full_snapshots[-1]
    assert (failed.failure, failed.bytes, failed.entries) == (FailureReason.IO, 0, 0)
    assert "Input/output error" in failed.error and ".base.seg" in failed.error
    assert not [path for path in task.files() if ".base" in path]
    task.gate.broken = None
    saved = task.run_epoch(BOTH, {3: 33}, wait=True)
    assert [full.failure for full in saved.full_snapshots] == [None] and len(saved.deltas) == 1
    task.check()


def test_a_full_snapshot_without_a_thread_fails_and_its_epoch_succeeds(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(task)

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        # The coordinator needs a thread too, when the epoch is over.
        patch.setattr(task.coordinator, "acknowledge", lambda word: publish(task.folder, word))
        saved = task.run_epoch(BOTH, {2: 22}, wait=True)
    assert saved.full_snapshots[-1].failure is FailureReason.ASYNCHRONOUS and len(saved.deltas) == 2
    task.check()


def publish(folder: OperatorFolder, word: Acknowledgement) -> None:
    folder.write_metadata(CheckpointMetadata.of([folder.read_manifest(word.manifest)]))


def test_one_full_snapshot_too_many_that_fails_stops_the_task_and_loses_nothing(task: Task) -> None:
    """CP-07: one failure is tolerated here."""
    begin(task)
    task.gate.broken = OSError(28, "No space left on device")
    task.run_epoch(BOTH, {2: 22}, wait=True)
    with pytest.raises(
        TooManyFailedSnapshotsError, match=r"failed 2 times in a row.*No space left"
    ) as caught:
        task.run_epoch(BOTH, {3: 33}, wait=True)
    assert caught.value.failures == 2
    task.check()


def test_a_full_snapshot_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    """CP-11: and what it writes later is deleted."""
    task = Task(tmp_path, rules=replace(ALWAYS, timeout_ms=20))
    begin(task)
    task.gate.shut()
    saved = task.run_epoch(BOTH, {2: 22}, wait=True)
    assert saved.full_snapshots[-1].failure == EXPIRED and len(saved.deltas) == 2
    task.gate.open()
    task.writer.close()
    task.keyed.close()
    task.restore()
    task.run_epoch(DELTA, {3: 33})
    task.run_epoch(DELTA, {4: 44})
    assert not [path for path in task.files() if ".base" in path]
    task.check()


def test_a_slow_full_snapshot_takes_more_of_the_processor_before_it_expires(
    tmp_path: Path,
) -> None:
    """CP-11: else each full snapshot of a large state expires, one after the other."""
    task = Task(tmp_path, share=1e-9, rules=replace(ALWAYS, timeout_ms=4000))
    task.run_epoch(FULL, {key: key for key in range(60_000)})
    task.run_epoch(DELTA, {1: 11})
    saved = task.run_epoch(BOTH, {2: 22})
    while saved.unfinished is not None:
        saved = task.run_epoch(DELTA, {3: task.epoch})
    assert saved.full_snapshots[-1].failure is None and saved.full_snapshots[-1].epoch == 1
    assert saved.full_snapshots[-1].async_ms > 1000, "it has not rested"
    task.check()
    task.writer.close()
    task.keyed.close()


def test_a_type_that_changes_gives_the_running_full_snapshot_up(task: Task) -> None:
    """MIG-01: the files of a chain have one type."""
    begin(task)
    task.keyed.close()
    task.restore()
    saved = task.run_epoch(BOTH, {2: 22}, state=WIDE, wait=True)
    assert saved.deltas == () and not saved.full_snapshots[-1].background
    assert task.stored(task.epoch, WIDE) == task.models[task.epoch]


def test_an_epoch_that_changed_most_entries_writes_a_full_snapshot(task: Task) -> None:
    begin(task)
    saved = task.run_epoch(BOTH, dict.fromkeys(range(51), 0), wait=True)
    assert (
        saved.deltas == ()
        and not saved.full_snapshots[-1].background
        and saved.full_snapshots[-1].entries == 101
    )
    assert len(task.run_epoch(DELTA, dict.fromkeys(range(50), 1)).deltas) == 1
    task.check()


def test_a_process_that_dies_during_a_full_snapshot_leaves_nothing_that_counts(task: Task) -> None:
    begin(task)
    task.gate.shut()
    lost = task.run_epoch(BOTH, {2: 22}).unfinished
    # As a killed process would leave it: the thread never ends, and no process cleans up.
    task.restore()
    task.run_epoch(DELTA, {3: 33})
    task.run_epoch(DELTA, {4: 44})
    task.run_epoch(DELTA, {5: 55})
    assert lost is not None
    task.check()
    task.gate.open()


def test_fifty_epochs_of_one_key_each_leave_few_files(tmp_path: Path) -> None:
    """SNAP-05: at most 25 files; here as many as a chain has, and those of the checkpoint before."""
    task = Task(tmp_path, rules=FullSnapshotRules(max_deltas=10, min_bytes=0))
    task.run_epoch(FULL, {key: key for key in range(1000)})
    for key in range(50):
        assert task.before is not None
        writing = task.rules.choose(task.before, identity(task.epoch + 1), asynchronous=True, now_ms=1 << 50)
        task.run_epoch(writing, {key: -key}, wait=True)
        assert len(task.files()) <= 14
    task.check()
    task.keyed.close()


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_of_slow_failed_and_killed_full_snapshots_are_complete(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    task = Task(tmp_path, share=rng.choice([1.0, 0.3]), rules=replace(ALWAYS, tolerable_failures=99))
    adopted = 0
    for _ in range(30):
        step = rng.random()
        if step < 0.2:
            task.gate.shut()
        elif step < 0.5:
            task.gate.open()
        elif step < 0.6:
            task.gate.open()
            task.writer.close()
            task.keyed.close()
            task.restore()
        task.gate.broken = OSError(5, "broken") if rng.random() < 0.15 else None
        finish = rng.random() < 0.3
        if finish:
            task.gate.open()
        writing = FULL if task.before is None else rng.choice([FULL, DELTA, DELTA, BOTH, BOTH])
        changes = {rng.randrange(60): rng.randrange(1000) for _ in range(rng.randrange(12))}
        saved = task.run_epoch(writing, changes, wait=finish)
        adopted += ".base" in saved.segments[0].path
        task.check()
    assert adopted
    task.gate.open()
    task.writer.close()
    task.keyed.close()
