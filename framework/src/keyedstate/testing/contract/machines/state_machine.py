"""The state machine of the contract kit: every kind of state against plain dicts."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from keyedstate import types
from keyedstate.backend import Capability, StateHandle
from keyedstate.checkpoint.format.delta import ChainHandle, write_delta
from keyedstate.checkpoint.format.segment import SegmentHandle
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.keygroups import key_group_for_hash, operator_index_for_key_group
from keyedstate.murmur3 import hash_value
from keyedstate.state import ManualClock
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.state.registry.running_snapshot import SnapshotTask
from keyedstate.state.ttl.layout import layout_of
from keyedstate.testing.contract.base import ContractBase
from keyedstate.testing.contract.keyed import KeyedInstances
from keyedstate.testing.contract.machines.operations import (
    BULK_OPERATIONS,
    MERGING,
    OPERATIONS,
    STATES,
    TIMED,
    Stamps,
    living,
    merge,
    merged_stamps,
    read,
    shown,
    stamps_after,
)
from keyedstate.testing.contract.parts import TablePart

Address = tuple[str, str | None, str]
#: An operation by its name, the key and the namespace where it happens, and what is written.
Write = tuple[str, str | None, str, list[int]]


class Model(dict[Address, Any]):
    """What is stored, by state, key and namespace.

    Attributes
    ----------
    stamps : dict
        When it was written, of states with a time to live.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stamps: dict[Address, Stamps] = {}

    def copy(self) -> Model:
        """Return one that shares nothing with this one."""
        return copy.deepcopy(self)

    def expire(self, now: int) -> list[Address]:
        """Forget what is expired, and return where a part of a list was."""
        in_part = []
        for address, stamps in list(self.stamps.items()):
            left = living(address[0], self[address], stamps, now)
            if left is None:
                del self[address], self.stamps[address]
                continue
            if address[0].endswith("list") and len(left[0]) < len(self[address]):
                in_part.append(address)
            self[address], self.stamps[address] = left
        return in_part


#: Set to "long" for a run of minutes with new examples each time.
PROFILE_VARIABLE = "KEYEDSTATE_TEST_KIT"

KEY = types.nullable(types.STRING)
KEYS: tuple[str | None, ...] = (None, "", "a", "b", "c", "d")
NAMESPACES = ("w1", "w2", "w3")
MAX_PARALLELISM = 8
#: Written snapshots that can still be restored; older ones are forgotten.
SAVED_SNAPSHOTS = 6
#: The key group of each key.
KEY_GROUPS = {key: key_group_for_hash(hash_value(key, KEY.arrow_type), MAX_PARALLELISM) for key in KEYS}

_keys = st.sampled_from(KEYS)
_namespaces = st.sampled_from(NAMESPACES)
_numbers = st.lists(st.integers(-4, 9), max_size=4)
_rows = st.lists(st.tuples(_keys, st.integers(-4, 9)), max_size=6)
_any = st.integers(0, 99)
#: A clock may be set back; far ahead everything is expired.
_steps = st.sampled_from((1, 20, 49, 50, 51, 99, 100, 100, 101, -30, -150, 10**9))


def _writes(operations: str) -> st.SearchStrategy[list[Write]]:
    """Return several writes by the operations that an attribute of the machine names."""
    return st.runner().flatmap(
        lambda machine: st.lists(
            st.tuples(st.sampled_from(getattr(machine, operations)), _keys, _namespaces, _numbers),
            min_size=1,
            max_size=6,
        )
    )


def profile() -> settings:
    """Return how long the machine runs: a few seconds by default."""
    common = settings(deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck))
    if os.environ.get(PROFILE_VARIABLE) == "long":
        return settings(common, max_examples=1_500, stateful_step_count=80, derandomize=False)
    return settings(common, max_examples=30, stateful_step_count=40, derandomize=True)


