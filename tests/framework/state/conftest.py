"""Keyed backends over every installed plugin, and snapshots of them in real segment files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.backends import backend_of

from keyedstate import types
from keyedstate.backend import Capability
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state.clock import Clock, system_clock
from keyedstate.state.registry.chosen_backend import ChosenBackend, KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.state.registry.latency import LatencySampling
from keyedstate.state.registry.running_snapshot import SnapshotTask

#: Each backend, with the options that make another build of it.
VARIANTS: dict[str, dict[str, object]] = {
    "heap-cow": {"backend": "heap-cow"},
    "heap-cow-pure": {"backend": "heap-cow", "heap-cow.compiled": "never"},
    "nested-map": {"backend": "nested-map"},
    "spillable": {"backend": "spillable"},
}


def selected_variants() -> list[str]:
    """Return the variants of the backend in KEYEDSTATE_TEST_BACKEND, or those in memory."""
    only = os.environ.get("KEYEDSTATE_TEST_BACKEND")
    if not only:
        return [name for name in VARIANTS if name != "spillable"]
    return [name for name, options in VARIANTS.items() if options["backend"] == only]


class Instances:
    """Opens keyed backends of one variant and moves their state through segment files.

    Attributes
    ----------
    plugin : Backend
    options : dict
        What chooses and configures the variant.
    storage : CheckpointStorage
        Where snapshots are written.
    """

    def __init__(self, variant: str, folder: Path) -> None:
        self.options = VARIANTS[variant]
        self.plugin = self.chosen().backend
        self.storage = CheckpointStorage.open(str(folder))
        self._numbers = itertools.count()
        self._opened: list[KeyedStateBackend] = []

    def chosen(self, **settings: Any) -> ChosenBackend:
        return backend_of(self.options["backend"], self.options, **settings)

    def open(
        self,
        handles: Sequence[SegmentHandle] = (),
        *,
        key: types.TypeSerializer[Any] = types.INT64,
        groups: KeyGroupRange | None = None,
        max_parallelism: int = 10,
        track_changes: bool = False,
        generic_types: bool = True,
        clock: Clock = system_clock,
        latency: LatencySampling | None = None,
    ) -> KeyedStateBackend:
        backend = KeyedStateBackend.open(
            self.chosen(generic_types=generic_types, latency=latency),
            KeySpace(key, groups or KeyGroupRange(0, max_parallelism - 1), max_parallelism),
            handles,
            track_changes=track_changes,
            clock=clock,
        )
        self._opened.append(backend)
        return backend

    @property
    def asynchronous(self) -> bool:
        return self.plugin.description.level(Capability.ASYNC_SNAPSHOT).usable

    def writer(self, backend: KeyedStateBackend, compression: str = "zstd") -> SegmentWriter:
        path = f"segment-{next(self._numbers)}.seg"
        return SegmentWriter(self.storage, path, backend.key_groups, compression)

    def write(self, backend: KeyedStateBackend, task: SnapshotTask) -> SegmentHandle:
        writer = self.writer(backend)
        task.run(writer)
        return self.finish(writer)

    def finish(self, writer: SegmentWriter) -> SegmentHandle:
        return SegmentHandle.open(self.storage, writer.finish())

    def snapshot(self, backend: KeyedStateBackend) -> SegmentHandle:
        return self.write(backend, backend.snapshot(next(self._numbers)))

    def close(self) -> None:
        for backend in self._opened:
            backend.close()


@pytest.fixture(params=selected_variants())
def instances(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Instances]:
    made = Instances(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def backend(instances: Instances) -> KeyedStateBackend:
    return instances.open()
