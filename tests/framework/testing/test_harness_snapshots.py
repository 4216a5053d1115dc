"""Snapshots of a harness: kept, restored anywhere, and the only way from one parallelism to another."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keyedstate import types
from keyedstate.backend import Capability
from keyedstate.errors import (
    CorruptFileError,
    HarnessClosedError,
    InvalidParallelismError,
    SnapshotMismatchError,
    StateKindMismatchError,
    StateMigrationError,
    StateNotRegisteredError,
    UnwritableEntryError,
    UserFunctionError,
)
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.state import ListState, MapState, ValueState
from keyedstate.testing import Harness

ROWS = "user string, value long"
USERS = [f"user-{number}" for number in range(50)]


class Sums(KeyedProcessFunction):
    """Keeps the sum and the values of each user."""

    sum = ValueState("sum", types.INT64, default=0)
    values = ListState("values", types.INT64)
    by_value = MapState("by-value", types.INT64, types.STRING)

    def process(self, row, ctx):
        self.sum.update(self.sum.value() + row.value)
        self.values.add(row.value)
        self.by_value.put(row.value, row.user)
        yield ctx.key, self.sum.value()


@pytest.fixture
def sums(harness):
    def make(function: Any = None, **arguments: Any) -> Harness:
        arguments = {"schema": ROWS, "output": ROWS, "max_parallelism": None, **arguments}
        return harness(function or Sums(), **arguments)

    return make


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Path]]:
    """The folders of snapshots that harnesses have now, without those of databases."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return lambda: sorted(folder for folder in tmp_path.iterdir() if not (folder / "db").exists())


def content(harness: Harness) -> dict[str, tuple[int, list[int], dict[int, str]]]:
    return {
        key: (
            harness.state("sum", key).value(),
            list(harness.state("values", key).get()),
            dict(harness.state("by-value", key).items()),
        )
        for key in harness.keys("sum")
    }


def rows(times: int) -> list[tuple[str, int]]:
    return [(user, number) for number in range(1, times + 1) for user in USERS]


def test_a_snapshot_is_a_moment_and_is_restored_any_number_of_times(sums):
    """SB-37."""
    harness = sums()
    harness.process_all(rows(2))
    before = content(harness)
    snapshot = harness.snapshot()
    for _ in range(3):
        harness.process_all(rows(3))
        assert content(harness) != before
        harness.restore(snapshot)
        assert content(harness) == before
    assert harness.process(("user-0", 10)) == [("user-0", 13)]


def test_a_snapshot_changes_nothing_for_the_function(sums):
    harness = sums(parallelism=2)
    harness.process(("ann", 1))
    functions = [instance.function for instance in harness.instances]
    handle = harness.state(Sums.sum, "ann")
    harness.snapshot()
    assert [instance.function for instance in harness.instances] == functions
    harness.process(("ann", 1))
    assert handle.value() == 2


def test_a_snapshot_outlives_its_harness_and_begins_another(sums):
    with sums() as harness:
        harness.process_all(rows(2))
        harness.end_epoch()
        before, snapshot = content(harness), harness.snapshot()
    again = sums(restore=snapshot, parallelism=3)
    assert content(again) == before
    assert again.epoch == snapshot.epoch == 1
    assert snapshot.entries == {"sum": 50, "values": 50, "by-value": 50}


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (3, 7), (7, 3), (128, 1)])
def test_state_follows_its_keys_to_another_parallelism(sums, before, after):
    """SB-38."""
    harness = sums(parallelism=before)
    harness.process_all(rows(2))
    expected = content(harness)
    harness.rescale(after)
    assert harness.parallelism == len(harness.instances) == after
    assert content(harness) == expected
    assert [row[1] for row in harness.process_all([(user, 100) for user in USERS])] == [103] * len(USERS)


def test_rescaling_copies_the_function_and_keeps_epoch_and_outputs(sums):
    harness = sums()
    harness.process(("ann", 1))
    harness.end_epoch()
    before = harness.instances[0].function
    harness.rescale(2)
    assert before not in [instance.function for instance in harness.instances]
    assert (harness.epoch, harness.outputs) == (1, [("ann", 1)])


def test_a_snapshot_of_one_backend_is_read_by_another(sums, backend_name):
    """Segment files are canonical."""
    harness = sums(parallelism=2)
    harness.process_all(rows(2))
    for other in ("heap-cow", "nested-map"):
        assert content(sums(backend=other, restore=harness.snapshot())) == content(harness)


def test_an_empty_state_is_restored_as_an_empty_state(sums):
    """SB-48."""
    harness = sums(parallelism=2)
    harness.rescale(5)
    assert harness.keys("sum") == []
    assert sums(restore=harness.snapshot()).num_entries() == 0


# -- another function ----------------------------------------------------------------------------------


class Nothing(KeyedProcessFunction):
    def process(self, row, ctx):
        return None


