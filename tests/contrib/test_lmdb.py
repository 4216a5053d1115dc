"""The backend over LMDB against the contract: an ordered byte store whose keys have at most 511 bytes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from keyedstate import types
from keyedstate.backend import BackendContext, StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.testing import BackendContract

pytest.importorskip("lmdb")

SOURCE = str(Path(__file__).resolve().parents[2] / "contrib" / "lmdb" / "src")
TEXTS = StateMeta("texts", StateKind.VALUE, types.STRING, types.VOID, types.STRING)


@pytest.fixture(autouse=True, scope="module")
def importable() -> Iterator[None]:
    sys.path.insert(0, SOURCE)
    yield
    sys.path.remove(SOURCE)


class TestLmdb(BackendContract):
    """Named as a module, so that it needs no installation."""

    backend = "lmdb"
    options: ClassVar[Mapping[str, object]] = {"plugins.modules": "keyedstate_lmdb.plugin"}

    # Long, and another backend's tests have them: `keyedstate contract lmdb` runs all.
    test_the_last_published_state_is_there_after_a_kill = None
    test_the_states_of_an_operator_hold_what_dicts_would = None

    def test_keys_around_the_limit_are_distinguished(self, instance: Any) -> None:
        table = instance.table(TEXTS)
        keys = ["k" * length for length in (1, 507, 508, 509, 510, 511, 1020, 5000)]
        for key in keys:
            table.put(3, key, types.VOID_NAMESPACE, key)
        assert [table.get(3, key, types.VOID_NAMESPACE) for key in keys] == keys
        assert sorted(table.keys(types.VOID_NAMESPACE)) == keys
        for key in keys[::2]:
            table.remove(3, key, types.VOID_NAMESPACE)
        assert sorted(table.keys(types.VOID_NAMESPACE)) == keys[1::2]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    from keyedstate_lmdb.store import LmdbStore

    return LmdbStore(BackendContext(KeyGroupRange(0, 3), 4, {"lmdb.map-size": 1 << 20}, tmp_path / "local"))


def test_a_full_map_names_the_state_and_the_option(store: Any) -> None:
    from keyedstate_lmdb.store import MapFullError

    space = store.open_space("views")
    space.write({b"\0a": b"1"})
    with pytest.raises(MapFullError, match=r"the state 'views' .* option 'lmdb\.map-size'"):
        space.write({b"\0b": b"x" * (2 << 20)})
    assert list(space.scan(b"", None)) == [(b"\0a", b"1")]
    store.close()


def test_a_copy_outlives_its_store(store: Any) -> None:
    space = store.open_space("views")
    space.write({b"\0a": b"1"})
    copy = space.copy()
    space.write({b"\0a": None})
    store.close()
    assert copy.get_many([b"\0a"]) == [b"1"]
    copy.release()
    copy.release()
