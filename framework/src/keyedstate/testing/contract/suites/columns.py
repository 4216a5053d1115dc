"""What a table must do that gives and takes values by columns: what others do, and the same by columns."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from keyedstate import types
from keyedstate.backend import (
    AnyStateTable,
    Capability,
    ChangeTracking,
    Column,
    ColumnTable,
    LocatedEntries,
    StateKind,
    StateMeta,
)
from keyedstate.keygroups import key_group_ranges
from keyedstate.tables import array_of
from keyedstate.testing.contract.base import (
    KEY_GROUPS,
    MAX_PARALLELISM,
    ContractBase,
    Open,
    content,
    requires,
)
from keyedstate.testing.contract.machines.state_machine import profile
from keyedstate.testing.contract.parts import TablePart
from keyedstate.testing.contract.suites.changes import changed
from keyedstate.testing.instances import Instance
from keyedstate.types import TypeSerializer, accumulators_of, nullable, tuple_of

VALUES = accumulators_of(
    {
        "count": nullable(types.INT64),
        "sum": nullable(types.FLOAT64),
        "any": nullable(types.BOOLEAN),
        "least": nullable(types.INT32),
        "small": nullable(types.FLOAT32),
        "last": nullable(types.TIMESTAMP),
    }
)
FIELDS = [field.type for field in VALUES.arrow_type]


def meta_of(key: TypeSerializer[Any], namespace: TypeSerializer[Any] = types.INT64) -> StateMeta:
    """Return a state with accumulators under keys of a type."""
    return StateMeta("aggregate", StateKind.VALUE, key, namespace, VALUES)


TEXT = meta_of(nullable(types.STRING))
PAIR = meta_of(tuple_of(nullable(types.STRING), nullable(types.INT64)))
METAS = (TEXT, meta_of(nullable(types.INT64)), meta_of(nullable(types.FLOAT64)), PAIR)
#: Some keys of each.
KEYS: dict[StateMeta, tuple[Any, ...]] = {
    METAS[0]: (None, "", "a", "b", "ab", "é", "a key of more than eight bytes", "x" * 300),
    METAS[1]: (None, 0, 1, -1, 2**63 - 1, -(2**63)),
    METAS[2]: (None, 0.0, 1.5, math.inf, -math.inf, math.nan),
    METAS[3]: ((None, None), ("", None), (None, 0), ("a", 1), ("a", None), ("b", -(2**63))),
}
NAMESPACES = (1, 2, -(2**63))

_values = st.tuples(
    st.none() | st.sampled_from((0, 1, -1, 2**63 - 1, -(2**63))),
    st.none() | st.sampled_from((0.0, -0.0, 0.1, math.inf, math.nan)),
    st.none() | st.booleans(),
    st.none() | st.sampled_from((0, 2**31 - 1, -(2**31))),
    st.none() | st.sampled_from((0.5, -0.0)),
    st.none() | st.just(dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.timezone.utc)),
)


def group_of(key: object) -> int:
    """Return a key group of the tests' range for a key."""
    return KEY_GROUPS.start + sum(repr(key).encode()) % len(KEY_GROUPS)


def shown(value: Any) -> Any:
    """Return a value so that equal ones are the same to the last bit: NaN, and the sign of zero."""
    return None if value is None else tuple(map(repr, value))


def columns_of(values: Sequence[Any]) -> list[Column]:
    """Return values as the columns of their fields."""
    array = VALUES.to_arrow(values)
    made = []
    for part in array.flatten():
        numbers = part.cast(pa.int64()) if pa.types.is_boolean(part.type) else part
        numbers = numbers.view(pa.int64()) if pa.types.is_timestamp(part.type) else numbers
        present = part.is_valid().to_numpy(zero_copy_only=False)
        dtype = np.float64 if pa.types.is_floating(part.type) else np.int64
        made.append(Column(numbers.fill_null(0).to_numpy(zero_copy_only=False).astype(dtype), present))
    return made


