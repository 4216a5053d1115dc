"""The backend over SQLite against the contract: the ordered byte store as a stranger would use it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from keyedstate import types
from keyedstate.backend import StateKind, StateMeta
from keyedstate.testing import BackendContract

NUMBERS = StateMeta("numbers", StateKind.VALUE, types.STRING, types.VOID, types.INT64)


class TestSqlite(BackendContract):
    """Batches of a few rows, so that what is pending and what is written meet in every test."""

    backend = "sqlite"
    options: ClassVar[Mapping[str, object]] = {"sqlite.batch-rows": "3"}

    # Long, and another backend's tests have them: `keyedstate contract sqlite` runs all.
    test_the_last_published_state_is_there_after_a_kill = None
    test_the_states_of_an_operator_hold_what_dicts_would = None

    def test_the_private_folder_holds_the_state_and_goes_with_the_instance(self, instance: Any) -> None:
        table = instance.table(NUMBERS)
        table.put_many([3] * 10, [f"key-{n}" for n in range(10)], types.VOID_NAMESPACE, range(10))
        assert (instance.context.local_dir / "state.sqlite").stat().st_size > 0
        instance.close()
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            table.get(3, "key-1", types.VOID_NAMESPACE)
