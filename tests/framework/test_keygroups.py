"""Key-group ranges, offsets, partitioning, assignment to partitions and bounds."""

from __future__ import annotations

import pickle
from collections import defaultdict
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyedstate.errors import (
    InvalidKeyGroupRangeError,
    InvalidParallelismError,
    KeyedStateError,
    KeyGroupError,
    KeyGroupOutOfRangeError,
)
from keyedstate.keygroups import (
    KeyGroupRange,
    KeyGroupRangeOffsets,
    check_parallelism,
    default_max_parallelism,
    key_group_for_hash,
    key_group_range_for,
    key_group_ranges,
    operator_index_for_key_group,
    partition_by_key_group,
)

ranges = st.builds(
    lambda start, length: KeyGroupRange.of(start, start + length - 1),
    st.integers(0, 40),
    st.integers(0, 40),
)
parallelisms = st.integers(1, 32_768).flatmap(
    lambda maximum: st.tuples(st.integers(1, maximum), st.just(maximum))
)


# -- ranges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ((0, 10), (3, 7), (3, 7)),
        ((0, 10), (0, 10), (0, 10)),
        ((0, 10), (5, 20), (5, 10)),
        ((3, 12), (0, 10), (3, 10)),
    ],
)
def test_the_intersection_of_two_ranges_holds_their_common_key_groups(one, other, common):
    """KG-01."""
    assert KeyGroupRange(*one).intersection(KeyGroupRange(*other)) == KeyGroupRange(*common)


def test_the_intersection_of_disjoint_ranges_is_the_empty_range():
    """KG-01."""
    common = KeyGroupRange(0, 5).intersection(KeyGroupRange(6, 10))
    assert common is KeyGroupRange.EMPTY
    assert (common.start, common.end, len(common)) == (0, -1, 0)


@given(ranges, ranges)
def test_an_intersection_is_symmetric_and_equals_the_intersection_of_sets(one, other):
    """KG-01."""
    assert one.intersection(other) == other.intersection(one)
    assert list(one.intersection(other)) == sorted(set(one) & set(other))
    assert one.intersection(one) == one


@pytest.mark.parametrize(
    ("start", "end"), [(0, 0), (0, 1), (1, 2), (42, 42), (3, 7), (0, 32_767), (32_766, 32_767)]
)
def test_a_range_includes_both_its_ends_and_iterates_in_order(start, end):
    """KG-02."""
    key_groups = KeyGroupRange.of(start, end)
    assert len(key_groups) == end - start + 1
    assert list(key_groups) == list(range(start, end + 1))
    assert start in key_groups and end in key_groups and np.int64(end) in key_groups
    assert start - 1 not in key_groups and end + 1 not in key_groups


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (-3, 2), (-1, -1)])
def test_a_negative_start_is_rejected(start, end):
    """KG-02."""
    with pytest.raises(InvalidKeyGroupRangeError, match=rf"\[{start}, {end}\]") as caught:
        KeyGroupRange.of(start, end)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, KeyedStateError)
    assert (caught.value.start, caught.value.end) == (start, end)


def test_a_start_after_the_end_is_the_empty_range_of_of_and_an_error_of_the_constructor():
    """KG-02."""
    assert KeyGroupRange.of(5, 2) is KeyGroupRange.EMPTY
    with pytest.raises(InvalidKeyGroupRangeError, match=r"KeyGroupRange\.of"):
        KeyGroupRange(5, 2)


def test_ranges_are_values_that_can_be_hashed_pickled_and_not_changed():
    """KG-02."""
    key_groups = KeyGroupRange(3, 7)
    assert pickle.loads(pickle.dumps(key_groups)) == key_groups
    assert len({key_groups, KeyGroupRange(3, 7), KeyGroupRange(3, 8)}) == 2
    with pytest.raises(AttributeError):
        key_groups.end = 9
    assert not KeyGroupRange.EMPTY
    assert key_groups


# -- offsets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ((3, 7), [(3, 1), (4, 2), (5, 3), (6, 4), (7, 5)]),
        ((2, 10), [(2, 0), (3, 1), (4, 2), (5, 3), (6, 4), (7, 5), (8, 6), (9, 7), (10, 8)]),
        ((11, 13), []),
        ((5, 13), [(5, 3), (6, 4), (7, 5), (8, 6), (9, 7), (10, 8)]),
        ((0, 2), [(2, 0)]),
    ],
)
def test_an_intersection_keeps_the_offsets_of_the_common_key_groups(cut, expected):
    """KG-03."""
    offsets = KeyGroupRangeOffsets(KeyGroupRange(2, 10), range(9))
    common = offsets.intersection(KeyGroupRange(*cut))
    assert list(common) == expected
    assert len(common) == len(expected)
    assert common.key_group_range == KeyGroupRange(2, 10).intersection(KeyGroupRange(*cut))


