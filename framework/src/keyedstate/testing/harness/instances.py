"""All instances of a harness: begun and ended, captured and restored together, as in a job."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from keyedstate.errors import HarnessClosedError, SnapshotMismatchError
from keyedstate.keygroups import check_parallelism, operator_index_for_key_group
from keyedstate.testing.harness.instance import HarnessInstance
from keyedstate.testing.harness.plan import InstancePlan
from keyedstate.testing.harness.snapshot import HarnessSnapshot


class RunningInstances:
    """The instances that share the key groups, in one epoch; empty or restored from a snapshot.

    Attributes
    ----------
    epoch : int

    Raises
    ------
    InvalidParallelismError, SnapshotMismatchError
    UserFunctionError, StateError
        Where the function cannot be opened or the snapshot has other states; nothing is left open.
    """

    def __init__(self, plan: InstancePlan, parallelism: int, snapshot: HarnessSnapshot | None) -> None:
        self._plan = plan
        self._closed: str | None = None
        self._running: tuple[HarnessInstance, ...] = ()
        self._snapshots = 0
        self.epoch = 0
        check_parallelism(parallelism, plan.max_parallelism)
        if snapshot is not None:
            self._check_same_keys(snapshot)
        self._start(snapshot, parallelism)

    @property
    def open(self) -> tuple[HarnessInstance, ...]:
        """The instances by number; raises `HarnessClosedError` after the harness was closed."""
        if self._closed is not None:
            raise HarnessClosedError(self._closed)
        return self._running

    @property
    def rows_dropped(self) -> Counter[str]:
        """Rows that were dropped, by reason, in earlier epochs too."""
        return sum((Counter(instance.rows_dropped) for instance in self._running), self._plan.rows_dropped)

    def owner_of(self, key_group: int) -> HarnessInstance:
        """Return the instance of a key group."""
        instances = self.open
        return instances[operator_index_for_key_group(key_group, len(instances), self._plan.max_parallelism)]

    def end_epoch(self) -> list[list[tuple[Any, ...]]]:
        """End the epoch of every instance, begin the next one, and return the output of each."""
        instances = self.open
        with self._closed_on_error("is closed: the last end_epoch() failed"):
            made = [instance.end_epoch() for instance in instances]
            self.epoch += 1
            self._plan.time.end_epoch()
            for instance in instances:
                instance.show_time()
                instance.begin_epoch(self.epoch)
        return made

    def snapshot(self) -> HarnessSnapshot:
        """Write the state of every instance into files."""
        states = [(instance.backend, instance.operator_states) for instance in self.open]
        self._snapshots += 1
        return HarnessSnapshot.write(
            self._snapshots,
            epoch=self.epoch,
            watermark=self._plan.time.watermark,
            inputs=self._plan.time.inputs,
            max_parallelism=self._plan.max_parallelism,
            key_columns=self._plan.rows.key_columns,
            states=states,
        )

    def restore(self, snapshot: HarnessSnapshot, parallelism: int) -> None:
        """Close all instances and open others with the state of a snapshot."""
        self.check_parallelism(parallelism)
        self._check_same_keys(snapshot)
        with self._closed_on_error("is closed: the last restore() failed"):
            self._stop()
            self._start(snapshot, parallelism)

    def check_parallelism(self, parallelism: int) -> None:
        """Refuse an impossible number of instances, or any in a closed harness."""
        _ = self.open
        check_parallelism(parallelism, self._plan.max_parallelism)

    def close(self) -> None:
        """Close all instances; calling it again does nothing."""
        self._closed = self._closed or "is closed"
        self._stop()

    def _start(self, snapshot: HarnessSnapshot | None, parallelism: int) -> None:
        """Open all instances, empty or restored, and begin their epoch; after an error none stays open."""
        if snapshot is not None:
            self.epoch = snapshot.epoch
            self._plan.time.restore(snapshot.watermark, snapshot.inputs)
        opened: list[HarnessInstance] = []
        try:
            for index in range(parallelism):
                opened.append(HarnessInstance(self._plan, index, parallelism, snapshot))
            for instance in opened:
                instance.begin_epoch(self.epoch)
        except BaseException:
            for instance in opened:
                with contextlib.suppress(Exception):
                    instance.close()
            raise
        self._running = tuple(opened)

    def _stop(self) -> None:
        """Close all instances, and then raise the first error."""
        instances, self._running = self._running, ()
        with contextlib.ExitStack() as closing:
            for instance in reversed(instances):
                closing.callback(instance.close)

    @contextlib.contextmanager
    def _closed_on_error(self, reason: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._closed = reason
            with contextlib.suppress(Exception):
                self._stop()
            raise

    def _check_same_keys(self, snapshot: HarnessSnapshot) -> None:
        """Refuse a snapshot whose keys have other key groups here; reading it checks their types."""
        if snapshot.max_parallelism != self._plan.max_parallelism:
            raise SnapshotMismatchError(
                "max parallelism", snapshot.max_parallelism, self._plan.max_parallelism
            )
        before, now = snapshot.key_columns, self._plan.rows.key_columns
        if before != now and sorted(before) == sorted(now):
            raise SnapshotMismatchError("order of key columns", before, now)
