"""Which handle's files an instance opens, and which it copies out of: Flink's rule of three quarters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from keyedstate.backend import EntryBatch, StateHandle, StateMeta
from keyedstate.keygroups import KeyGroupRange, key_group_range_for
from keyedstate.tables import choose_base

EMPTY = KeyGroupRange.of(1, 0)


class Ranged(StateHandle):
    """A handle of which only the range is asked."""

    def __init__(self, key_groups: KeyGroupRange) -> None:
        self._key_groups = key_groups

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._key_groups

    @property
    def states(self) -> Sequence[StateMeta]:
        raise AssertionError("the choice reads nothing")

    def entries(self, state: str, key_group: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        raise AssertionError("the choice reads nothing")


def chosen(ranges: list[tuple[int, int]], wanted: tuple[int, int], *threshold: float) -> int | None:
    """Return the position of the handle that is chosen."""
    handles = [Ranged(KeyGroupRange(*bounds)) for bounds in ranges]
    base = choose_base(handles, KeyGroupRange(*wanted), *threshold)
    return None if base is None else handles.index(base)


def test_nothing_to_choose_from_is_an_empty_start() -> None:
    assert choose_base([], KeyGroupRange(0, 9)) is None


@pytest.mark.parametrize("wanted", [(0, 9), (0, 0), (5, 30)])
def test_a_single_handle_is_taken_however_little_of_it_is_wanted(wanted: tuple[int, int]) -> None:
    assert chosen([(0, 9)], wanted) == 0
    assert chosen([(0, 9)], wanted, 1.0) == 0


def test_a_handle_of_which_nothing_is_wanted_is_never_taken() -> None:
    assert chosen([(0, 9)], (10, 19)) is None
    assert chosen([(0, 9), (20, 29)], (10, 19), 0.0) is None
    assert choose_base([Ranged(KeyGroupRange(0, 9))], EMPTY) is None
    assert choose_base([Ranged(EMPTY), Ranged(KeyGroupRange(0, 3))], KeyGroupRange(0, 3)) is not None


def test_less_than_three_quarters_of_each_is_an_empty_start() -> None:
    assert chosen([(0, 99), (100, 199)], (26, 173)) is None
    assert chosen([(0, 99), (100, 199)], (25, 173)) == 0, "exactly three quarters are enough"


def test_the_threshold_can_be_set() -> None:
    assert chosen([(0, 99), (100, 199)], (50, 140)) is None
    assert chosen([(0, 99), (100, 199)], (50, 140), 0.5) == 0
    assert chosen([(0, 99), (100, 199)], (50, 140), 0.0) == 0


def test_the_most_wanted_groups_win_and_not_the_highest_share() -> None:
    assert chosen([(0, 9), (10, 109)], (0, 99)) == 1, "90 of 100 beat 10 of 10"


def test_the_share_weighs_by_its_square() -> None:
    # 80 groups x 0.8 squared are 51.2, fewer than the 60 whole ones.
    assert chosen([(0, 99), (100, 159)], (20, 159)) == 1
    # 95 x 0.95 squared are 85.7.
    assert chosen([(0, 99), (100, 159)], (5, 159)) == 0


def test_the_first_of_equals_wins() -> None:
    assert chosen([(10, 19), (0, 9)], (0, 19)) == 0


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_a_threshold_that_is_no_fraction_is_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        chosen([(0, 9)], (0, 9), threshold)


@pytest.mark.parametrize("before", range(1, 9))
@pytest.mark.parametrize("now", range(1, 9))
def test_scaling_up_keeps_files_of_equal_ranges_and_scaling_down_always_finds_a_base(
    before: int, now: int
) -> None:
    old = [key_group_range_for(index, before, 64) for index in range(before)]
    for index in range(now):
        wanted = key_group_range_for(index, now, 64)
        handles = [Ranged(groups) for groups in old if groups.intersection(wanted)]
        base = choose_base(handles, wanted)
        contained = [
            handle for handle in handles if handle.key_groups.intersection(wanted) == handle.key_groups
        ]
        if contained:
            assert base is not None
            assert len(base.key_groups.intersection(wanted)) * 4 >= 3 * len(base.key_groups)
        elif base is None:
            assert len(handles) > 1
