"""Deltas: a full snapshot and its deltas give the state, and every byte of them is checked."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.backends import backend_of

from keyedstate import types
from keyedstate.checkpoint.format.delta import ChainHandle, write_delta
from keyedstate.checkpoint.format.json_converter import from_json, to_json
from keyedstate.checkpoint.format.manifest import AttemptManifest, TaskIdentity
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import CorruptFileError
from keyedstate.keygroups import KeyGroupRange, key_group_ranges
from keyedstate.state import ListState, ManualClock, MapState, ReducingState, Ttl, ValueState
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

GROUPS = 6
VALUE = ValueState("value", types.nullable(types.STRING))
LIST = ListState("list", types.INT64)
MAP = MapState("map", types.FLOAT64, types.INT64)
SUM = ReducingState("sum", lambda a, b: a + b, types.INT64)
TIMED = ValueState("timed", types.INT64, ttl=Ttl.of("1 day"))
STATES = (VALUE, LIST, MAP, SUM, TIMED)
KEY = types.nullable(types.FLOAT64)
KEYS = [None, math.nan, -0.0, *map(float, range(1, 30))]


class Chain:
    """One instance after the other: each is restored from the files of those before, and adds a file."""

    def __init__(self, name: str, storage: CheckpointStorage) -> None:
        self.chosen = backend_of(name)
        self.storage = storage
        self.full: SegmentFile | None = None
        self.deltas: list[SegmentFile] = []
        self.metas: list[Any] = []

    @contextlib.contextmanager
    def handle(self) -> Iterator[list[Any]]:
        if self.full is None:
            yield []
            return
        opened = [SegmentHandle.open(self.storage, file) for file in (self.full, *self.deltas)]
        chain = ChainHandle(opened[0], opened[1:], self.metas)
        yield [chain]
        chain.close()

    @contextlib.contextmanager
    def restored(self, groups: KeyGroupRange | None = None, **settings: Any) -> Iterator[KeyedStateBackend]:
        with self.handle() as handles:
            backend = self.open(handles, groups, **settings)
        with contextlib.closing(backend):
            yield backend

    def open(
        self, handles: list[Any], groups: KeyGroupRange | None = None, **settings: Any
    ) -> KeyedStateBackend:
        return KeyedStateBackend.open(
            self.chosen,
            KeySpace(KEY, groups or KeyGroupRange(0, GROUPS - 1), GROUPS),
            handles,
            clock=ManualClock(0),
            **settings,
        )

    @contextlib.contextmanager
    def epoch(self, number: int) -> Iterator[KeyedStateBackend]:
        with self.restored(track_changes=True) as backend:
            backend.begin_epoch(number)
            yield backend
            self.metas = backend.metas()
            path = f"epoch-{number}.seg"
            if self.full is None:
                writer = SegmentWriter(self.storage, path, backend.key_groups)
                backend.snapshot(number).run(writer)
                self.full = writer.finish()
            else:
                metas = {meta.name: meta for meta in self.metas}
                changes = backend.changes_since(number - 1)
                self.deltas.append(write_delta(self.storage, path, backend.key_groups, metas, changes))
                for changed in changes.values():
                    changed.release()


@pytest.fixture(params=["heap-cow", "nested-map"])
def chain(request: pytest.FixtureRequest, tmp_path: Path) -> Chain:
    return Chain(request.param, CheckpointStorage.open(tmp_path))


def content(backend: KeyedStateBackend) -> dict[Any, Any]:
    """Return everything that a backend's states show, with a name for the key that equals nothing."""
    found: dict[Any, Any] = {}
    for descriptor in STATES:
        for namespace in (1, 2):
            handle: Any = backend.get_state(descriptor, namespace, types.INT64)
            for key in list(backend.get_keys(descriptor.name, namespace)):
                backend.set_current_key(key)
                if isinstance(descriptor, MapState):
                    shown = {str(map_key): value for map_key, value in handle.items()}
                else:
                    shown = handle.value() if isinstance(descriptor, ValueState) else handle.get()
                found[descriptor.name, namespace, str(key)] = shown
    return found


def change(backend: KeyedStateBackend, rng: random.Random) -> None:
    for _ in range(rng.randrange(40)):
        descriptor = rng.choice(STATES)
        handle: Any = backend.get_state(descriptor, rng.choice((1, 2)), types.INT64)
        backend.set_current_key(rng.choice(KEYS))
        number = rng.randrange(100)
        if rng.random() < 0.3:
            handle.clear()
        elif isinstance(descriptor, MapState):
            handle.put(rng.choice((math.nan, -0.0, 0.0, 1.5)), number)
            if rng.random() < 0.3:
                handle.remove(math.nan)
        elif isinstance(descriptor, ValueState):
            handle.update(str(number) if descriptor is VALUE else number)
        else:
            handle.add(number)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.slow
def test_a_chain_gives_the_state_after_its_last_epoch_over_any_ranges(chain: Chain, seed: int) -> None:
    """SB-38: every epoch begins from what is on disk, and the whole is read in two and three parts too."""
    rng = random.Random(seed)
    for epoch in range(8):
        with chain.epoch(epoch) as backend:
            change(backend, rng)
            expected = content(backend)
        for parallelism in (1, 2, 3):
            found: dict[Any, Any] = {}
            for groups in key_group_ranges(parallelism, GROUPS):
                with chain.restored(groups) as part:
                    found |= content(part)
            assert found == expected
    assert len(chain.deltas) == 7