def test_offsets_are_zero_until_they_are_set_and_compare_by_range_and_offsets():
    """KG-03."""
    offsets = KeyGroupRangeOffsets(KeyGroupRange(2, 4))
    assert list(offsets) == [(2, 0), (3, 0), (4, 0)]
    offsets[3] = 1 << 40
    assert offsets[3] == 1 << 40
    assert offsets == KeyGroupRangeOffsets(KeyGroupRange(2, 4), [0, 1 << 40, 0])
    assert offsets != KeyGroupRangeOffsets(KeyGroupRange(2, 4))
    assert offsets != KeyGroupRangeOffsets(KeyGroupRange(3, 5), [0, 1 << 40, 0])


def test_an_intersection_of_offsets_is_a_copy():
    """KG-03."""
    offsets = KeyGroupRangeOffsets(KeyGroupRange(2, 4))
    offsets.intersection(KeyGroupRange(2, 4))[2] = 7
    assert offsets[2] == 0


@pytest.mark.parametrize("key_group", [1, 5, -1])
def test_offsets_refuse_a_key_group_outside_their_range(key_group):
    """KG-03."""
    offsets = KeyGroupRangeOffsets(KeyGroupRange(2, 4))
    with pytest.raises(KeyGroupOutOfRangeError, match=rf"key group {key_group} .*\[2, 4\]"):
        offsets[key_group]
    with pytest.raises(KeyGroupOutOfRangeError):
        offsets[key_group] = 1


def test_the_number_of_offsets_must_be_the_number_of_key_groups():
    """KG-03."""
    with pytest.raises(KeyGroupError, match=r"2 offsets were given .* 3 key groups"):
        KeyGroupRangeOffsets(KeyGroupRange(2, 4), [1, 2])


# -- partitioning ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 2, 10])
def test_partitioning_visits_each_element_once_under_its_key_group(size):
    """KG-04: five key groups, seed 0x42, and unused slots behind the elements."""
    generator = np.random.default_rng(0x42)
    keys = generator.integers(-(2**31), 2**31, size).tolist()
    elements = keys + [None] * (5 if size > 1 else 0)
    key_groups = np.array([key_group_for_hash(key, 5) for key in keys], dtype=np.int32)

    partition = partition_by_key_group(key_groups, KeyGroupRange(0, 4))

    expected = defaultdict(list)
    for key in keys:
        expected[key % 5].append(key)
    assert {group: [elements[row] for row in rows] for group, rows in partition} == expected
    assert [[elements[row] for row in partition.rows(group)] for group in range(5)] == [
        expected[group] for group in range(5)
    ]


@given(st.integers(0, 30_000), st.lists(st.integers(0, 200), max_size=300))
def test_partitioning_is_the_stable_sort_by_key_group_for_any_range(start, relative):
    """KG-04."""
    key_groups = np.array(relative, dtype=np.int32) + start
    partition = partition_by_key_group(key_groups, KeyGroupRange(start, start + 200))
    assert partition.order.tolist() == sorted(range(len(relative)), key=relative.__getitem__)
    assert [group for group, _ in partition] == sorted({start + each for each in relative})
    assert all((key_groups[rows] == group).all() for group, rows in partition)


def test_partitioning_an_empty_range_accepts_no_row():
    """KG-04."""
    partition = partition_by_key_group(np.array([], dtype=np.int32), KeyGroupRange.EMPTY)
    assert list(partition) == []
    with pytest.raises(KeyGroupOutOfRangeError):
        partition_by_key_group(np.array([0]), KeyGroupRange.EMPTY)


@pytest.mark.parametrize("bad", [2, 8, -1, 65_536 + 3, 2**40])
def test_partitioning_names_a_key_group_outside_the_range(bad):
    """KG-04."""
    with pytest.raises(KeyGroupOutOfRangeError, match=rf"key group {bad} ") as caught:
        partition_by_key_group(np.array([3, 7, bad, 5]), KeyGroupRange(3, 7))
    assert caught.value.key_group == bad
    with pytest.raises(KeyGroupOutOfRangeError):
        partition_by_key_group(np.array([3]), KeyGroupRange(3, 7)).rows(bad)


