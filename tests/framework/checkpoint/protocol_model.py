"""The epoch protocol as a model: drivers, their tasks and clean-ups over one folder, in any interleaving.

The code under test is the real one: `begin_attempt`, `write_attempt`, the coordinator, the publication by
tasks, the retention.  What is modelled is the world around it: a storage in memory that hands
control back before each request, Spark's commit log (an epoch is committed once, by the first driver that
gets there), and drivers that may be preempted, stopped or killed before any request.

An attempt restores the list of the epochs that its state has seen.  The invariant: an attempt of epoch N that
begins at all has seen exactly the epochs 0 to N - 1.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pytest

from keyedstate.checkpoint.format.json_converter import to_json
from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.protocol import coordinator, publication, recovery, retention
from keyedstate.checkpoint.protocol import owner as writer
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement, CheckpointCoordinator
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.recovery import begin_attempt
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage, StoredFile
from keyedstate.errors import CheckpointError, MissingFileError, OvertakenAttemptError, StorageError
from keyedstate.keygroups import key_group_range_for

GROUPS = 4


class Killed(BaseException):
    """Ends the thread of a process that was killed."""


class Process:
    """A thread that runs one step, up to the next request to the storage, each time it is resumed."""

    def __init__(self, name: str, driver: str, body: Callable[[], None]) -> None:
        self.name = name
        self.driver = driver
        self.done = False
        self.killed = False
        self.steps = 0
        #: Says whether the process can continue; None where nothing blocks it.
        self.waits_for: Callable[[], bool] | None = None
        self._body = body
        self._may_run = threading.Semaphore(0)
        self._has_run = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        return not self.done and (self.waits_for is None or self.waits_for())

    def step(self) -> None:
        self.steps += 1
        self._may_run.release()
        self._has_run.acquire()

    def pause(self) -> None:
        """Hand control back; called in the process's own thread."""
        if self.killed:
            raise Killed
        self._has_run.release()
        self._may_run.acquire()
        if self.killed:
            raise Killed

    def pause_until(self, condition: Callable[[], bool]) -> None:
        self.pause()
        while not condition():
            self.waits_for = condition
            self.pause()
        self.waits_for = None

    def kill(self) -> None:
        self.killed = True
        if not self.done:
            self.step()
            self._thread.join()

    def _run(self) -> None:
        self._may_run.acquire()
        with contextlib.suppress(Killed):
            if not self.killed:
                self._body()
        self.done = True
        self._has_run.release()


