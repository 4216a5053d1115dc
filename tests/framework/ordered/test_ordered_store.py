"""The ordered byte store over the plainest store there can be: a sorted dict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ordered_dict_space import DictSpace

from keyedstate import types
from keyedstate.backend import StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered import WriteBuffer, create_ordered_table, end_of
from keyedstate.ordered.row_keys import RowLayout

VOID = types.VOID_NAMESPACE


def table_of(
    kind: StateKind, value: types.TypeSerializer[Any], *, max_parallelism: int = 16, **batch: int
) -> tuple[Any, DictSpace]:
    space = DictSpace()
    meta = StateMeta("state", kind, types.STRING, types.VOID, value)
    groups = KeyGroupRange(0, max_parallelism - 1)
    return create_ordered_table(meta, groups, max_parallelism, WriteBuffer(space, **batch)), space


@pytest.mark.parametrize(("groups", "width"), [(1, 1), (128, 1), (129, 2), (32_768, 2)])
def test_a_key_group_takes_one_byte_up_to_128_of_them_and_else_two(groups: int, width: int) -> None:
    layout = RowLayout(
        StateMeta("state", StateKind.VALUE, types.STRING, types.VOID, types.INT64), max_parallelism=groups
    )
    row = layout.address(groups - 1, "a", VOID)
    assert row.startswith((groups - 1).to_bytes(width, "big"))
    assert layout.group_of(row) == groups - 1
    key, namespace, end = layout.parse(row)
    assert (key, namespace, end) == ("a", VOID, len(row))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.sampled_from([types.STRING, types.nullable(types.STRING), types.INT64]),
    st.sampled_from([16, 1000]),
    st.data(),
)
def test_addresses_of_many_keys_are_those_of_each(key: Any, groups: int, data: Any) -> None:
    texts = st.lists(st.text("aé\0", max_size=200) | st.text("abc", max_size=126), max_size=5)
    keys = data.draw(st.lists(st.integers(-9, 9), max_size=5) if key is types.INT64 else texts)
    if key not in (types.STRING, types.INT64) and data.draw(st.booleans()):
        keys.append(None)
    layout = RowLayout(StateMeta("state", StateKind.VALUE, key, types.STRING, types.INT64), groups)
    for namespace in ("", "ö"):
        chosen = [groups - 1 - place for place in range(len(keys))]
        rows = layout.addresses(chosen, keys, namespace)
        assert rows == [
            layout.address(group, each, namespace) for group, each in zip(chosen, keys, strict=True)
        ]
        assert layout.parse_many(rows) == (keys, [namespace] * len(keys))


_PARTS = st.tuples(st.text(max_size=4), st.text(max_size=4) | st.none())


@settings(max_examples=300, deadline=None, derandomize=True)
@given(_PARTS, _PARTS, st.binary(max_size=3), st.binary(max_size=3))
def test_no_address_begins_with_another_one(first: Any, second: Any, one: bytes, other: bytes) -> None:
    """A scan of an address shows nothing of another one, whatever follows in the rows."""
    key = types.tuple_of(types.STRING, types.nullable(types.STRING))
    layout = RowLayout(StateMeta("state", StateKind.MAP, key, types.STRING, types.map_of(key, key)), 16)
    rows = [layout.address(1, key, ns) + tail for key, ns, tail in ((first, "", one), (second, "w", other))]
    addresses = [layout.address(1, first, ""), layout.address(1, second, "w")]
    assert not rows[0].startswith(addresses[1]) and not rows[1].startswith(addresses[0])
    assert [layout.parse(row)[2] for row in rows] == list(map(len, addresses))


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"", None), (b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", None), (b"\x00", b"\x01")]
)
def test_the_end_of_a_prefix_is_the_least_key_above_it(prefix: bytes, end: Any) -> None:
    assert end_of(prefix) == end


def test_a_batch_is_written_at_its_number_of_rows() -> None:
    """WB-01."""
    table, space = table_of(StateKind.VALUE, types.INT64)
    for number in range(1_100):
        table.put(0, f"key-{number}", VOID, number)
    assert space.batches == [500, 500]
    assert table.get(0, "key-1099", VOID) == 1099
    assert table.get_many([0, 0, 0], ["key-1", "key-1099", "none"], VOID) == [1, 1099, None]
    assert len(table) == 1_100
    assert space.batches == [500, 500, 100]


def test_a_batch_is_written_at_its_number_of_bytes() -> None:
    """WB-01."""
    table, space = table_of(StateKind.VALUE, types.BYTES, size=1_000)
    for number in range(4):
        table.put(0, f"key-{number}", VOID, bytes(400))
    assert space.batches == [3]


def test_a_batch_that_cannot_be_written_is_still_pending_and_still_read() -> None:
    table, space = table_of(StateKind.VALUE, types.INT64, rows=2)

    def refuse(rows: Any) -> None:
        raise OSError(28, "no space left on device")

    space.write = refuse  # type: ignore[method-assign]
    table.put(0, "a", VOID, 1)
    with pytest.raises(OSError):
        table.put(0, "b", VOID, 2)
    assert table.get_many([0, 0], ["a", "b"], VOID) == [1, 2]
    del space.write  # type: ignore[method-assign]
    table.buffer.flush()
    assert len(space.rows) == 2


def test_appending_to_a_list_reads_nothing() -> None:
    table, space = table_of(StateKind.LIST, types.list_of(types.INT64))
    for number in range(10):
        table.get_for_update(0, "a", VOID).append(number)
    table.get_for_update(0, "a", VOID).extend([10, 11])
    assert space.reads == 0
    assert table.get(0, "a", VOID) == list(range(12))
    assert len(space.rows) == 11
    table.put(0, "a", VOID, [7])
    assert table.get(0, "a", VOID) == [7]
    table.buffer.flush()
    assert len(space.rows) == 1


def test_a_long_list_is_stored_in_several_chunks() -> None:
    table, space = table_of(StateKind.LIST, types.list_of(types.BYTES))
    table.put(0, "a", VOID, [bytes(1_000)] * 200)
    table.buffer.flush()
    assert len(space.rows) == 4
    assert table.get(0, "a", VOID) == [bytes(1_000)] * 200


def test_lists_are_read_from_a_copy_one_by_one() -> None:
    """They may be large, and several at once would all be in memory."""
    table, space = table_of(StateKind.LIST, types.list_of(types.BYTES))
    for key in "abcd":
        table.put(0, key, VOID, [bytes(1_000)] * 200)
    table.buffer.flush()
    read: list[bytes] = []

    def rows() -> Iterator[tuple[bytes, bytes]]:
        for row in space.scan(b"", None):
            read.append(row[0])
            yield row

    entries = table.codec.entries(rows())
    for number in range(1, 4):
        assert next(entries)[3] == [bytes(1_000)] * 200
        # The first row of the next list ends this one.
        assert len(read) == 4 * number + 1


def test_a_map_is_read_and_written_map_key_by_map_key() -> None:
    table, space = table_of(StateKind.MAP, types.map_of(types.STRING, types.INT64))
    for number in range(1_000):
        table.get_for_update(0, "a", VOID)[f"entry-{number}"] = number
    table.buffer.flush()
    written = sum(space.batches)
    reads = space.reads
    entries = table.get_for_update(0, "a", VOID)
    assert (entries["entry-7"], entries.get("none"), "entry-8" in entries) == (7, None, True)
    entries["entry-7"] = 77
    assert space.reads == reads + 3
    table.buffer.flush()
    assert sum(space.batches) == written + 1
    assert (entries == {**{f"entry-{n}": n for n in range(1_000)}, "entry-7": 77}) is True


@pytest.mark.parametrize("others", [None, True])
def test_several_map_keys_are_removed_with_one_look_at_the_rest(others: bool | None) -> None:
    table, space = table_of(StateKind.MAP, types.map_of(types.INT64, types.INT64))
    table.begin_epoch(1)
    table.put(0, "a", VOID, {number: number for number in range(100)})
    space.reads, space.batches = 0, []
    entries = table.get_for_update(0, "a", VOID)
    entries.remove_all(list(range(90)) + ([] if others else [500]), others=others)
    # Which of the map keys exist, and whether there are others.
    assert space.reads == (0 if others else 2)
    assert len(space.batches) <= 1
    assert entries.copy() == {number: number for number in range(90, 100)}
    entries.remove_all(list(range(90, 100)), others=others and False)
    assert not table.contains(0, "a", VOID) and len(table) == 0
    assert entries.copy() == {}


def test_an_error_while_a_map_is_cleared_is_not_swallowed() -> None:
    """SNAP-04."""
    table, space = table_of(StateKind.MAP, types.map_of(types.STRING, types.INT64))
    table.put(0, "a", VOID, {"x": 1, "y": 2})
    table.buffer.flush()

    def failing(start: bytes, end: Any) -> Iterator[tuple[bytes, bytes]]:
        yield next(iter(space.rows.items()))
        raise OSError(5, "input/output error")

    space.scan = failing  # type: ignore[method-assign]
    with pytest.raises(OSError, match="input/output"):
        table.remove(0, "a", VOID)
    del space.scan  # type: ignore[method-assign]
    assert dict(table.get(0, "a", VOID)) == {"x": 1, "y": 2}


def test_an_entry_of_a_map_is_counted_while_it_has_a_map_key() -> None:
    table, _ = table_of(StateKind.MAP, types.map_of(types.STRING, types.INT64))
    table.begin_epoch(1)
    entries = table.get_for_update(0, "a", VOID)
    entries["x"] = 1
    entries["y"] = 2
    assert len(table) == 1
    del entries["x"]
    assert (len(table), bool(entries)) == (1, True)
    del entries["y"]
    assert (len(table), bool(entries), table.contains(0, "a", VOID)) == (0, False, False)
    with pytest.raises(KeyError):
        del entries["y"]
    assert len(table.changes_since(0)) == 0


def test_the_number_of_entries_is_known_without_a_look_while_epochs_are_counted() -> None:
    table, space = table_of(StateKind.VALUE, types.INT64)
    table.put_many([0] * 10, [f"old-{n}" for n in range(10)], VOID, range(10))
    table.begin_epoch(1)
    assert len(table) == 10
    table.put_many([0] * 4, ["old-1", "new", "new-2", "old-2"], VOID, range(4))
    table.remove_many([0, 0], ["old-3", "none"], VOID)
    table.begin_epoch(2)
    table.remove(0, "new", VOID)
    table.put(0, "old-3", VOID, 1)
    reads = space.reads
    assert len(table) == 12 - 1
    assert space.reads == reads
    table.tracked.count = None
    assert len(table) == 12 - 1


def test_a_conversion_that_fails_leaves_every_entry_as_it_was() -> None:
    table, _ = table_of(StateKind.VALUE, types.INT64)
    table.put_many([0, 1, 2], ["a", "b", "c"], VOID, [1, 2, 3])
    meta = StateMeta("state", StateKind.VALUE, types.STRING, types.VOID, types.STRING)

    def refuse_3(value: int) -> str:
        if value == 3:
            raise ValueError("three")
        return str(value)

    with pytest.raises(ValueError, match="three"):
        table.rewrite(meta, None, None, refuse_3)
    assert table.get_many([0, 1, 2], ["a", "b", "c"], VOID) == [1, 2, 3]
    table.rewrite(meta, None, None, str)
    assert table.get_many([0, 1, 2], ["a", "b", "c"], VOID) == ["1", "2", "3"]
    assert len(table) == 3
