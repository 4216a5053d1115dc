"""Accesses that memory answers, and those that ask the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keyedstate import types
from keyedstate.backend import StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.testing import open_instance

VOID = types.VOID_NAMESPACE
SUMS = types.accumulators_of({"n": types.nullable(types.INT64)})
VALUES = {"objects": (types.list_of(types.INT64), [1]), "columns": (SUMS, (1,))}


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Any]:
    opened = open_instance("spillable", tmp_path, key_groups=KeyGroupRange(0, 1), max_parallelism=2)
    yield opened
    opened.close()


def filled(instance: Any, kind: str) -> Any:
    serializer, value = VALUES[kind]
    table = instance.table(StateMeta(kind, StateKind.VALUE, types.INT64, types.VOID, serializer))
    table.put_many([0] * 10, range(10), VOID, [value] * 10)
    return table


def disk_accesses(table: Any, access: Any) -> int:
    before = table.accesses
    access()
    return int(table.accesses.since(before).disk)


@pytest.mark.parametrize("kind", VALUES)
def test_an_access_to_spilled_entries_asks_the_disk_once(instance: Any, kind: str) -> None:
    table = filled(instance, kind)
    assert disk_accesses(table, lambda: table.get_many([0] * 10, range(10), VOID)) == 0
    assert table.spill(0, 4) == 4
    assert disk_accesses(table, lambda: table.get_many([0] * 10, range(10), VOID)) == 4
    assert disk_accesses(table, lambda: table.get_many([0] * 10, range(10), VOID)) == 0
    assert table.spill(0, 10) == 10
    assert disk_accesses(table, lambda: [table.get(0, key, VOID) for key in (1, 2, 1)]) == 2
    assert disk_accesses(table, lambda: table.load(0, 10)) == 0


@pytest.mark.parametrize("kind", VALUES)
def test_accesses_count_all_of_both_tiers(instance: Any, kind: str) -> None:
    table = filled(instance, kind)
    table.spill(0, 5)
    before = table.accesses
    table.get_many([0] * 10, range(10), VOID)
    assert table.accesses.since(before) == (10, 5)


@pytest.mark.parametrize("kind", VALUES)
def test_a_key_without_an_entry_asks_the_disk_where_entries_are_spilled(instance: Any, kind: str) -> None:
    table = filled(instance, kind)
    assert disk_accesses(table, lambda: table.get(0, 99, VOID)) == 0
    table.spill(0, 5)
    assert disk_accesses(table, lambda: table.get(0, 98, VOID)) == 1


def test_entries_of_the_next_rows_are_read_at_once_while_rows_use_them(instance: Any) -> None:
    table = filled(instance, "objects")
    keys, groups = list(range(10)), [0] * 10

    def use() -> None:
        for key in keys:
            table.get(0, key, VOID)

    def ahead() -> None:
        table.spill(0, 10)
        table.read_ahead(groups, keys)

    assert disk_accesses(table, ahead) == 0, "bulk operations read at once by themselves"
    assert disk_accesses(table, use) == 10
    assert disk_accesses(table, ahead) == 10
    assert disk_accesses(table, use) == 0, "they are in memory"
    assert disk_accesses(table, ahead) == 10
    assert disk_accesses(table, ahead) == 0, "the rows before have used none of them"
    assert disk_accesses(table, use) == 10, "so each is read when it is used"
