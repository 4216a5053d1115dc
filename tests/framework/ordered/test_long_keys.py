"""Stores that limit the length of keys: longer ones are kept, in order and in copies, and leave no trace."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ordered_dict_space import DictSpace

from keyedstate import types
from keyedstate.backend import StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered import WriteBuffer, create_ordered_table
from keyedstate.ordered.long_keys import LongKeySpace

LIMIT = 32


class NarrowSpace(DictSpace):
    """Refuses what LMDB refuses."""

    max_key_bytes = LIMIT

    def write(self, rows: Any) -> None:
        assert all(0 < len(key) <= LIMIT for key in rows)
        super().write(rows)


#: Few bytes, so that keys share what they begin with, and lengths around the limit and its multiples.
KEYS = st.builds(
    lambda group, length, end: bytes([group]) + (b"\0\0\0" * length)[:length] + end,
    st.integers(0, 1),
    st.sampled_from([0, 1, 29, 30, 31, 32, 51, 52, 53, 54, 75, 76, 110]),
    st.binary(max_size=3).map(lambda end: bytes(byte % 3 or 0xFF * (byte > 200) for byte in end)),
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(st.dictionaries(KEYS, st.binary(max_size=2) | st.none(), max_size=8), max_size=8), st.data())
@pytest.mark.long
def test_a_space_with_a_limit_behaves_as_one_without(batches: Any, data: Any) -> None:
    narrow, plain = LongKeySpace(NarrowSpace()), DictSpace()
    for batch in batches:
        narrow.write(batch)
        plain.write(batch)
        assert list(narrow.scan(b"", None)) == list(plain.scan(b"", None))
    start, end = data.draw(KEYS | st.just(b"")), data.draw(KEYS | st.none())
    assert list(narrow.scan(start, end)) == list(plain.scan(start, end))
    asked = data.draw(st.lists(KEYS, max_size=5)) + list(plain.rows)
    assert narrow.get_many(asked) == plain.get_many(asked)
    assert [narrow.get(key) for key in asked] == plain.get_many(asked)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(KEYS, max_size=12, unique=True))
def test_removed_keys_leave_no_row_behind(keys: list[bytes]) -> None:
    rows = NarrowSpace()
    space = LongKeySpace(rows)
    space.write(dict.fromkeys(keys, b"1"))
    for key in keys:
        space.write({key: None})
    assert rows.rows == {}


def test_a_copy_keeps_long_keys_as_they_were() -> None:
    space = LongKeySpace(NarrowSpace())
    space.write({b"\0" + b"a" * 100: b"1", b"\0" + b"a" * 99: b"2"})
    copy = space.copy()
    space.write({b"\0" + b"a" * 100: None, b"\0" + b"a" * 98: b"3"})
    assert list(copy.scan(b"\0" + b"a" * 50, None)) == [(b"\0" + b"a" * 99, b"2"), (b"\0" + b"a" * 100, b"1")]
    assert copy.get_many([b"\0" + b"a" * 100, b"\0" + b"a" * 98]) == [b"1", None]
    copy.release()


class FullSpace(NarrowSpace):
    def write(self, rows: Any) -> None:
        raise OSError("the disk is full")


def test_a_batch_that_fails_changes_nothing() -> None:
    rows = FullSpace()
    space = LongKeySpace(rows)
    with pytest.raises(OSError, match="full"):
        space.write({b"\0" + b"a" * 100: b"1"})
    assert list(space.scan(b"", None)) == [] and space.get(b"\0" + b"a" * 100) is None


def test_a_limit_that_leaves_no_room_is_refused() -> None:
    class Tiny(DictSpace):
        max_key_bytes = 31

    with pytest.raises(ValueError, match="max_key_bytes is 31"):
        WriteBuffer(Tiny())


TEXTS = [text * times for times in (1, 20, 200) for text in ("a", "b", "ab", "é")]


@pytest.mark.parametrize(
    ("kind", "value_type", "value"),
    [
        (StateKind.VALUE, types.INT64, 7),
        (StateKind.LIST, types.list_of(types.STRING), ["x", "y" * 300]),
        (StateKind.MAP, types.map_of(types.STRING, types.INT64), dict(zip(TEXTS, range(12), strict=True))),
    ],
    ids=lambda each: getattr(each, "value", ""),
)
def test_tables_of_every_kind_take_long_keys_and_namespaces(kind: Any, value_type: Any, value: Any) -> None:
    meta = StateMeta("state", kind, types.STRING, types.STRING, value_type)
    space = NarrowSpace()
    table = create_ordered_table(meta, KeyGroupRange(0, 3), 4, WriteBuffer(space, rows=5))
    for namespace in TEXTS[:9:4]:
        for key in TEXTS:
            table.put(1, key, namespace, value)
    assert len(table) == 36
    assert sorted(table.keys(TEXTS[8])) == sorted(TEXTS)
    for key in TEXTS:
        found = table.get(1, key, TEXTS[4])
        assert (dict(found) if kind is StateKind.MAP else found) == value
        table.remove(1, key, TEXTS[4])
        assert not table.contains(1, key, TEXTS[4])
    snapshot = table.snapshot()
    read = {
        (key, namespace): found
        for batch in snapshot.batches(1, 7)
        for namespace, key, found in zip(batch.namespaces, batch.keys, batch.values, strict=True)
    }
    assert read == {(key, namespace): value for key in TEXTS for namespace in (TEXTS[0], TEXTS[8])}
