"""The merging window set, held against the rule that windows which intersect or touch are one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keyedstate.windows import MergingWindowSet, Session, TimeWindow

GAP = Session.with_gap(3)
Merge = tuple[TimeWindow, list[TimeWindow], TimeWindow, list[TimeWindow]]


class Noted:
    """A set whose merges are noted."""

    def __init__(self, entries: Any = ()) -> None:
        pairs = [(TimeWindow(*window), TimeWindow(*state)) for window, state in entries]
        self.set = MergingWindowSet[TimeWindow](GAP, pairs)
        self.merges: list[Merge] = []

    def add(self, start: int, end: int) -> TimeWindow:
        self.merges.clear()
        return self.set.add(TimeWindow(start, end), lambda *merge: self.merges.append(merge))


def test_windows_are_added_one_by_one_and_keep_the_state_window_of_the_first() -> None:
    """MW-01."""
    windows = Noted()
    assert windows.add(0, 4) == (0, 4) and windows.merges == []
    assert windows.add(0, 4) == (0, 4) and windows.merges == []
    assert windows.set.state_window(TimeWindow(0, 4)) == (0, 4)

    assert windows.add(3, 5) == (0, 5)
    assert windows.merges == [((0, 5), [(0, 4)], (0, 4), [])]
    assert windows.set.state_window(TimeWindow(0, 5)) == (0, 4)

    assert windows.add(4, 6) == (0, 6)
    assert windows.merges == [((0, 6), [(0, 5)], (0, 4), [])]
    for inside in [(1, 4), (0, 4), (3, 5), (4, 6), (0, 6)]:
        assert windows.add(*inside) == (0, 6) and windows.merges == []
    assert windows.set.state_window(TimeWindow(0, 6)) == (0, 4)

    assert windows.add(11, 14) == (11, 14) and windows.merges == []
    assert windows.add(10, 13) == (10, 14)
    assert windows.merges == [((10, 14), [(11, 14)], (11, 14), [])]
    assert windows.add(12, 15) == (10, 15)
    assert windows.set.state_window(TimeWindow(10, 15)) == (11, 14)

    windows.set.retire(TimeWindow(0, 6))
    assert windows.set.state_window(TimeWindow(0, 6)) is None
    assert windows.set.state_window(TimeWindow(10, 15)) == (11, 14)


def test_a_window_that_joins_others_takes_over_one_state_window_and_merges_the_rest() -> None:
    windows = Noted([((0, 2), (0, 2)), ((5, 8), (6, 7)), ((20, 23), (20, 23))])
    assert windows.add(2, 5) == (0, 8)
    assert windows.merges == [((0, 8), [(0, 2), (5, 8)], (0, 2), [(6, 7)])]
    assert windows.set.changed
    assert windows.set.entries == [((20, 23), (20, 23)), ((0, 8), (0, 2))]


def test_a_set_is_unchanged_by_a_window_that_it_holds() -> None:
    windows = Noted([((0, 6), (0, 4))])
    windows.add(2, 5)
    assert not windows.set.changed
    windows.set.retire(TimeWindow(99, 100))
    assert not windows.set.changed


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), max_size=25), st.data())
def test_the_set_holds_what_the_rows_of_each_session_cover_and_every_row_once(
    rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    """MW-01, over random rows: the model keeps the rows themselves, and joins what intersects or touches."""
    windows = Noted()
    contents: dict[TimeWindow, list[int]] = {}
    for number, (start, length) in enumerate(rows):
        if data.draw(st.integers(0, 9)) == 0:  # what every epoch does
            windows = Noted(windows.set.entries)
        result = windows.add(start, start + length)
        for _, _, target, others in windows.merges:
            contents[target] = contents[target] + [row for other in others for row in contents.pop(other)]
        contents.setdefault(windows.set.state_window(result), []).append(number)  # type: ignore[arg-type]

    sessions: list[tuple[TimeWindow, list[int]]] = []
    for number in sorted(range(len(rows)), key=lambda row: rows[row]):
        start, length = rows[number]
        if sessions and sessions[-1][0].end >= start:
            window, members = sessions.pop()
            sessions.append((TimeWindow(window.start, max(window.end, start + length)), [*members, number]))
        else:
            sessions.append((TimeWindow(start, start + length), [number]))
    found = {window: sorted(contents[state]) for window, state in windows.set.entries}
    assert found == {window: sorted(members) for window, members in sessions}
    assert len(contents) == len(found)