def test_a_state_that_the_new_function_does_not_register_is_kept(sums):
    """SB-37."""
    harness = sums()
    harness.process_all(rows(1))
    nothing = sums(Nothing(), restore=harness.snapshot())
    assert sorted(nothing.keys("sum")) == sorted(USERS)
    with pytest.raises(StateNotRegisteredError, match="was restored, but the function does not register it"):
        nothing.state("sum", "user-0")
    assert content(sums(restore=nothing.snapshot())) == content(harness)


def test_a_new_function_continues_with_wider_types(sums):
    class Wider(KeyedProcessFunction):
        sum = ValueState("sum", types.nullable(types.INT64))

        def process(self, row, ctx):
            self.sum.update((self.sum.value() or 0) * 10)
            yield ctx.key, self.sum.value()

    harness = sums()
    harness.process(("ann", 5))
    assert sums(Wider(), restore=harness.snapshot()).process(("ann", 0)) == [("ann", 50)]


def test_a_function_with_another_type_or_kind_of_state_is_refused(sums):
    class Text(KeyedProcessFunction):
        sum = ValueState("sum", types.STRING)

        def process(self, row, ctx):
            return None

    class Kind(Text):
        sum = ListState("sum", types.INT64)

    harness = sums()
    harness.process(("ann", 1))
    snapshot = harness.snapshot()
    with pytest.raises(StateMigrationError, match="'sum'"):
        sums(Text(), restore=snapshot)
    with pytest.raises(StateKindMismatchError, match="'sum'"):
        sums(Kind(), restore=snapshot)


# -- refusals and damage -------------------------------------------------------------------------------


def test_another_max_parallelism_is_refused_and_the_snapshots_own_is_the_default(sums):
    snapshot = sums(max_parallelism=16).snapshot()
    with pytest.raises(SnapshotMismatchError, match="max parallelism is 16 and this harness's is 32"):
        sums(max_parallelism=32, restore=snapshot)
    harness = sums(restore=snapshot)
    with pytest.raises(InvalidParallelismError):
        harness.rescale(17)
    assert harness.process(("ann", 1)) == [("ann", 1)]


def test_reordered_key_columns_are_refused_and_keys_of_another_type_too(sums):
    schema = "a string, b string, value long"
    snapshot = sums(Nothing(), key=["a", "b"], schema=schema).snapshot()
    with pytest.raises(SnapshotMismatchError, match="order of key columns"):
        sums(Nothing(), key=["b", "a"], schema=schema, restore=snapshot)
    harness = sums()
    harness.process(("ann", 1))
    with pytest.raises(StateMigrationError, match="key"):
        sums(schema="user long, value long", restore=harness.snapshot())


def test_a_snapshot_that_is_refused_leaves_the_harness_as_it_was(sums):
    harness = sums()
    harness.process(("ann", 1))
    with pytest.raises(SnapshotMismatchError):
        harness.restore(sums(max_parallelism=8).snapshot())
    with pytest.raises(InvalidParallelismError):
        harness.rescale(0)
    assert harness.process(("ann", 1)) == [("ann", 2)]


def test_a_restore_that_fails_closes_the_harness(sums):
    class Refuses(Sums):
        def open(self, ctx):
            if ctx.epoch:
                raise OSError("only once")

    harness = sums(Refuses())
    other = sums()
    other.end_epoch()
    with pytest.raises(UserFunctionError, match="only once"):
        harness.restore(other.snapshot())
    with pytest.raises(HarnessClosedError, match=r"restore\(\) failed"):
        harness.process(("ann", 1))


def test_a_damaged_file_is_found_when_it_is_read(sums, folders):
    harness = sums()
    harness.process_all(rows(1))
    snapshot = harness.snapshot()
    (file,) = (path for folder in folders() for path in folder.glob("*.seg"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptFileError):
        sums(restore=snapshot)


def test_files_are_deleted_when_the_snapshot_is_not_referenced(sums, folders):
    harness = sums(parallelism=2)
    harness.process_all(rows(1))
    snapshot = harness.snapshot()
    (folder,) = folders()
    assert sorted(path.name for path in folder.glob("*.seg")) == ["instance-0.seg", "instance-1.seg"]
    harness.rescale(3)
    harness.close()
    gc.collect()
    assert folders() == [folder]
    del snapshot
    gc.collect()
    assert folders() == []


def test_an_unwritable_value_is_named_and_leaves_no_file(sums, folders, description):
    if not description.level(Capability.OBJECTS_BY_REFERENCE).usable:
        pytest.skip(f"{description.name} may write a value before the function changes it in place")

    class Bad(KeyedProcessFunction):
        anything = ValueState("anything", types.list_of(types.INT64))

        def process(self, row, ctx):
            values = [row.value]
            self.anything.update(values)
            values.append("text")

    harness = sums(Bad())
    harness.process(("ann", 1))
    with pytest.raises(UnwritableEntryError, match="anything"):
        harness.snapshot()
    assert folders() == []
    harness.state("anything", "ann").clear()
    assert harness.snapshot().entries == {"anything": 0}