def values_of(columns: Sequence[Column]) -> list[Any]:
    """Return columns of fields as values."""
    parts = [array_of(column, type_) for column, type_ in zip(columns, FIELDS, strict=True)]
    struct = pa.StructArray.from_arrays(parts, fields=list(VALUES.arrow_type))
    return VALUES.from_arrow(struct)


def located(
    table: AnyStateTable, meta: StateMeta, keys: Sequence[Any], namespaces: Sequence[int]
) -> tuple[LocatedEntries, list[tuple[int, Any, int]]]:
    """Locate rows, and return the addresses of their entries too."""
    if not isinstance(table, ColumnTable):
        pytest.skip("the backend does not keep this state in columns with these options")
    array = meta.key_serializer.to_arrow(keys)
    columns = array.flatten() if pa.types.is_struct(array.type) else [array]
    groups = np.array([group_of(key) for key in keys], np.int32)
    distinct = list(dict.fromkeys(namespaces))
    which = np.array([distinct.index(namespace) for namespace in namespaces], np.int32)
    found = table.locate(columns, groups, distinct, which)
    rows = [(group_of(key), key, namespace) for key, namespace in zip(keys, namespaces, strict=True)]
    entries = [rows[row] for row in found.first_rows.tolist()]
    assert list(map(repr, rows)) == [repr(entries[code]) for code in found.codes.tolist()]
    assert len(found) == len(entries) == len(set(map(repr, rows)))
    assert found.first_rows.tolist() == sorted(found.first_rows.tolist())
    return found, entries


class ColumnsMachine(RuleBasedStateMachine):
    """A table of columns and a dict as its model."""

    def __init__(self, open_instance: Open, folder: Path, meta: StateMeta, tracking: bool) -> None:
        super().__init__()
        self.open_instance = open_instance
        self.folder = folder
        self.meta = meta
        self.instance: Instance = open_instance()
        self.table: Any = self.instance.table(meta)
        self.tracking = tracking
        self.epoch = 1
        if tracking:
            assert isinstance(self.table, ChangeTracking)
            self.table.begin_epoch(1)
        self.model: dict[Any, Any] = {}
        self.before: dict[Any, Any] = {}
        self.touched: set[Any] = set()
        self.open_snapshots: list[tuple[Any, dict[Any, Any]]] = []

    def address(self, key: int, namespace: int) -> tuple[int, Any, int]:
        found = KEYS[self.meta][key % len(KEYS[self.meta])]
        return group_of(found), found, NAMESPACES[namespace]

    def note(self, address: tuple[int, Any, int], value: Any) -> None:
        self.model[address] = value
        self.touched.add(address)

    def forget(self, address: tuple[int, Any, int]) -> None:
        if address in self.model:
            del self.model[address]
            self.touched.add(address)

    @rule(key=st.integers(0, 9), namespace=st.integers(0, 2), value=st.none() | _values)
    def put(self, key: int, namespace: int, value: Any) -> None:
        address = self.address(key, namespace)
        old = self.table.put_and_get_old(*address, value)
        assert shown(old) == shown(self.model.get(address))
        self.note(address, value)

    @rule(key=st.integers(0, 9), namespace=st.integers(0, 2))
    def remove(self, key: int, namespace: int) -> None:
        address = self.address(key, namespace)
        old = self.table.remove_and_get_old(*address)
        assert shown(old) == shown(self.model.get(address))
        self.forget(address)

    @rule(
        rows=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=1, max_size=12),
        values=st.lists(_values, min_size=12, max_size=12),
        what=st.sampled_from(["read", "write", "remove"]),
    )
    def use_columns(self, rows: list[tuple[int, int]], values: list[Any], what: str) -> None:
        addresses = [self.address(*row) for row in rows]
        keys = [address[1] for address in addresses]
        found, entries = located(self.table, self.meta, keys, [address[2] for address in addresses])
        assert found.exist.tolist() == [entry in self.model for entry in entries]
        nothing = (None,) * len(FIELDS)
        expected = [shown(self.model.get(entry) or nothing) for entry in entries]
        assert list(map(shown, values_of(found.read()))) == expected
        if what == "write":
            found.write(columns_of(values[: len(entries)]))
            for entry, value in zip(entries, values, strict=False):
                self.note(entry, value)
        elif what == "remove":
            found.remove()
            for entry in entries:
                self.forget(entry)

    @rule()
    def take_a_snapshot(self) -> None:
        self.open_snapshots.append((self.table.snapshot(), dict(self.model)))

    @precondition(lambda machine: machine.open_snapshots)
    @rule(which=st.integers(0, 9), at_once=st.booleans())
    def read_a_snapshot(self, which: int, at_once: bool) -> None:
        snapshot, model = self.open_snapshots[which % len(self.open_snapshots)]
        self.same(_all_of(snapshot, 100 if at_once else 2), model)
        if at_once:
            del self.open_snapshots[which % len(self.open_snapshots)]
            snapshot.release()
            snapshot.release()

    @precondition(lambda machine: machine.tracking)
    @rule(forget=st.booleans())
    def end_an_epoch(self, forget: bool) -> None:
        changes = self.table.changes_since(self.epoch - 1)
        written, removed = changed(changes, 3)
        gone = {address for address in self.touched if address in self.before and address not in self.model}
        assert removed == gone
        self.same(written, {address: self.model[address] for address in self.touched & self.model.keys()})
        changes.release()
        self.epoch += 1
        self.table.begin_epoch(self.epoch)
        if forget:
            self.table.forget_changes(self.epoch - 1)
        self.before, self.touched = dict(self.model), set()

    @rule()
    def restore(self) -> None:
        for snapshot, _ in self.open_snapshots:
            snapshot.release()
        handle = self.instance.write(self.instance.prepare(), self.folder)
        self.instance.close()
        self.instance = self.open_instance(handles=[handle])
        self.table = self.instance.table(self.meta)
        self.open_snapshots, self.before, self.touched = [], dict(self.model), set()
        if self.tracking:
            self.table.begin_epoch(self.epoch)

    @invariant()
    def equals_the_dict(self) -> None:
        assert len(self.table) == len(self.model)
        self.same(content(self.table), self.model)
        some = list(self.model)[:3]
        for address in some:
            assert self.table.contains(*address)
            assert shown(self.table.get(*address)) == shown(self.model[address])

    def same(self, found: dict[Any, Any], expected: dict[Any, Any]) -> None:
        assert {repr(address): shown(value) for address, value in found.items()} == {
            repr(address): shown(value) for address, value in expected.items()
        }

    def teardown(self) -> None:
        self.instance.close()