def test_what_was_removed_stays_away_and_may_come_back(chain: Chain) -> None:
    with chain.epoch(0) as backend:
        backend.get_state(VALUE, 1, types.INT64).update_many([1.0, 2.0, 3.0], ["a", "b", "c"])
    with chain.epoch(1) as backend:
        state = backend.get_state(VALUE, 1, types.INT64)
        state.clear_many([1.0, 2.0])
        backend.set_current_key(9.0)
        state.update("gone at once")
        state.clear()
    with chain.epoch(2) as backend:
        assert sorted(backend.get_keys("value", 1)) == [3.0]
        backend.get_state(VALUE, 1, types.INT64).update_many([2.0], ["again"])
    with chain.restored() as backend:
        assert backend.get_state(VALUE, 1, types.INT64).get_many([1.0, 2.0, 3.0, 9.0]) == [
            None, "again", "c", None,
        ]  # fmt: skip
        assert backend.num_entries() == 2


def test_two_restores_from_one_chain_share_no_value(chain: Chain) -> None:
    with chain.epoch(0) as backend:
        backend.get_state(LIST, 1, types.INT64).add_many([1.0, 2.0], [1, 2])
    with chain.epoch(1) as backend:
        backend.get_state(LIST, 1, types.INT64).add_many([2.0], [3])
    with chain.handle() as handles:
        for _ in range(3):
            with contextlib.closing(chain.open(handles)) as backend:
                state = backend.get_state(LIST, 1, types.INT64)
                assert state.get_many([1.0, 2.0]) == [[1], [2, 3]]
                state.add_many([1.0, 2.0], [8, 9])


def test_a_later_state_joins_the_chain_and_an_unregistered_one_stays(chain: Chain) -> None:
    with chain.epoch(0) as backend:
        backend.get_state(VALUE, 1, types.INT64).update_many([1.0], ["a"])
    with chain.epoch(1) as backend:
        backend.get_state(SUM, 1, types.INT64).add_many([1.0], [5])
    with chain.epoch(2):
        pass
    with chain.restored() as backend:
        assert {meta.name for meta in backend.metas()} == {"value", "sum"}
        assert backend.get_state(VALUE, 1, types.INT64).get_many([1.0]) == ["a"]
        assert backend.get_state(SUM, 1, types.INT64).get_many([1.0]) == [5]


def test_an_epoch_without_changes_adds_a_delta_without_entries(chain: Chain) -> None:
    with chain.epoch(0) as backend:
        backend.get_state(VALUE, 1, types.INT64).update_many(KEYS[2:], ["a"] * len(KEYS[2:]))
    with chain.epoch(1) as backend:
        expected = content(backend)
    assert sum(chain.deltas[0].entries.values()) == 0
    with chain.restored() as backend:
        assert content(backend) == expected


@pytest.fixture
def written(tmp_path: Path) -> Chain:
    chain = Chain("heap-cow", CheckpointStorage.open(tmp_path))
    with chain.epoch(0) as backend:
        backend.get_state(VALUE, 1, types.INT64).update_many([1.0, 2.0], ["a", "b"])
    with chain.epoch(1) as backend:
        backend.get_state(VALUE, 1, types.INT64).update_many([2.0, 3.0], [None, "c"])
    return chain


def test_a_flipped_bit_in_any_byte_of_a_delta_is_found(written: Chain, tmp_path: Path) -> None:
    path = tmp_path / "epoch-1.seg"
    data = path.read_bytes()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        with pytest.raises(CorruptFileError, match=r"epoch-1\.seg is damaged"), written.restored():
            pass


def test_a_delta_in_the_place_of_another_is_found(written: Chain, tmp_path: Path) -> None:
    with written.epoch(2) as backend:
        backend.get_state(VALUE, 1, types.INT64).update_many([2.0, 3.0], ["d", "e"])
    (tmp_path / "epoch-1.seg").write_bytes((tmp_path / "epoch-2.seg").read_bytes())
    with pytest.raises(CorruptFileError, match=r"epoch-1\.seg"), written.restored():
        pass


# -- when the full snapshot is written ----------------------------------------------------------------------


def manifest(whole: int, *deltas: int, states: tuple[Any, ...] = ()) -> AttemptManifest:
    groups = KeyGroupRange(0, 1)
    files = [
        SegmentFile(f"{number}.seg", size, "", groups, {}) for number, size in enumerate((whole, *deltas))
    ]
    return AttemptManifest(
        identity=TaskIdentity("u", "q", "r", 1, 0, 1, 2, 0, "n"),
        key_groups=groups,
        backend="heap-cow",
        backend_version="1",
        states=states,
        segments=(files[0],),
        entries={},
        rows_in=0,
        rows_out=0,
        largest_event_time=None,
        sync_ms=0,
        write_ms=0,
        restore_ms=0,
        process_ms=0,
        bytes=0,
        deltas=tuple(files[1:]),
    )


def test_a_chain_ends_where_a_type_changed_and_continues_with_a_new_state() -> None:
    one, other = {"name": "a", "value": 1}, {"name": "b", "value": 1}
    before = manifest(1000, states=(one,))
    assert before.has_types_of([one]) and before.has_types_of([one, other]) and before.has_types_of([])
    assert not before.has_types_of([{"name": "a", "value": 2}])


def test_a_manifest_keeps_its_deltas_as_json() -> None:
    before = manifest(1000, 1, 2)
    assert from_json(AttemptManifest, to_json(before)) == before
    assert before.data_files == {"0.seg", "1.seg", "2.seg"}
