"""A snapshot of an ordered store, read by key group: one scan in the usual order, and right in any other."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st
from ordered_dict_space import DictSpace

from keyedstate import types
from keyedstate.backend import StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered.row_keys import RowLayout
from keyedstate.ordered.snapshots import CopiedRows

META = StateMeta("state", StateKind.VALUE, types.STRING, types.VOID, types.INT64)
GROUPS = KeyGroupRange(0, 7)


def rows_of(counts: list[int]) -> dict[int, list[tuple[bytes, bytes]]]:
    """Return so many rows for each key group."""
    layout = RowLayout(META, 8)
    return {
        group: [(layout.address(group, f"{n}", types.VOID_NAMESPACE), b"%d" % n) for n in range(count)]
        for group, count in enumerate(counts)
    }


def copied(rows: dict[int, list[tuple[bytes, bytes]]]) -> tuple[CopiedRows, DictSpace]:
    space = DictSpace({key: value for some in rows.values() for key, value in some})
    return CopiedRows(RowLayout(META, 8), space), space


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 3), min_size=8, max_size=8), st.data())
def test_key_groups_have_their_rows_in_whatever_order_they_are_read(
    counts: list[int], data: st.DataObject
) -> None:
    rows = rows_of(counts)
    reader, _ = copied(rows)
    reading: list[tuple[int, Iterator[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]] = []
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(("open", "read", "read", "occupied", "forget")))
        if step == "open":
            group = data.draw(st.integers(0, 7))
            reading.append((group, reader.of(group), []))
        elif step == "occupied":
            own = KeyGroupRange(data.draw(st.integers(0, 7)), 7)
            assert list(reader.occupied(own)) == [group for group in own if counts[group]]
        elif reading and step == "read":
            group, iterator, found = data.draw(st.sampled_from(reading))
            found += [row for row in [next(iterator, None)] if row is not None]
            assert found == rows[group][: len(found)]
        elif reading:
            reading.pop()
    for group, iterator, found in reading:
        assert [*found, *iterator] == rows[group]


def test_one_scan_serves_a_whole_snapshot() -> None:
    rows = rows_of([2, 0, 1, 0, 0, 3, 1, 0])
    reader, space = copied(rows)
    found = {group: list(reader.of(group)) for group in reader.occupied(GROUPS)}
    assert found == {group: some for group, some in rows.items() if some}
    assert space.reads == 1