def _all_of(snapshot: Any, size: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key_group in KEY_GROUPS:
        for batch in snapshot.batches(key_group, size):
            assert 0 < len(batch) <= size
            for namespace, key, value in zip(batch.namespaces, batch.keys, batch.values, strict=True):
                assert (key_group, key, namespace) not in found
                found[key_group, key, namespace] = value
    return found


class ColumnContract(ContractBase):
    """Tests of `ColumnTable`."""

    @pytest.mark.parametrize("meta", METAS, ids=["text", "whole", "real", "pair"])
    @requires(TablePart.COLUMNS)
    def test_a_table_of_columns_holds_what_a_dict_would(
        self, open_instance: Open, tmp_path: Path, meta: StateMeta
    ) -> None:
        """Written by entry and by column, with open snapshots, tracked changes, and restores from files."""
        located(open_instance().table(meta), meta, [], [])
        tracking = isinstance(open_instance().table(meta), ChangeTracking)

        def make() -> Any:
            return ColumnsMachine(open_instance, tmp_path, meta, tracking)

        chosen = profile()
        if chosen.derandomize:  # the short one; four types of keys take turns
            chosen = settings(chosen, max_examples=8)
        run_state_machine_as_test(make, settings=chosen)  # type: ignore[arg-type]

    @requires(TablePart.COLUMNS)
    def test_rows_without_any_are_located_as_nothing(self, instance: Instance) -> None:
        found, entries = located(instance.table(TEXT), TEXT, [], [])
        assert (len(found), entries, found.codes.tolist()) == (0, [], [])
        found.write(columns_of([]))
        found.remove()
        assert len(instance.table(TEXT)) == 0

    @requires(TablePart.COLUMNS)
    def test_what_is_located_comes_into_the_table_only_when_it_is_written(self, instance: Instance) -> None:
        table = instance.table(TEXT)
        found, _ = located(table, TEXT, ["a", "b", "a"], [1, 1, 1])
        assert not found.exist.any()
        assert (len(table), content(table), list(table.keys(1))) == (0, {}, [])
        assert not table.contains(group_of("a"), "a", 1)
        assert table.get_many([group_of("a")], ["a"], 1) == [None]

    @requires(TablePart.COLUMNS)
    def test_columns_of_slices_are_read_where_they_begin(self, instance: Instance) -> None:
        table: Any = instance.table(TEXT)
        located(table, TEXT, [], [])
        rows = pa.array(["left out", None, "a", "", "b", "a"])[1:]
        groups = np.array([group_of(key) for key in rows.to_pylist()], np.int32)
        found = table.locate([rows], groups, [1])
        assert found.codes.tolist() == [0, 1, 2, 3, 1]
        assert found.first_rows.tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize(("before", "after"), [(1, 3), (5, 2)])
    @requires(TablePart.COLUMNS, Capability.RESCALING)
    def test_columns_follow_their_key_groups_to_other_instances(
        self, open_instance: Open, tmp_path: Path, before: int, after: int
    ) -> None:
        """SB-38."""
        model: dict[Any, Any] = {}
        handles = []
        for key_groups in key_group_ranges(before, MAX_PARALLELISM):
            source = open_instance(key_groups)
            table = source.table(TEXT)
            for group in key_groups:
                for number in range(5):
                    address = (group, f"{group}-{number}", number % 2)
                    model[address] = (number, 0.5, None, None, None, None)
                    table.put(*address, model[address])
            handles.append(source.write(source.prepare(), tmp_path))
        found: dict[Any, Any] = {}
        for key_groups in key_group_ranges(after, MAX_PARALLELISM):
            restored = content(open_instance(key_groups, handles).table(TEXT))
            assert all(address[0] in key_groups for address in restored)
            found |= restored
        assert found == model

    @requires(TablePart.COLUMNS, Capability.ASYNC_SNAPSHOT)
    def test_a_snapshot_of_columns_is_written_while_the_owner_goes_on(
        self, open_instance: Open, instance: Instance, tmp_path: Path
    ) -> None:
        """SB-51."""
        table = instance.table(TEXT)
        keys = [f"key-{number}" for number in range(2_000)]
        found, entries = located(table, TEXT, keys, [1] * len(keys))
        value = (1, 1.0, True, 1, 1.0, None)
        found.write(columns_of([value] * len(entries)))
        snapshot = instance.prepare()
        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(instance.write, snapshot, tmp_path)
            for step in range(30):
                more = [*keys[step * 10 :], *(f"new-{step}-{number}" for number in range(300))]
                found, entries = located(table, TEXT, more, [1] * len(more))
                found.write(columns_of([(step, None, None, None, None, None)] * len(entries)))
                found, _ = located(table, TEXT, keys[step::50], [1] * len(keys[step::50]))
                found.remove()
            handle = written.result(timeout=60)
        restored = open_instance(handles=[handle])
        assert content(restored.table(TEXT)) == {(group_of(key), key, 1): value for key in keys}

    @requires(TablePart.COLUMNS)
    def test_entries_that_come_and_go_leave_no_trace(self, instance: Instance) -> None:
        """As those of windows do, epoch for epoch."""
        table = instance.table(TEXT)
        for window in range(40):
            keys = [f"{window}-{number}" for number in range(500)]
            found, entries = located(table, TEXT, keys, [window] * len(keys))
            found.write(columns_of([(window, None, None, None, None, None)] * len(entries)))
            if window:
                gone = [f"{window - 1}-{number}" for number in range(500)]
                found, _ = located(table, TEXT, gone, [window - 1] * len(gone))
                assert found.exist.all()
                found.remove()
            assert len(table) == 500
        assert set(table.keys_and_namespaces()) == {(f"39-{number}", 39) for number in range(500)}
        assert {value[0] for value in content(table).values()} == {39}