# -- assignment to partitions ----------------------------------------------------------------------


@given(parallelisms)
def test_the_ranges_of_all_partitions_are_disjoint_ordered_and_cover_every_key_group(bounds):
    """KG-05."""
    parallelism, max_parallelism = bounds
    covered = list(chain.from_iterable(key_group_ranges(parallelism, max_parallelism)))
    assert covered == list(range(max_parallelism))


def test_every_parallelism_up_to_a_small_max_parallelism_is_fully_covered():
    """KG-05."""
    for max_parallelism in range(1, 66):
        for parallelism in range(1, max_parallelism + 1):
            ranges_of_all = key_group_ranges(parallelism, max_parallelism)
            assert list(chain.from_iterable(ranges_of_all)) == list(range(max_parallelism))
            for index, owned in enumerate(ranges_of_all):
                assert owned
                assert {
                    operator_index_for_key_group(group, parallelism, max_parallelism) for group in owned
                } == {index}


@given(parallelisms, st.integers(-(2**31), 2**31 - 1))
def test_a_key_is_routed_to_the_partition_whose_range_holds_its_key_group(bounds, key_hash):
    """KG-05, CP-20: the way by ranges and the way by hash agree."""
    parallelism, max_parallelism = bounds
    key_group = key_group_for_hash(key_hash, max_parallelism)
    index = operator_index_for_key_group(key_group, parallelism, max_parallelism)
    assert key_group in key_group_range_for(index, parallelism, max_parallelism)


def test_range_formulas_give_known_ranges():
    """KG-05: 10 key groups over 3 partitions, as Flink assigns them."""
    assert key_group_ranges(3, 10) == [KeyGroupRange(0, 3), KeyGroupRange(4, 6), KeyGroupRange(7, 9)]


@pytest.mark.parametrize("index", [-1, 4, 5])
def test_a_partition_that_does_not_exist_owns_no_range(index):
    """KG-05."""
    with pytest.raises(KeyGroupError, match=f"no partition {index} of 4"):
        key_group_range_for(index, 4, 128)


@pytest.mark.parametrize("key_group", [-1, 128])
def test_a_key_group_at_or_above_the_max_parallelism_has_no_partition(key_group):
    """KG-05."""
    with pytest.raises(KeyGroupOutOfRangeError, match=rf"key group {key_group} .*\[0, 127\]"):
        operator_index_for_key_group(key_group, 4, 128)


# -- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        (1, 128),
        (85, 128),
        (86, 256),
        (171, 256),
        (172, 512),
        (1000, 2048),
        (10_923, 16_384),
        (10_924, 32_768),
        (32_768, 32_768),
    ],
)
def test_the_default_max_parallelism_leaves_room_to_grow(parallelism, expected):
    """KG-07."""
    assert default_max_parallelism(parallelism) == expected


@pytest.mark.parametrize("parallelism", [0, -1, 32_769])
def test_a_parallelism_out_of_bounds_is_rejected_by_name_of_its_value(parallelism):
    """KG-07."""
    with pytest.raises(InvalidParallelismError, match=f"parallelism {parallelism} must .* 32768"):
        default_max_parallelism(parallelism)
    with pytest.raises(InvalidParallelismError):
        key_group_range_for(0, parallelism, 128)


def test_a_parallelism_above_the_max_parallelism_is_refused_with_both_values():
    """KG-07."""
    with pytest.raises(
        InvalidParallelismError, match=r"parallelism 129 .* max parallelism 128\. Use fewer"
    ) as caught:
        check_parallelism(129, 128)
    assert caught.value.value == 129
    restored = pickle.loads(pickle.dumps(caught.value))
    assert (str(restored), restored.value) == (str(caught.value), 129)


@pytest.mark.parametrize("max_parallelism", [0, -5, 32_769])
def test_a_max_parallelism_out_of_bounds_is_rejected_wherever_it_is_used(max_parallelism):
    """KG-07."""
    for use in (
        lambda: check_parallelism(1, max_parallelism),
        lambda: key_group_range_for(0, 1, max_parallelism),
        lambda: operator_index_for_key_group(0, 1, max_parallelism),
        lambda: key_group_for_hash(1, max_parallelism),
    ):
        with pytest.raises(InvalidParallelismError, match=f"max parallelism {max_parallelism} must"):
            use()
