"""Keyed backends with timer services over every backend, and their way through checkpoint files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.backends import backend_of

from keyedstate import types
from keyedstate.backend import StateHandle, StateMeta
from keyedstate.checkpoint.format.delta import ChainHandle, write_delta
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import ManualClock
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.time import Timer, TimerService, TimerServices

GROUPS = 100

#: Backends, and where the order of timers is kept over them.
QUEUES = [("heap-cow", "heap"), ("nested-map", "heap"), ("rocksdb", "ordered")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that opens backends with each of the queues, or with those of the chosen backend."""
    if "timer_queue" in metafunc.fixturenames:
        chosen = os.environ.get("KEYEDSTATE_TEST_BACKEND")
        others = [("rocksdb", "heap"), ("spillable", "ordered"), ("spillable", "heap")]
        queues = [(name, queue) for name, queue in [*QUEUES, *others] if name == chosen]
        metafunc.parametrize("timer_queue", queues if chosen else QUEUES, ids="-".join)


class Recorder:
    """Notes what fires, with the current key; may do more for a test."""

    def __init__(self, backend: KeyedStateBackend) -> None:
        self.backend = backend
        self.events: list[tuple[int, Any, Any]] = []
        self.processing: list[tuple[int, Any, Any]] = []
        self.then: Any = None

    def on_event_time(self, timer: Timer) -> None:
        assert self.backend.current.key is timer.key
        self.events.append(tuple(timer))
        if self.then is not None:
            self.then(timer)

    def on_processing_time(self, timer: Timer) -> None:
        assert self.backend.current.key is timer.key
        self.processing.append(tuple(timer))
        if self.then is not None:
            self.then(timer)


class Instance:
    """One instance of an operator with a timer service ``timers`` whose namespaces are strings."""

    def __init__(self, backend: KeyedStateBackend) -> None:
        self.backend = backend
        self.services = TimerServices(backend)
        self.target = Recorder(backend)
        self.timers: TimerService = self.services.service("timers", self.target, types.STRING)

    def event(self, key: Any, namespace: str, *times: int) -> None:
        self.backend.set_current_key(key)
        for time in times:
            self.timers.register_event_time_timer(namespace, time)

    def processing(self, key: Any, namespace: str, *times: int) -> None:
        self.backend.set_current_key(key)
        for time in times:
            self.timers.register_processing_time_timer(namespace, time)

    def all_event_timers(self) -> set[Timer]:
        return {timer for group in self.backend.key_groups for timer in self.timers.event_time_timers(group)}


class Backends:
    """Opens keyed backends and moves their state through real files."""

    def __init__(self, name: str, timer_queue: str, folder: Path) -> None:
        self.name = name
        self.timer_queue = timer_queue
        self.folder = folder
        self.clock = ManualClock(1000)
        self._storage = CheckpointStorage.open(str(folder))
        self._opened: list[KeyedStateBackend] = []
        self._numbers = itertools.count()

    def backend(
        self,
        handles: Sequence[StateHandle] = (),
        groups: KeyGroupRange | None = None,
        key: types.TypeSerializer[Any] = types.STRING,
        name: str | None = None,
        event_time: bool = True,
        timer_queue: str | None = None,
    ) -> KeyedStateBackend:
        chosen_queue = timer_queue or ("auto" if name else self.timer_queue)
        backend = KeyedStateBackend.open(
            backend_of(name or self.name, timer_queue=chosen_queue),
            KeySpace(key, groups or KeyGroupRange(0, GROUPS - 1), GROUPS),
            handles,
            local_base=self.folder,
            track_changes=True,
            clock=self.clock,
            event_time=event_time,
        )
        self._opened.append(backend)
        return backend

    def instance(self, *args: Any, **options: Any) -> Instance:
        return Instance(self.backend(*args, **options))

    def snapshot(self, backend: KeyedStateBackend) -> SegmentHandle:
        path = f"segment-{next(self._numbers)}.seg"
        writer = SegmentWriter(self._storage, path, backend.key_groups)
        backend.snapshot(next(self._numbers)).run(writer)
        return SegmentHandle.open(self._storage, writer.finish())

    def delta(self, backend: KeyedStateBackend, since: int) -> SegmentHandle:
        """Write what has changed since an epoch as an incremental checkpoint does."""
        path = f"delta-{next(self._numbers)}.seg"
        changes = backend.changes_since(since)
        metas = {meta.name: meta for meta in backend.metas()}
        written = write_delta(self._storage, path, backend.key_groups, metas, changes)
        for changed in changes.values():
            changed.release()
        return SegmentHandle.open(self._storage, written)

    def chain(
        self, base: SegmentHandle, deltas: Sequence[SegmentHandle], backend: KeyedStateBackend
    ) -> ChainHandle:
        """Return the state of a base and its deltas, which are those of a backend."""
        return ChainHandle(base, deltas, [StateMeta.from_json(meta.to_json()) for meta in backend.metas()])

    def close(self) -> None:
        for backend in self._opened:
            backend.close()


@pytest.fixture
def backends(timer_queue: tuple[str, str], tmp_path: Path) -> Iterator[Backends]:
    made = Backends(*timer_queue, tmp_path)
    yield made
    made.close()


@pytest.fixture
def instance(backends: Backends) -> Instance:
    return backends.instance()
