"""Operator states of several tasks against lists and dicts, over many epochs and restarts."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

from keyedstate import types
from keyedstate.state import BroadcastState, OperatorListState, UnionListState
from keyedstate.state.operator.backend import OperatorStateBackend

NUMBERS = OperatorListState("numbers", types.INT64)
WORDS = UnionListState("words", types.list_of(types.STRING))
RULES = BroadcastState("rules", types.FLOAT64, types.nullable(types.list_of(types.INT64)))


class Model:
    """What the tasks should hold."""

    def __init__(self, parallelism: int) -> None:
        self.numbers: list[list[int]] = [[] for _ in range(parallelism)]
        self.words: list[list[list[str]]] = [[] for _ in range(parallelism)]
        self.rules: dict[float, list[int] | None] = {}

    def restart(self, parallelism: int) -> None:
        self.words = [[list(word) for task in self.words for word in task] for _ in range(parallelism)]
        if parallelism != len(self.numbers):
            flat = [number for task in self.numbers for number in task]
            length, rest = divmod(len(flat), parallelism)
            ends = [length * (task + 1) + min(task + 1, rest) for task in range(parallelism)]
            self.numbers = [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def held(tasks: list[OperatorStateBackend]) -> tuple[list[Any], list[Any], list[Any]]:
    numbers, words, rules = ([task.get_state(state) for task in tasks] for state in (NUMBERS, WORDS, RULES))
    return [n.get() for n in numbers], [w.get() for w in words], [dict(r.items()) for r in rules]


def change(random_: random.Random, model: Model, tasks: list[OperatorStateBackend]) -> None:
    """Make one change to one task, or to the map of all."""
    index = random_.randrange(len(tasks))
    numbers, words = tasks[index].get_state(NUMBERS), tasks[index].get_state(WORDS)
    value = random_.randrange(1000)
    match random_.randrange(8):
        case 0 | 1:
            numbers.add(value)
            model.numbers[index].append(value)
        case 2:
            numbers.add_all([value] * 3)
            model.numbers[index] += [value] * 3
        case 3:
            numbers.update(numbers.get()[::2])
            model.numbers[index] = model.numbers[index][::2]
        case 4:
            words.update([[str(value)], *words.get()])
            model.words[index] = [[str(value)], *model.words[index]]
        case 5:
            if words.get():
                words.get()[0].append("changed in place")
                model.words[index][0].append("changed in place")
        case _:
            key = float(value % 10)
            for task in tasks:
                rules = task.get_state(RULES)
                with task.broadcast_side():
                    rules.remove(key) if value % 3 == 0 else rules.put(
                        key, [value] if value % 3 == 1 else None
                    )
            if value % 3 == 0:
                model.rules.pop(key, None)
            else:
                model.rules[key] = [value] if value % 3 == 1 else None


def test_tasks_agree_with_a_model_of_lists_and_dicts(files):
    random_ = random.Random(42)
    tasks, model = [OperatorStateBackend() for _ in range(3)], Model(3)
    for _ in range(150):
        for _ in range(random_.randrange(12)):
            change(random_, model, tasks)
        expected = model.numbers, model.words, [model.rules] * len(tasks)
        assert held(tasks) == expected
        snapshots = [(task, task.snapshot(1)) for task in tasks]
        for _ in range(random_.randrange(3)):
            # After the snapshot: lost with the tasks that are not stopped but killed.
            index = random_.randrange(len(tasks))
            tasks[index].get_state(NUMBERS).clear()
            if tasks[index].get_state(WORDS).get():
                tasks[index].get_state(WORDS).get()[0].append("lost")
        parts = [files.write(task, snapshot) for task, snapshot in snapshots]
        if random_.random() < 0.5:
            tasks = files.restore(parts, restarted=False)
        else:
            parallelism = random_.randint(1, 5)
            tasks = files.restore(parts, parallelism)
            model.restart(parallelism)
            # The remainder of an even split may go to any tasks: what counts is that it is even.
            found = held(tasks)[0]
            lengths = sorted(map(len, found))
            assert lengths == sorted(map(len, model.numbers))
            assert list(chain(*found)) == list(chain(*model.numbers))
            model.numbers = found
            assert held(tasks)[1:] == (model.words, [model.rules] * parallelism)
            # A union list that no function cuts grows without bound.
            for index, task in enumerate(tasks):
                own = task.get_state(WORDS).get()[index : index + 3]
                task.get_state(WORDS).update(own)
                model.words[index] = [list(word) for word in own]