class StateMachine(RuleBasedStateMachine):
    """An operator of one to four instances, and a dict as its model."""

    def __init__(self, keyed: KeyedInstances) -> None:
        super().__init__()
        self.keyed = keyed
        self.clock = ManualClock(1_000_000)
        self.claimed = [name for name, state in STATES.items() if keyed.supports(state.kind)]
        self.asynchronous = keyed.claims(Capability.ASYNC_SNAPSHOT)
        self.rescaling = keyed.claims(Capability.RESCALING)
        self.tracking = keyed.implements(TablePart.CHANGE_TRACKING)
        self.model = Model()
        #: Snapshots still to be written, and written ones, with their expected contents.
        self.open_snapshots: list[tuple[list[SnapshotTask], Model]] = []
        self.saved: list[tuple[Callable[[], list[StateHandle]], Model]] = []
        #: Per instance the full snapshot and its deltas, and the epoch that they end with.
        self.chains: list[tuple[SegmentFile, list[SegmentFile]]] = []
        self.chained_epoch = 0
        self.epoch = 0
        #: What was there when an epoch ended, for each since which the changes are known.
        self.full_snapshots: dict[int, Model] = {}
        self.instances: list[KeyedStateBackend] = []

    # -- the states -------------------------------------------------------------------------------

    @initialize(
        states=st.runner().flatmap(
            lambda self: st.lists(st.sampled_from(self.claimed), min_size=1, max_size=3, unique=True)
        )
    )
    def use_few_states(self, states: list[str]) -> None:
        """In one run, so that much happens to each of them; all get their turn."""
        self.states = states
        self.timed = [name for name in states if name.startswith(TIMED)]
        self.operations = [name for name in OPERATIONS if name.partition(".")[0] in states]
        self.timed_operations = [name for name in self.operations if name.startswith(TIMED)]
        self.bulk_operations = [name for name in BULK_OPERATIONS if name.partition(".")[0] in states]
        self._start(2, [], Model())

    @rule(writes=_writes("operations"))
    def write(self, writes: list[Write]) -> None:
        for operation, key, namespace, numbers in writes:
            self._write(operation, key, namespace, numbers)

    def _write(self, operation: str, key: str | None, namespace: str, numbers: list[int]) -> None:
        state = operation.partition(".")[0]
        handle = self._handle(state, key, namespace)
        stored = OPERATIONS[operation](handle, self.model.get((state, key, namespace)), numbers)
        self._store((state, key, namespace), stored, operation, numbers)
        assert read(state, handle) == shown(state, stored)

    @rule(
        operation=st.runner().flatmap(lambda self: st.sampled_from(self.bulk_operations)),
        namespace=_namespaces,
        rows=_rows,
    )
    def write_many(self, operation: str, namespace: str, rows: list[tuple[str | None, int]]) -> None:
        state = operation.partition(".")[0]
        method, at_each_key = BULK_OPERATIONS[operation]
        for index in range(len(self.instances)):
            own = [(key, number) for key, number in rows if self._owner(key) == index]
            if own:
                handle = self._handle(state, own[0][0], namespace)
                method(handle, [key for key, _ in own], [number for _, number in own])
        for key, number in rows:
            stored = at_each_key(None, self.model.get((state, key, namespace)), [number])
            self._store((state, key, namespace), stored, operation, [number])

    @precondition(lambda self: not set(MERGING).isdisjoint(self.states))
    @rule(
        state=st.runner().flatmap(lambda self: st.sampled_from([s for s in self.states if s in MERGING])),
        key=_keys,
        into=_namespaces,
        sources=st.lists(_namespaces, max_size=4),
    )
    def merge_namespaces(self, state: str, key: str | None, into: str, sources: list[str]) -> None:
        self._handle(state, key, into).merge_namespaces(into, sources)
        model, target = self.model, (state, key, into)
        for source in dict.fromkeys(sources):
            stored = model.pop((state, key, source), None) if source != into else None
            if stored is None:
                continue
            stamps = model.stamps.pop((state, key, source), None)
            if target in model:
                stored = merge(state, model[target], stored)
                if stamps is not None:
                    stamps = merged_stamps(state, model.stamps[target], stamps, self.clock.now)
            model[target] = stored
            if stamps is not None:
                model.stamps[target] = stamps

    @rule(state=st.runner().flatmap(lambda self: st.sampled_from(self.states)), namespace=_namespaces)
    def list_and_visit_keys(self, state: str, namespace: str) -> None:
        seen: dict[str | None, Any] = {}
        for instance in self.instances:
            listed = list(instance.get_keys(state, namespace))
            assert len(listed) == len(set(listed))
            visited: list[Any] = []

            def visit(key: Any, handle: Any, visited: list[Any] = visited) -> None:
                visited.append(key)
                seen[key] = read(state, handle)

            instance.apply_to_all_keys(STATES[state], visit, namespace, types.STRING)
            assert sorted(visited, key=str) == sorted(listed, key=str)
        assert seen == {
            key: shown(state, stored)
            for (name, key, other), stored in self.model.items()
            if (name, other) == (state, namespace)
        }

    # -- time ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.timed)
    @rule(moves=st.lists(st.tuples(_writes("timed_operations"), _steps), min_size=1, max_size=4), ends=_any)
    def let_time_pass(self, moves: list[tuple[list[Write], int]], ends: int) -> None:
        """Now and then an epoch ends."""
        for number, (writes, step) in enumerate(moves):
            self.write(writes)
            self._move_the_clock(step, access=bool(ends & 1), ends=bool(ends >> number & 2))

    def _move_the_clock(self, step: int, access: bool, ends: bool) -> None:
        """Let clean-ups remove expired entries, then read everything, so that the contents are known."""
        self.clock.advance(step)
        in_part = self.model.expire(self.clock.now)
        if access:
            for state in self.timed:
                shown_now = shown(state, self.model.get((state, "a", "w1")))
                assert read(state, self._handle(state, "a", "w1")) == shown_now
        # What a backend drops on its own is no change that a delta has.
        if ends and not (self.tracking and self.keyed.implements(TablePart.EXPIRY_CLEANUP)):
            for instance in self.instances:
                instance.end_epoch()
        self._compare(self.timed)
        self._remove_expired_elements(in_part)

    def _remove_expired_elements(self, lists: Sequence[Address]) -> None:
        """Write lists without expired elements, which a read leaves and a clock set back shows again."""
        if self.keyed.implements(TablePart.EXPIRY_CLEANUP):
            for state, key, namespace in lists:
                self._write(f"{state}.update", key, namespace, self.model[state, key, namespace])

    # -- snapshots ----------------------------------------------------------------------------------

    @rule()
    def take_snapshot(self) -> None:
        tasks = [instance.snapshot(len(self.open_snapshots)) for instance in self.instances]
        self.open_snapshots.append((tasks, self.model.copy()))
        if not self.asynchronous:
            self.write_snapshot(0)

    @precondition(lambda self: self.open_snapshots)
    @rule(number=_any)
    def write_snapshot(self, number: int) -> None:
        tasks, model = self.open_snapshots.pop(number % len(self.open_snapshots))
        self._save(tasks, model)

    @precondition(lambda self: self.open_snapshots)
    @rule(number=_any, rows=st.lists(st.tuples(_keys, _namespaces, _numbers), min_size=1, max_size=20))
    def write_snapshot_in_a_thread_while_states_change(
        self, number: int, rows: list[tuple[str | None, str, list[int]]]
    ) -> None:
        tasks, model = self.open_snapshots.pop(number % len(self.open_snapshots))
        with ThreadPoolExecutor(1) as pool:
            saved = pool.submit(self._save, tasks, model)
            for index, (key, namespace, numbers) in enumerate(rows):
                self._write(self.operations[(index * 7) % len(self.operations)], key, namespace, numbers)
            saved.result(timeout=60)

    @precondition(lambda self: self.open_snapshots)
    @rule(number=_any)
    def release_snapshot(self, number: int) -> None:
        for task in self.open_snapshots.pop(number % len(self.open_snapshots))[0]:
            task.cancel()

    @precondition(lambda self: self.saved)
    @rule(number=_any)
    def restore(self, number: int) -> None:
        """Go on from a snapshot, with the instances that there are where another number is not claimed."""
        saved, model = self.saved[number % len(self.saved)]
        handles = saved()
        self._start(len(handles), handles, model)

    @precondition(lambda self: self.saved and self.rescaling)
    @rule(number=_any, parallelism=st.integers(1, 4))
    def restore_over_other_instances(self, number: int, parallelism: int) -> None:
        saved, model = self.saved[number % len(self.saved)]
        handles = saved()
        self._start(parallelism, handles, model)

    # -- changes ------------------------------------------------------------------------------------

    @precondition(lambda self: self.tracking)
    @rule()
    def begin_epoch(self) -> None:
        self.full_snapshots[self.epoch] = self.model.copy()
        self.epoch += 1
        for instance in self.instances:
            instance.begin_epoch(self.epoch)

    @precondition(lambda self: self.tracking)
    @rule(number=_any)
    def apply_changes_to_a_full_snapshot(self, number: int) -> None:
        epoch = list(self.full_snapshots)[number % len(self.full_snapshots)]
        found = self.full_snapshots[epoch].copy()
        for instance in self.instances:
            for state, changes in instance.changes_since(epoch).items():
                for key_group in instance.key_groups:
                    for gone in changes.removed(key_group, 3):
                        for namespace, key in zip(gone.namespaces, gone.keys, strict=True):
                            del found[state, key, namespace]
                    for batch in changes.written(key_group, 3):
                        for namespace, key, value in zip(
                            batch.namespaces, batch.keys, batch.values, strict=True
                        ):
                            found[state, key, namespace] = copy.deepcopy(self._plain(state, value))
                changes.release()
        assert found == self.model

    @precondition(lambda self: self.tracking and len(self.full_snapshots) > 1)
    @rule()
    def forget_the_oldest_changes(self) -> None:
        del self.full_snapshots[next(iter(self.full_snapshots))]
        for instance in self.instances:
            instance.forget_changes(next(iter(self.full_snapshots)))

    @precondition(lambda self: self.tracking)
    @rule(epochs=st.lists(_writes("operations"), min_size=1, max_size=4), parallelism=st.integers(1, 4))
    def continue_from_deltas(self, epochs: list[list[Write]], parallelism: int) -> None:
        """Restore from a full snapshot and its deltas, over other instances where that is claimed."""
        for writes in epochs:
            self.write(writes)
            self._checkpoint()
        saved, model = self.saved[-1]
        handles = saved()
        self._start(parallelism if self.rescaling else len(handles), handles, model)

    def _checkpoint(self) -> None:
        """Write a delta on the files of before, or a full snapshot without any, and begin an epoch."""
        storage = self.keyed.storage
        if self.chains and self.chained_epoch in self.full_snapshots:
            for instance, (_, deltas) in zip(self.instances, self.chains, strict=True):
                changes = instance.changes_since(self.chained_epoch)
                metas = {meta.name: meta for meta in instance.metas()}
                path = self.keyed.new_path()
                deltas.append(write_delta(storage, path, instance.key_groups, metas, changes))
                for changed in changes.values():
                    changed.release()
        else:
            self.chains = [
                (self.keyed.write_file(instance, instance.snapshot(self.epoch)), [])
                for instance in self.instances
            ]
        files = [
            (full, list(deltas), instance.metas())
            for instance, (full, deltas) in zip(self.instances, self.chains, strict=True)
        ]

        def chained() -> list[StateHandle]:
            return [
                ChainHandle(
                    SegmentHandle.open(storage, full),
                    [SegmentHandle.open(storage, delta) for delta in deltas],
                    metas,
                )
                for full, deltas, metas in files
            ]

        # Opened again for each restore, as in a job: a chain returns the values that it has in memory.
        self._remember(chained, self.model.copy())
        self.chained_epoch = self.epoch
        self.begin_epoch()

    # -- what always holds ----------------------------------------------------------------------------

    @invariant()
    def the_entries_are_those_of_the_dict(self) -> None:
        assert sum(instance.num_entries() for instance in self.instances) == len(self.model)

    def teardown(self) -> None:
        try:
            self._compare(self.states)
        finally:
            for instance in self.instances:
                instance.close()

    # -- within ---------------------------------------------------------------------------------------

    def _start(self, parallelism: int, handles: Sequence[StateHandle], model: Model) -> None:
        """Continue with instances of a snapshot; snapshots of the old ones are dropped with them."""
        for instance in self.instances:
            instance.close()
        self.open_snapshots, self.chains = [], []
        self.instances = self.keyed.open_all(
            parallelism,
            handles,
            key=KEY,
            max_parallelism=MAX_PARALLELISM,
            track_changes=self.tracking,
            clock=self.clock,
        )
        self.model = model.copy()
        if self.tracking:
            self.full_snapshots = {self.epoch: model.copy()}
            self.epoch += 1
            for instance in self.instances:
                instance.begin_epoch(self.epoch)
        # Before any state is registered.
        listed = [
            (state, *pair)
            for instance in self.instances
            for state in self.states
            for pair in instance.get_keys_and_namespaces(state)
        ]
        assert len(listed) == len(set(listed))
        assert set(listed) == model.keys()
        in_part = self.model.expire(self.clock.now)
        self._compare(self.states)
        self._remove_expired_elements(in_part)

    def _compare(self, states: Sequence[str]) -> None:
        for state in states:
            for namespace in NAMESPACES:
                for index in range(len(self.instances)):
                    own = [key for key in KEYS if self._owner(key) == index]
                    wanted = [shown(state, self.model.get((state, key, namespace))) for key in own]
                    assert [read(state, self._handle(state, key, namespace)) for key in own] == wanted
                    if own:
                        assert self._handle(state, own[0], namespace).get_many(own) == wanted

    def _save(self, tasks: list[SnapshotTask], model: Model) -> None:
        written: list[StateHandle] = [
            self.keyed.write(instance, task) for instance, task in zip(self.instances, tasks, strict=True)
        ]
        self._remember(lambda: written, model)

    def _remember(self, handles: Callable[[], list[StateHandle]], model: Model) -> None:
        self.saved = [*self.saved[1 - SAVED_SNAPSHOTS :], (handles, model)]

    def _owner(self, key: str | None) -> int:
        return operator_index_for_key_group(KEY_GROUPS[key], len(self.instances), MAX_PARALLELISM)

    def _handle(self, state: str, key: str | None, namespace: str) -> Any:
        instance = self.instances[self._owner(key)]
        instance.set_current_key(key)
        return instance.get_state(STATES[state], namespace, types.STRING)

    def _store(self, address: Address, stored: Any, operation: str, numbers: Sequence[int]) -> None:
        """Note what an operation has left at an address."""
        stamps = self.model.stamps.pop(address, None)
        if stored is None:
            self.model.pop(address, None)
            return
        self.model[address] = stored
        if operation.startswith(TIMED):
            self.model.stamps[address] = stamps_after(operation, stamps, stored, numbers, self.clock.now)

    def _plain(self, state: str, stored: Any) -> Any:
        """Return the stored form of a state as the model has it, without times."""
        return layout_of(STATES[state].kind).plain(stored) if state.startswith(TIMED) else stored


class MachineContract(ContractBase):
    """The state machine as a test."""

    def test_the_states_of_an_operator_hold_what_dicts_would(self, keyed: KeyedInstances) -> None:
        """Written and read in any order, snapshots taken and written in any order, restored and rescaled."""
        # Hypothesis takes whatever makes a machine, and says that it takes a class.
        run_state_machine_as_test(lambda: StateMachine(keyed), settings=profile())  # type: ignore[arg-type]
