"""Operator state of a checkpoint, redistributed to the tasks that restore it."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from keyedstate.checkpoint.format.redistribution import Share, redistribute
from keyedstate.operator_state import OperatorStateKind

LIST, UNION, BROADCAST = OperatorStateKind.LIST, OperatorStateKind.UNION_LIST, OperatorStateKind.BROADCAST

Parts = list[dict[str, int]]


def dealt(kinds: dict[str, OperatorStateKind], parts: Parts, parallelism: int) -> list[list[Share]]:
    return [redistribute(kinds, parts, task, parallelism) for task in range(parallelism)]


def elements(shares: list[Share], state: str) -> list[tuple[int, int]]:
    """Return the elements of one state as (part, position)."""
    return [(s.part, at) for s in shares if s.state == state for at in range(s.start, s.stop)]


def test_any_change_of_parallelism_loses_and_doubles_nothing():
    """CP-21: 10,000 random runs; elements of lists once, of union lists on each task, evenly dealt."""
    random_ = random.Random(42)
    for _ in range(10_000):
        old, new = random_.randint(1, 9), random_.randint(1, 9)
        kinds = {f"state-{n}": random_.choice(list(OperatorStateKind)) for n in range(random_.randint(1, 9))}
        copies = {state: random_.randint(1, 9) for state in kinds}
        parts = [
            {
                state: copies[state] if kind is BROADCAST else random_.randint(0, 9)
                for state, kind in kinds.items()
                if kind is BROADCAST or random_.random() < 0.9
            }
            for _ in range(old)
        ]
        tasks = dealt(kinds, parts, new)
        for state, kind in kinds.items():
            written = [(part, at) for part in range(old) for at in range(parts[part].get(state, 0))]
            read = [elements(shares, state) for shares in tasks]
            assert all(found == sorted(found) for found in read), "the order within a list is kept"
            if kind is LIST:
                assert [element for found in read for element in found] == written
            elif kind is UNION:
                assert read == [written] * new
            else:
                sources = [found[0][0] for found in read]
                assert read == [[(part, at) for at in range(copies[state])] for part in sources]
                uses = Counter(sources)
                assert [uses[part] for part in range(old)] == [
                    new // old + (part < new % old) for part in range(old)
                ]
        lists = {state for state, kind in kinds.items() if kind is LIST}
        if old != new:
            loads = [sum(s.stop - s.start for s in shares if s.state in lists) for shares in tasks]
            assert max(loads) - min(loads) <= 1
        else:
            for task, shares in enumerate(tasks):
                assert {share.part for share in shares if share.state in lists} <= {task}


def test_what_remains_of_one_list_is_evened_out_by_the_next():
    kinds = {"a": LIST, "b": LIST, "c": LIST}
    tasks = dealt(kinds, [{"a": 1, "b": 1, "c": 1}], 3)
    assert tasks == [[Share("a", 0, 0, 1)], [Share("b", 0, 0, 1)], [Share("c", 0, 0, 1)]]


def test_a_list_crosses_the_borders_of_parts_and_a_task_may_get_nothing():
    assert dealt({"a": LIST}, [{"a": 2}, {}, {"a": 3}], 2) == [
        [Share("a", 0, 0, 2), Share("a", 2, 0, 1)],
        [Share("a", 2, 1, 3)],
    ]
    assert dealt({"a": LIST}, [{"a": 1}], 3) == [[Share("a", 0, 0, 1)], [], []]
    assert dealt({"a": LIST}, [{"a": 0}, {}], 3) == [[], [], []]


def test_a_list_stays_where_it_was_when_the_parallelism_is_unchanged():
    assert dealt({"a": LIST}, [{"a": 5}, {"a": 0}, {"a": 1}], 3) == [
        [Share("a", 0, 0, 5)],
        [],
        [Share("a", 2, 0, 1)],
    ]


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_a_broadcast_map_is_restored_from_the_parts_that_have_it(parallelism: int):
    tasks = dealt({"m": BROADCAST}, [{}, {"m": 2}, {}, {"m": 2}], parallelism)
    assert tasks == [[Share("m", 1 + 2 * (task % 2), 0, 2)] for task in range(parallelism)]


def test_no_state_at_all_gives_nothing():
    assert dealt({}, [{}, {}], 2) == [[], []]
    assert dealt({"m": BROADCAST, "l": LIST, "u": UNION}, [{}, {}], 3) == [[], [], []]
