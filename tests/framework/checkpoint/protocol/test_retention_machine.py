"""Random histories of attempts, publications, clean-ups, holds and zombies, compared with a model.

Whatever happens, no file is missing that a retained or held checkpoint, or an attempt at work, needs; when
nothing is at work, clean-up leaves no file that nothing needs.  The registry of shared files is the set of
manifests that can be seen, so this is what Flink's `SharedStateRegistryTest` asks of it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow.fs as pafs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.protocol import retention
from keyedstate.checkpoint.protocol.leases import Lease, lease
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.recovery import claim, find_restore_point
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import CheckpointError, StorageError, SupersededRunError
from keyedstate.keygroups import key_group_range_for

PARTITIONS, GROUPS, RETAINED = 2, 4, 2
KINDS = ["full", "delta", "on the new full snapshot", "begins a full snapshot"]
YEAR = 365 * 24 * 3600.0


@dataclass
class Attempt:
    """An attempt, at work or a zombie.

    Attributes
    ----------
    before : AttemptManifest or None
        The part of its restore point.
    needs : set of str
        The files that it reads.
    wrote : set of str
    """

    identity: TaskIdentity
    before: AttemptManifest | None
    needs: set[str]
    wrote: set[str] = field(default_factory=set)
    manifest: AttemptManifest | None = None


def manifest_of(attempt: Attempt, kind: str) -> AttemptManifest:
    """Return the manifest of an attempt: a full snapshot, a delta, or one on a new full snapshot."""
    groups = key_group_range_for(attempt.identity.partition, PARTITIONS, GROUPS)
    nonce, before = attempt.identity.nonce, attempt.before

    def file(path: str) -> SegmentFile:
        return SegmentFile(path, 1, "", groups, {})

    own = file(f"data/{nonce}.seg")
    segments, deltas, unfinished = (own,), (), None
    if before is not None and kind != "full":
        segments, deltas, unfinished = before.segments, (*before.deltas, own), before.unfinished
        if kind == "on the new full snapshot" and unfinished is not None:
            segments, deltas, unfinished = (file(unfinished),), (own,), None
    if kind == "begins a full snapshot" and before is not None:
        unfinished = f"data/{nonce}.base.seg"
    return AttemptManifest(
        identity=attempt.identity, key_groups=groups, backend="none", backend_version="1", states=(),
        segments=segments, deltas=deltas, unfinished=unfinished, entries={}, rows_in=0, rows_out=0,
        largest_event_time=None, sync_ms=0.0, write_ms=0.0, restore_ms=0.0, process_ms=0.0, bytes=1,
    )  # fmt: skip


class Histories(RuleBasedStateMachine):
    """One operator on a file system in memory, and what must be there."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = CheckpointStorage(pafs._MockFileSystem(), "state", "mock://state")
        self.folder = OperatorFolder(self.storage, "views")
        self.random = random.Random(0)
        self.runs = self.attempts = 0
        self.run = ""
        self.epoch = 0
        # At work in the current run and epoch; and given up by Spark, but still running.
        self.working: list[Attempt] = []
        self.zombies: list[Attempt] = []
        self.published: list[CheckpointMetadata] = []
        self.uncommitted = False
        self.holds: list[Lease] = []

    @initialize(seed=st.integers(0, 2**32))
    def begin_query(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.begin_run()

    # -- what Spark and its tasks do ---------------------------------------------------------------

    def begin_run(self) -> None:
        self.runs += 1
        self.run = f"run-{self.runs}"
        self.zombies += self.working
        self.working = []
        claim(self.folder, self.identity(0))

    def identity(self, partition: int) -> TaskIdentity:
        self.attempts += 1
        return TaskIdentity(
            "views", "query", self.run, self.epoch, partition, PARTITIONS, GROUPS, self.attempts,
            f"a{self.attempts}",
        )  # fmt: skip

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def begin_attempt(self, partition: int) -> None:
        self.uncommitted = False  # Spark has started this epoch.
        identity = self.identity(partition)
        claim(self.folder, identity)
        self.folder.write_started(identity)
        restore_point = find_restore_point(self.folder, identity)
        before = None if restore_point is None else restore_point.parts[partition]
        needs = set() if before is None else before.data_files
        if self.epoch > 0:
            assert restore_point is not None and restore_point.epoch == self.epoch - 1, "no epoch is left out"
        self.working.append(Attempt(identity, before, set(needs)))

    def write(self, attempt: Attempt, operator_state: bool = False) -> None:
        nonce = attempt.identity.nonce
        for path in (f"data/{nonce}.seg", *([f"data/{nonce}.operator.seg"] if operator_state else [])):
            self.folder.storage.write_atomic(path, b"state")
            attempt.wrote.add(path)

    def finish(self, attempt: Attempt, kind: str) -> None:
        if attempt.manifest is None:
            self.write(attempt)
            attempt.manifest = manifest_of(attempt, kind)
            unfinished = attempt.manifest.unfinished
            if unfinished is not None and unfinished.startswith(f"data/{attempt.identity.nonce}."):
                # The full snapshot is written in the background; here it exists when the attempt ends.
                self.folder.storage.write_atomic(unfinished, b"full snapshot")
                attempt.wrote.add(unfinished)
            shared = () if attempt.before is None else attempt.before.kept_files
            self.folder.write_manifest(attempt.manifest, shared)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def write_data(self, data: st.DataObject) -> None:
        self.write(data.draw(st.sampled_from(self.working)), data.draw(st.booleans()))

    @precondition(lambda self: self.working)
    @rule(data=st.data(), kind=st.sampled_from(KINDS))
    def finish_attempt(self, data: st.DataObject, kind: str) -> None:
        self.finish(data.draw(st.sampled_from(self.working)), kind)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def lose_an_executor(self, data: st.DataObject) -> None:
        lost = data.draw(st.sampled_from(self.working))
        self.working.remove(lost)
        self.zombies.append(lost)

    @precondition(lambda self: self.zombies)
    @rule(data=st.data(), finishes=st.booleans())
    def a_zombie_goes_on(self, data: st.DataObject, finishes: bool) -> None:
        zombie = data.draw(st.sampled_from(self.zombies))
        if finishes:
            self.finish(zombie, "delta")
        else:
            self.write(zombie)

    @rule(kinds=st.tuples(*[st.sampled_from(KINDS)] * PARTITIONS))
    def run_epoch(self, kinds: tuple[str, ...]) -> None:
        """Run all tasks, publish, and let Spark commit."""
        for partition in range(PARTITIONS):
            self.begin_attempt(partition)
            self.finish(self.working[-1], kinds[partition])
        self.publish()

    def publish(self) -> None:
        last = {attempt.identity.partition: attempt.manifest for attempt in self.working if attempt.manifest}
        metadata = CheckpointMetadata.of([manifest for manifest in last.values() if manifest])
        self.folder.write_metadata(metadata)
        self.published = [one for one in self.published if one.epoch < self.epoch] + [metadata]
        self.zombies += [attempt for attempt in self.working if attempt.manifest is None]
        self.working = []
        self.epoch += 1
        self.uncommitted = True

    @rule()
    def restart(self) -> None:
        self.begin_run()

    @precondition(lambda self: self.uncommitted)
    @rule(held=st.booleans())
    def restart_before_spark_committed(self, held: bool) -> None:
        """The driver died between the publication and Spark's commit: the epoch runs again."""
        if held:
            # Somebody reads the checkpoint that is about to be replaced.
            self.holds.append(lease(self.folder, self.epoch - 1, YEAR))
        self.zombies += self.working
        self.working = []
        self.epoch -= 1
        self.uncommitted = False
        # Its checkpoint stays until it is replaced, and is one of the retained.
        self.published = self.published[:-1][-(RETAINED - 1) :]
        self.begin_run()
        if held:
            self.sweep_now()
            self.run_epoch(("full",) * PARTITIONS)
            retention.prune(self.folder, self.published[-1], RETAINED)

    # -- clean-up ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def failing_delete(self, after: int | None) -> Iterator[None]:
        """Let the deletion after so many fail."""
        left = after

        def failing(plain: Any) -> Any:
            def delete(storage: CheckpointStorage, path: str) -> None:
                nonlocal left
                if left is not None:
                    left -= 1
                    if left < 0:
                        raise StorageError(path, "delete", "the cable was pulled")
                plain(storage, path)

            return delete

        with pytest.MonkeyPatch.context() as patch:
            for name in ("delete_file", "delete_dir"):
                patch.setattr(CheckpointStorage, name, failing(getattr(CheckpointStorage, name)))
            yield

    @contextlib.contextmanager
    def tasks_go_on_at(self, request: int | None) -> Iterator[None]:
        """Let whole epochs, and a clean-up of theirs, come and go between two requests of a clean-up."""
        if request is None:
            yield
            return
        left, plain = request, CheckpointStorage.list

        def listing(storage: CheckpointStorage, path: str = "") -> Any:
            nonlocal left
            left -= 1
            if left == -1:
                if {attempt.identity.partition for attempt in self.working} == set(range(PARTITIONS)):
                    for attempt in self.working:
                        self.finish(attempt, "delta")
                    self.publish()
                for kind in self.random.choices(KINDS, k=self.random.randrange(1, 4)):
                    self.run_epoch((kind,) * PARTITIONS)
                if self.random.random() < 0.5:
                    retention.prune(self.folder, self.published[-1], RETAINED)
                if self.random.random() < 0.5:
                    self.begin_attempt(0)
                    self.write(self.working[-1])
            return plain(storage, path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CheckpointStorage, "list", listing)
            yield

    @precondition(lambda self: self.published)
    @rule(
        behind=st.integers(0, 2),
        fails=st.none() | st.integers(0, 12),
        meanwhile=st.none() | st.integers(0, 10),
        busy=st.booleans(),
    )
    def prune(self, behind: int, fails: int | None, meanwhile: int | None, busy: bool) -> None:
        """Clean up after a publication, which may be a few epochs ago by now."""
        for partition in range(PARTITIONS if busy else 0):
            self.begin_attempt(partition)
            self.write(self.working[-1])
        of_run = [metadata for metadata in self.published if metadata.run_id == self.run]
        if of_run:
            published = of_run[max(len(of_run) - 1 - behind, 0)]
            with (
                self.failing_delete(fails),
                self.tasks_go_on_at(meanwhile),
                contextlib.suppress(StorageError),
            ):
                retention.prune(self.folder, published, RETAINED)

    @precondition(lambda self: self.published and self.published[-1].run_id != self.run)
    @rule()
    def prune_as_a_driver_that_was_superseded(self) -> None:
        with pytest.raises(SupersededRunError):
            retention.prune(self.folder, self.published[-1], RETAINED)

    @rule(fails=st.none() | st.integers(0, 12), meanwhile=st.none() | st.integers(0, 6))
    def sweep(self, fails: int | None, meanwhile: int | None) -> None:
        with (
            self.failing_delete(fails),
            self.tasks_go_on_at(meanwhile),
            contextlib.suppress(StorageError),
        ):
            retention.sweep(self.folder, replace(self.identity(0), epoch=self.epoch))

    @rule(back=st.integers(0, 3))
    def hold_one(self, back: int) -> None:
        with contextlib.suppress(CheckpointError):
            self.holds.append(lease(self.folder, self.epoch - 1 - back, YEAR))

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.holds))
        self.holds.remove(held)
        held.release()

    @rule()
    def everything_ends_and_is_cleaned_up(self) -> None:
        """What is left is what the retained checkpoints name, and nothing else."""
        self.zombies = []
        self.working = []
        for held in self.holds:
            held.release()
        self.holds = []
        self.begin_run()
        self.sweep_now()
        seen = [one for one in map(self.folder.read_metadata, self.folder.checkpoints()) if one]
        needed = {path for one in seen for part in one.parts for path in part.kept_files}
        assert self.of_attempts() | needed >= set(self.folder.data_files()), "orphans after a sweep"
        # Without locks what older runs left of an epoch goes when a later one is published.
        for _ in range(2):
            self.run_epoch(("delta",) * PARTITIONS)
            retention.prune(self.folder, self.published[-1], RETAINED)
        seen = [one for one in map(self.folder.read_metadata, self.folder.checkpoints()) if one]
        assert [one.epoch for one in seen] == [one.epoch for one in self.published[-RETAINED:]]
        needed = {path for one in seen for part in one.parts for path in part.kept_files}
        assert set(self.folder.data_files()) == needed, "orphans, or a file too few"
        assert self.folder.attempt_epochs() == [self.epoch - 1]

    def sweep_now(self) -> None:
        retention.sweep(self.folder, replace(self.identity(0), epoch=self.epoch))

    def of_attempts(self) -> set[str]:
        """Return what attempts have written."""
        epochs = self.folder.attempt_epochs()
        nonces = {attempt.nonce for epoch in epochs for attempt in self.folder.attempts(epoch)}
        return {path for path in self.folder.data_files() if path.split("/")[1].split(".")[0] in nonces}

    # -- what must hold ----------------------------------------------------------------------------

    @invariant()
    def nothing_that_is_needed_is_missing(self) -> None:
        there = set(self.folder.data_files())
        retained = self.published[-RETAINED:]
        for metadata in retained:
            assert self.folder.read_metadata(metadata.epoch) == metadata, "a retained checkpoint is gone"
        for epoch in self.folder.checkpoints():
            metadata = self.folder.read_metadata(epoch)
            if metadata is not None:
                assert set(metadata.data_files) <= there, f"what checkpoint {epoch} needs"
        for metadata in retained:
            assert {path for part in metadata.parts for path in part.kept_files} <= there, "a full snapshot"
        for held in self.holds:
            assert held.metadata.data_files <= there, f"what is leased of epoch {held.metadata.epoch}"
        for attempt in self.working:
            assert attempt.needs | attempt.wrote <= there, "what an attempt at work needs"


Histories.TestCase.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, derandomize=True, database=None
)
TestHistories = Histories.TestCase