@dataclass
class World:
    """What all processes share.

    Attributes
    ----------
    has_locks : bool
        Whether the storage has locks, as a local disk, or none, as an object store.
    files : dict
    commits : dict of int to str
        Spark's commit log: which driver committed an epoch.
    violations : list of str
    errors : dict of str to list of Exception
        What stopped a driver, by its run.
    """

    has_locks: bool
    partitions: int
    each_epoch: bool
    #: Whether tasks publish, as on Spark Connect, and no coordinator does.
    by_tasks: bool = False
    #: Says of a request that runs concurrently with others whether it is sent last, and not first.
    is_late: Callable[[], bool] = lambda: False
    files: dict[str, bytes] = field(default_factory=dict)
    commits: dict[int, str] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    errors: dict[str, list[Exception]] = field(default_factory=dict)
    #: The attempts whose output Spark took in the committed epochs, by their nonces.
    taken: dict[int, set[str]] = field(default_factory=dict)
    #: Runs whose next publication fails, as a storage that has a bad moment.
    failing: set[str] = field(default_factory=set)
    lock: list[tuple[Process, bool]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    current: Process | None = None

    # -- scheduling --------------------------------------------------------------------------------

    def spawn(self, name: str, driver: str, body: Callable[[], None]) -> Process:
        process = Process(name, driver, body)
        self.processes.append(process)
        return process

    def start(self, run: str, last: int, *, stragglers: int = 0) -> Process:
        """Start a driver that runs epochs up to `last`.

        Its first so many tasks get a second attempt, a process of its own that Spark does not wait for.
        """
        return self.spawn(run, run, Driver(self, run, last, stragglers).run)

    def pause(self) -> None:
        if self.current is not None:
            self.current.pause()

    def step(self, process: Process) -> bool:
        """Let a process run to its next request; False where it waits or has ended."""
        if not process.ready:
            return False
        self.current = process
        try:
            process.step()
        finally:
            self.current = None
        return True

    def run(self, driver: str, steps: int | None = None) -> int:
        """Let a driver, and then what it does in the background, run; returns how many steps it made.

        Where another process has the lock, that one runs first, as it would while this one waits.
        """
        made = 0
        while steps is None or made < steps:
            mine = [process for process in self.processes if process.driver == driver and not process.done]
            moved = next((process for process in mine if self.step(process)), None)
            if moved is None:
                holder = next((holder for holder, _ in self.lock if holder.driver != driver), None)
                if not mine or holder is None:
                    break
                self.step(holder)
                continue
            made += 1
        return made

    def kill(self, driver: str) -> None:
        for process in self.processes:
            if process.driver == driver:
                process.kill()
        self.lock = [held for held in self.lock if held[0].driver != driver]

    def close(self) -> None:
        for process in self.processes:
            process.kill()

    @contextlib.contextmanager
    def exclusive(
        self, folder: OperatorFolder, timeout: float = 0.0, *, shared: bool = False
    ) -> Iterator[None]:
        """Stand in for `writer.exclusive`."""
        process = self.current
        if not self.has_locks or process is None:
            yield
            return
        process.pause_until(lambda: all(shared and other for _, other in self.lock))
        held = (process, shared)
        self.lock.append(held)
        try:
            yield
        finally:
            if held in self.lock:
                self.lock.remove(held)

    # -- Spark -------------------------------------------------------------------------------------

    @property
    def next_epoch(self) -> int:
        return max(self.commits, default=-1) + 1


@dataclass(frozen=True)
class ModelStorage(CheckpointStorage):
    """The world's files; each request is a step."""

    @property
    def world(self) -> World:
        world = self.filesystem
        assert isinstance(world, World)
        return world

    @property
    def is_local(self) -> bool:
        return self.world.has_locks

    def write_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.world.pause()
        process = self.world.current
        if path.endswith("/_metadata") and process is not None and process.driver in self.world.failing:
            self.world.failing.discard(process.driver)
            raise StorageError(path, "write", "the storage has a bad moment")
        self.world.files[self._resolve(path)] = data

    def read(self, path: str) -> bytes:
        self.world.pause()
        try:
            return self.world.files[self._resolve(path)]
        except KeyError:
            raise MissingFileError(path, "read") from None

    def list(self, path: str = "") -> Sequence[str]:
        self.world.pause()
        prefix = self._resolve(path) + "/"
        below = (name[len(prefix) :] for name in self.world.files if name.startswith(prefix))
        return sorted({name.split("/")[0] for name in below})

    def describe(self, path: str = "") -> Sequence[StoredFile]:
        return [StoredFile(name, False, 0, None) for name in self.list(path)]

    def modified_ms(self, path: str) -> None:
        self.world.pause()

    def exists(self, path: str) -> bool:
        self.world.pause()
        resolved = self._resolve(path)
        return any(name == resolved or name.startswith(resolved + "/") for name in self.world.files)

    def delete_file(self, path: str) -> None:
        self.world.pause()
        self.world.files.pop(self._resolve(path), None)

    def delete_dir(self, path: str) -> None:
        self.world.pause()
        prefix = self._resolve(path) + "/"
        for name in [name for name in self.world.files if name.startswith(prefix)]:
            del self.world.files[name]

    def begin(self, function: Callable[[], Any]) -> Callable[[], Any]:
        if not self.is_local and self.world.is_late():
            return lru_cache(maxsize=1)(function)
        result = function()
        return lambda: result

    def for_each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Sequence[Any]:
        return [function(item) for item in items]


class Driver:
    """One run of the query: its tasks one after the other, its coordinator, and Spark's commit."""

    def __init__(self, world: World, run: str, last: int, stragglers: int = 0) -> None:
        self.stragglers = stragglers
        self.stragglers_began = False
        self.world = world
        self.run_id = run
        self.last = last
        self.folder = OperatorFolder(ModelStorage(world, "/dev/null/state", "model://state"), "views")  # type: ignore[arg-type]
        self.coordinator = CheckpointCoordinator(self.folder)
        self.coordinator._background = self  # type: ignore[assignment]
        self._tail: Process | None = None
        #: What the processes of its tasks know, as if there were one.
        self.entered: set[tuple[str, str]] = set()

    def submit(self, action: Callable[[], None]) -> None:
        """Stand in for the coordinator's background thread: one action after the other."""
        before = self._tail
        process = self.world.spawn(f"{self.run_id} in the background", self.run_id, action)
        process.waits_for = None if before is None else lambda: before.done
        self._tail = process

    def run(self) -> None:
        self.world.pause()
        epoch = self.world.next_epoch
        while epoch <= self.last:
            try:
                tasks = [self.task(epoch, partition) for partition in range(self.world.partitions)]
                words = [word for word in tasks if word is not None]
            except Exception as error:
                # A task that keeps failing ends the query.
                self.world.errors.setdefault(self.run_id, []).append(error)
                return
            for word in () if self.world.by_tasks else words:
                # As in an accumulator: Spark commits all the same.
                with contextlib.suppress(Exception):
                    self.coordinator.acknowledge(word)
            self.world.pause()
            if epoch in self.world.commits:
                return  # Spark: "Multiple streaming jobs detected"
            self.world.commits[epoch] = self.run_id
            self.world.taken[epoch] = {word.identity.nonce for word in words}
            epoch += 1

    def task(self, epoch: int, partition: int) -> Acknowledgement | None:
        """Run one partition of an epoch."""
        if self.stragglers:
            self.stragglers -= 1
            self.stragglers_began = True
            name = f"a straggler of {self.run_id}"
            self.world.spawn(name, name, lambda: self.straggle(epoch, partition))
        while True:
            try:
                return self.attempt(epoch, partition)
            except OvertakenAttemptError:
                # Another attempt ran at the same time; Spark runs the task again.
                if not self.stragglers_began:
                    raise

    def straggle(self, epoch: int, partition: int) -> None:
        with contextlib.suppress(Exception):
            self.attempt(epoch, partition, is_straggler=True)

    def attempt(self, epoch: int, partition: int, *, is_straggler: bool = False) -> Acknowledgement | None:
        number = next(self.world.numbers)
        partitions = self.world.partitions
        identity = TaskIdentity(
            "views", "query", self.run_id, epoch, partition, partitions, GROUPS, number, f"n{number}"
        )

        def mark() -> frozenset[str]:
            self.folder.write_started(identity)
            if not self.world.by_tasks:
                return frozenset()
            return publication.finished_at_start(self.folder.attempts(epoch), identity)

        _, finished_before, base = begin_attempt(
            self.folder, identity, mark, self.entered, each_epoch=self.world.each_epoch
        )
        if finished_before and is_straggler and self.world.by_tasks:
            return None  # Spark kills it while it waits
        before = None if base is None else base.parts[partition]
        self.check(identity, before)
        if base is not None:
            self.check_taken(base)
        manifest = self.write_state(identity, before)
        shared = () if before is None else before.kept_files
        if not self.world.by_tasks:
            path = writer.write_attempt(self.folder, manifest, shared)
            return Acknowledgement(identity, path, json.dumps(to_json(manifest)))
        path = publication.finish_attempt(self.folder, manifest, shared, finished_before)
        metadata = publication.publish_if_complete(self.folder, identity)
        if metadata is not None:
            # A clean-up that fails is only logged.
            with contextlib.suppress(CheckpointError):
                retention.sweep(self.folder, identity)
                retention.prune(self.folder, metadata, 2)
        return Acknowledgement(identity, path)

    def check(self, identity: TaskIdentity, before: AttemptManifest | None) -> None:
        seen = [] if before is None else self.restore(before)
        if seen != list(range(identity.epoch)):
            self.world.violations.append(f"{self.run_id}: epoch {identity.epoch} begins from {seen}")

    def check_taken(self, base: CheckpointMetadata) -> None:
        """Where one run alone has run an epoch, its state is that of the attempts whose output Spark took."""
        world = self.world
        if world.by_tasks and world.has_locks and world.commits.get(base.epoch) == base.run_id:
            nonces = {part.identity.nonce for part in base.parts}
            if nonces != world.taken[base.epoch]:
                world.violations.append(
                    f"{self.run_id}: epoch {base.epoch} has the state of {nonces}, and Spark took the output "
                    f"of {world.taken[base.epoch]}"
                )

    def restore(self, part: AttemptManifest) -> list[int]:
        files = [file.path for file in (*part.segments, *part.deltas)]
        return [epoch for path in files for epoch in json.loads(self.folder.storage.read(path))]

    def write_state(self, identity: TaskIdentity, before: AttemptManifest | None) -> AttemptManifest:
        """Write a full snapshot in even epochs, a delta in odd ones."""
        groups = key_group_range_for(identity.partition, identity.parallelism, GROUPS)
        path = self.folder.data_path(identity)
        own = SegmentFile(path, 1, "", groups, {})
        whole = before is None or identity.epoch % 2 == 0
        epochs = [*range(identity.epoch + 1)] if whole else [identity.epoch]
        self.folder.storage.write_atomic(path, json.dumps(epochs).encode())
        return AttemptManifest(
            identity=identity, key_groups=groups, backend="none", backend_version="1", states=(),
            segments=(own,) if before is None or whole else before.segments,
            deltas=() if before is None or whole else (*before.deltas, own),
            entries={}, rows_in=0, rows_out=0, largest_event_time=None, sync_ms=0.0, write_ms=0.0,
            restore_ms=0.0, process_ms=0.0, bytes=1,
        )  # fmt: skip


@contextlib.contextmanager
def model(
    *,
    has_locks: bool = True,
    partitions: int = 1,
    each_epoch: bool = True,
    by_tasks: bool = False,
    is_late: Callable[[], bool] = lambda: False,
) -> Iterator[World]:
    """Make a world, with the code under test bound to it."""
    world = World(has_locks, partitions, each_epoch, by_tasks, is_late)
    with pytest.MonkeyPatch.context() as patch:
        for module in (coordinator, publication, recovery, retention, writer):
            if hasattr(module, "exclusive"):
                patch.setattr(module, "exclusive", world.exclusive)
        patch.setattr(coordinator.threading, "Timer", _NoTimer)
        try:
            yield world
        finally:
            world.close()


class _NoTimer:
    daemon = True

    def __init__(self, *arguments: object) -> None:
        pass

    def start(self) -> None:
        pass

    def cancel(self) -> None:
        pass


def state_in(world: World) -> list[int]:
    """Return the epochs that the newest checkpoint has seen."""
    driver = Driver(world, "reader", 0)
    newest: CheckpointMetadata | None = driver.folder.read_metadata(driver.folder.checkpoints()[-1])
    assert newest is not None
    states = [driver.restore(part) for part in newest.parts]
    assert all(state == states[0] for state in states)
    return states[0]
