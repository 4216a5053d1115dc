"""A task restores a state whose type only some tasks have changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.backends import backend_of

from keyedstate import types
from keyedstate.backend import EntryBatch, StateKind, StateMeta
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import StateMigrationError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import ValueState
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.types import VOID, VOID_NAMESPACE, TtlSerializer, nullable, row_of

OLD = row_of({"a": types.INT64})
NEW = row_of({"b": nullable(types.INT64), "a": types.INT64})
OTHER = row_of({"a": types.INT64, "c": nullable(types.INT64)})


@contextlib.contextmanager
def restored(folder: Path, backend: str, parts: list[tuple[Any, Any]]) -> Iterator[KeyedStateBackend]:
    """Give one task the states of several, each with its type and the value of its only key."""
    storage, handles = CheckpointStorage.open(folder), []
    for group, (serializer, value) in enumerate(parts):
        own = KeyGroupRange(group, group)
        writer = SegmentWriter(storage, f"data/{group}.seg", own)
        writer.begin_state(StateMeta("s", StateKind.VALUE, types.INT64, VOID, serializer))
        writer.write_entries(group, [EntryBatch([VOID_NAMESPACE], [group], [value])])
        handles.append(SegmentHandle.open(storage, writer.finish()))
    chosen = backend_of(backend)
    with contextlib.ExitStack() as opened:
        for handle in handles:
            opened.callback(handle.close)
        keyed = KeyedStateBackend.open(
            chosen,
            KeySpace(types.INT64, KeyGroupRange(0, len(parts) - 1), len(parts)),
            handles,
        )
        opened.callback(keyed.close)
        yield keyed


@pytest.mark.parametrize("new_first", [False, True])
def test_values_of_both_types_are_what_they_were(tmp_path: Path, backend_name: str, new_first: bool) -> None:
    """SCALE-02: a task that has not used the state since its type changed keeps it with the old one."""
    parts = [(OLD, OLD.python_type(1)), (NEW, NEW.python_type(7, 2))]
    with restored(tmp_path, backend_name, parts[::-1] if new_first else parts) as keyed:
        keyed.get_state(ValueState("s", NEW))
        values = [keyed.accessor_at("s", group, group).value() for group in range(2)]
    assert [tuple(value) for value in values] == ([(7, 2), (None, 1)] if new_first else [(None, 1), (7, 2)])


def test_values_of_both_types_are_what_they_were_where_no_program_asks(
    tmp_path: Path, backend_name: str
) -> None:
    """SCALE-02."""
    with restored(tmp_path, backend_name, [(OLD, OLD.python_type(1)), (NEW, NEW.python_type(7, 2))]) as keyed:
        (meta,) = keyed.metas()
    assert meta.value_serializer == NEW


def test_a_type_with_times_is_chosen_before_one_without(tmp_path: Path, backend_name: str) -> None:
    """SCALE-02."""
    timed = TtlSerializer(types.INT64, "processing time")
    with restored(tmp_path, backend_name, [(types.INT64, 1), (timed, (5, 2))]) as keyed:
        (meta,) = keyed.metas()
    assert meta.value_serializer == timed


def test_types_of_which_each_lacks_something_are_refused(tmp_path: Path, backend_name: str) -> None:
    """SCALE-02: either choice would drop a column of the other task."""
    parts = [(NEW, NEW.python_type(7, 2)), (OTHER, OTHER.python_type(1, 3))]
    with (
        pytest.raises(StateMigrationError, match="let all tasks use it once with the parallelism as it was"),
        restored(tmp_path, backend_name, parts),
    ):
        pass
