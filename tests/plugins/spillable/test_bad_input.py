"""Spilled files that are damaged or gone while a job runs, and options that cannot be used."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from keyedstate import types
from keyedstate.backend import StateKind, StateMeta
from keyedstate.errors import KeyedStateError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.testing import open_instance
from keyedstate_rocksdb.errors import UnreadableDatabaseError
from keyedstate_spillable.errors import (
    MarkOrderError,
    SmallMemoryBudgetError,
    UnknownPolicyError,
    WeightOrderError,
)

VOID = types.VOID_NAMESPACE
GROUPS = KeyGroupRange(0, 1)


class Kind(NamedTuple):
    """Values of one form, which do not compress."""

    serializer: Any
    value: Callable[[int], Any]
    entries: int  # Some buffers of the database, and too few of its files for a compaction


KINDS = {
    "objects": Kind(types.BYTES, lambda number: Random(number).randbytes(400), 8_000),
    "columns": Kind(
        types.accumulators_of({"n": types.nullable(types.INT64)}), lambda number: (number**3,), 60_000
    ),
}


def opened(folder: Path, handles: Any = (), **options: object) -> Any:
    chosen = {f"spillable.{name.replace('_', '-')}": value for name, value in options.items()}
    return open_instance(
        "spillable",
        folder,
        options={"spillable.disk-memory": 8 << 20, **chosen},
        key_groups=GROUPS,
        max_parallelism=2,
        handles=handles,
    )


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Any]:
    made = opened(tmp_path / "private")
    yield made
    made.close()


def filled(instance: Any, kind: str, entries: range) -> Any:
    table = instance.table(StateMeta(kind, StateKind.VALUE, types.INT64, types.VOID, KINDS[kind].serializer))
    groups = [0] * len(entries)
    table.put_many(groups, entries, VOID, [KINDS[kind].value(number) for number in entries])
    return table


def spill(table: Any) -> None:
    """Spill everything in steps, so that files are written."""
    while table.spill(0, 500):
        pass


def content(table: Any) -> dict[int, Any]:
    snapshot = table.snapshot()
    found: dict[int, Any] = {}
    try:
        for batch in snapshot.batches(0, 1_000):
            found |= dict(zip(batch.keys, batch.values, strict=True))
    finally:
        snapshot.release()
    return found


def damage(folder: Path) -> None:
    while not (files := list(folder.rglob("*.sst"))):
        time.sleep(0.01)  # one is written in the background
    for file in files:
        data = bytearray(file.read_bytes())
        for position in range(100, len(data) - 500, 1_000):
            data[position] ^= 0x55
        file.write_bytes(data)


READS: Mapping[str, Callable[[Any, int], Any]] = {
    "single entries": lambda table, entries: [table.get(0, number, VOID) for number in range(entries)],
    "many entries": lambda table, entries: table.get_many([0] * entries, range(entries), VOID),
    "a key group": lambda table, entries: table.load(0, entries),
    "addresses": lambda table, entries: list(table.keys_and_namespaces()),
    "a snapshot": lambda table, entries: content(table),
}


def right_or_refused(read: Callable[[], Any], expected: Any, state: str) -> bool:
    """Return whether a read is right, or raises the error that names the state."""
    try:
        return bool(read() == expected)
    except UnreadableDatabaseError as error:
        return f"{state}': " in str(error)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_damaged_file_is_an_error_with_state_and_file_and_no_wrong_value(
    instance: Any, tmp_path: Path, kind: str, read: str
) -> None:
    entries = KINDS[kind].entries
    table = filled(instance, kind, range(entries))
    spill(table)
    damage(tmp_path)
    with pytest.raises(UnreadableDatabaseError, match=rf"{kind}': .*checksum mismatch.*\.sst"):
        READS[read](table, entries)
    for number in range(0, entries, 50):
        assert right_or_refused(lambda n=number: table.get(0, n, VOID), KINDS[kind].value(number), kind)
    assert len(table) == entries, "no entry is forgotten"


@pytest.mark.parametrize("kind", KINDS)
def test_a_private_folder_that_is_removed_loses_nothing_silently(
    instance: Any, tmp_path: Path, kind: str
) -> None:
    """Moves are refused, what was read is right, and a restart from the last snapshot is whole."""
    entries = KINDS[kind].entries
    table = filled(instance, kind, range(entries))
    spill(table)
    handle = instance.write(instance.prepare(), tmp_path / "checkpoints")
    shutil.rmtree(tmp_path / "private", ignore_errors=True)
    filled(instance, kind, range(entries, 3 * entries))
    with pytest.raises(KeyedStateError, match="cannot be written"):
        spill(table)
    expected = {number: KINDS[kind].value(number) for number in range(3 * entries)}
    for number in range(0, 3 * entries, 100):
        assert right_or_refused(lambda n=number: table.get(0, n, VOID), expected[number], kind)
    assert right_or_refused(lambda: content(table), expected, kind)
    restored = opened(tmp_path / "restarted", [handle])
    assert content(restored.tables[kind]) == {number: expected[number] for number in range(entries)}
    restored.close()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"policy": "lazy"}, UnknownPolicyError, "no spill policy 'lazy'.*Set spillable.policy"),
        ({"memory_budget": "1m"}, SmallMemoryBudgetError, "memory-budget.* is 1048576 bytes.*Set it to"),
        (
            {"adaptive.high_mark": 0.5, "adaptive.low_mark": 0.7},
            MarkOrderError,
            "low-mark.*high-mark.*ascending",
        ),
        (
            {"policy": "classic", "classic.load_start_ratio": 0.5},
            MarkOrderError,
            "load-start-ratio.*load-end-ratio",
        ),
        ({"weight_requests": 0.8}, WeightOrderError, "weight-requests is 0.8.*below"),
        ({"memory_budget": "much"}, KeyedStateError, "spillable.memory-budget.*much.*a size such as 2g"),
        ({"adaptive.high_mark": 1.5}, KeyedStateError, "spillable.adaptive.high-mark.*1.5"),
    ],
)
def test_options_that_cannot_be_used_are_one_error_when_the_operator_starts(
    tmp_path: Path, options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        opened(tmp_path, **options)
    assert list(tmp_path.iterdir()) == []
