"""A small performance baseline of a backend, against a dict and pyarrow in the same run; it judges nothing.

It takes a few seconds, so its measurements show a factor and not a percent.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import Any

import pyarrow as pa

from keyedstate import types
from keyedstate.backend import AnyStateTable, StateKind, StateMeta
from keyedstate.checkpoint.format.segment import SegmentHandle
from keyedstate.keygroups import KeyGroupRange
from keyedstate.murmur3 import key_groups as key_groups_of
from keyedstate.testing.instances import Instance, open_instance
from keyedstate.working_folder import WorkingFolder

_ENTRIES = 50_000
_ROUNDS = 5
_GROUPS = 128
_META = StateMeta("visits", StateKind.VALUE, types.STRING, types.VOID, types.INT64)
_SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
_DICT = "a dict"
_PYARROW = "pyarrow"


@dataclass(frozen=True)
class Measurement:
    """One operation of a backend beside its floor.

    Attributes
    ----------
    operation : str
        ``put``, ``get``, ``transform``, ``snapshot`` (taken and written into a segment file) or ``restore``.
    entries_per_second : float
        Median over the rounds.
    floor : str
        What it is compared with.
    floor_entries_per_second : float
    """

    operation: str
    entries_per_second: float
    floor: str
    floor_entries_per_second: float

    @property
    def ratio(self) -> float:
        """The backend's speed as a part of the floor's: 0.5 is half as fast."""
        return self.entries_per_second / self.floor_entries_per_second


@dataclass(frozen=True)
class Baseline:
    """What was measured, and how much work it was.

    Attributes
    ----------
    entries : int
        What each operation went over in one round.
    rounds : int
    operations : list of Measurement
    """

    entries: int
    rounds: int
    operations: list[Measurement]


def measure(
    backend: str, options: Mapping[str, str], *, entries: int = _ENTRIES, rounds: int = _ROUNDS
) -> Baseline:
    """Measure value state of an installed backend: string keys in 128 key groups, one integer each.

    In every round the backend and the floor take turns, operation by operation, and start with nothing.

    Parameters
    ----------
    backend : str
    options : mapping of str to str
        Options by their full names.
    entries, rounds : int
        At least 1 each.
    """
    keys = [f"customer-{number:08}" for number in range(entries)]
    work = _Work(keys, key_groups_of([pa.array(keys)], _GROUPS).tolist())
    floors = {
        "put": _DICT,
        "get": _DICT,
        "transform": _DICT,
        "snapshot": f"{_PYARROW} writing the same columns",
        "restore": f"{_PYARROW} reading them into a dict",
    }
    seconds: dict[str, tuple[list[float], list[float]]] = {operation: ([], []) for operation in floors}
    with WorkingFolder() as made:
        for number in range(rounds):
            folder = made / str(number)
            folder.mkdir()
            own, floor = _BackendSteps(work, backend, options, folder), _FloorSteps(work, folder)
            try:
                for operation, (of_backend, of_floor) in seconds.items():
                    of_floor.append(_timed(getattr(floor, operation)))
                    of_backend.append(_timed(getattr(own, operation)))
            finally:
                own.close()
    operations = [
        Measurement(
            operation,
            entries / statistics.median(of_backend),
            floors[operation],
            entries / statistics.median(of_floor),
        )
        for operation, (of_backend, of_floor) in seconds.items()
    ]
    return Baseline(entries, rounds, operations)


def _timed(step: Callable[[], None]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


@dataclass(frozen=True)
class _Work:
    """The keys in their order, with their key groups."""

    keys: list[str]
    groups: list[int]


class _BackendSteps:
    """The operations on a state table, each on what the one before it left."""

    def __init__(self, work: _Work, backend: str, options: Mapping[str, str], folder: Path) -> None:
        self._work = work
        self._folder = folder
        self._opened: list[Instance] = []
        self._handle: SegmentHandle | None = None

        def open_(*handles: SegmentHandle) -> AnyStateTable:
            instance = open_instance(
                backend,
                folder,
                options=options,
                key_groups=KeyGroupRange(0, _GROUPS - 1),
                max_parallelism=_GROUPS,
                handles=handles,
            )
            self._opened.append(instance)
            return instance.table(_META)

        self._open = open_
        self._table = open_()

    def put(self) -> None:
        put = self._table.put
        for number, group, key in zip(itertools.count(), self._work.groups, self._work.keys, strict=False):
            put(group, key, types.VOID_NAMESPACE, number)

    def get(self) -> None:
        get = self._table.get
        for group, key in zip(self._work.groups, self._work.keys, strict=True):
            get(group, key, types.VOID_NAMESPACE)

    def transform(self) -> None:
        transform = self._table.transform
        for group, key in zip(self._work.groups, self._work.keys, strict=True):
            transform(group, key, types.VOID_NAMESPACE, 1, add)

    def snapshot(self) -> None:
        (instance,) = self._opened
        self._handle = instance.write(instance.prepare(), self._folder)

    def restore(self) -> None:
        assert self._handle is not None
        assert len(self._open(self._handle)) == len(self._work.keys)

    def close(self) -> None:
        for instance in self._opened:
            instance.close()


class _FloorSteps:
    """The same work with a dict, and with the file that pyarrow writes of the same columns."""

    def __init__(self, work: _Work, folder: Path) -> None:
        self._work = work
        self._file = str(folder / "floor.arrow")
        self._entries: dict[str, Any] = {}
        self._keys_of_group: list[list[str]] = [[] for _ in range(_GROUPS)]
        for group, key in zip(work.groups, work.keys, strict=True):
            self._keys_of_group[group].append(key)

    def put(self) -> None:
        entries = self._entries
        for number, key in enumerate(self._work.keys):
            entries[key] = number

    def get(self) -> None:
        get = self._entries.get
        for key in self._work.keys:
            get(key)

    def transform(self) -> None:
        entries = self._entries
        for key in self._work.keys:
            entries[key] = add(entries[key], 1)

    def snapshot(self) -> None:
        compressed = pa.ipc.IpcWriteOptions(compression="zstd")
        entries = self._entries
        with (
            pa.OSFile(self._file, "wb") as file,
            pa.ipc.new_stream(file, _SCHEMA, options=compressed) as stream,
        ):
            for keys in self._keys_of_group:
                values = pa.array([entries[key] for key in keys], pa.int64())
                stream.write_batch(pa.record_batch([pa.array(keys, pa.string()), values], schema=_SCHEMA))

    def restore(self) -> None:
        found: dict[str, int] = {}
        with pa.OSFile(self._file, "rb") as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                found.update(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
        assert len(found) == len(self._work.keys)
