"""Who gets which operator state: the parts of a checkpoint dealt out to the tasks that restore it.

A pure function of what the manifests say, so that a task reads only the files that it needs, and all tasks
agree without a word (Flink's ``RoundRobinOperatorStateRepartitioner``):

- A list stays where it was when the parallelism has not changed.  Otherwise all its elements, part after
  part, are cut into as many runs as there are tasks.  What two tasks get of all lists together differs by one
  element at most.
- A union list goes whole to every task.
- A broadcast map is the same in every part: task i takes that of part i modulo the number of parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keyedstate.operator_state import OperatorStateKind


@dataclass(frozen=True)
class Share:
    """A run of the entries of one state in one part."""

    state: str
    #: The old task that wrote it.
    part: int
    #: The entries ``start`` to ``stop - 1``.
    start: int
    stop: int


def redistribute(
    kinds: Mapping[str, OperatorStateKind],
    parts: Sequence[Mapping[str, int]],
    task: int,
    parallelism: int,
) -> list[Share]:
    """Return what one task restores, by part and, within one, by name; no empty share.

    Parameters
    ----------
    kinds : mapping of str to OperatorStateKind
        Every state by its name.
    parts : sequence of mapping of str to int
        For each old task in order, how many entries it has written of each of its states.
    task, parallelism : int
        The new one, from 0, and the number of new ones.
    """
    shares: list[Share] = []
    # The tasks that got one more than others: the next list goes on behind them.
    following = 0
    for state in sorted(kinds):
        counts = {part: written[state] for part, written in enumerate(parts) if state in written}
        if kinds[state] is OperatorStateKind.BROADCAST:
            holders = list(counts)
            chosen = holders[task % len(holders)] if holders else 0
            shares.append(Share(state, chosen, 0, counts.get(chosen, 0)))
        elif kinds[state] is OperatorStateKind.UNION_LIST:
            shares += [Share(state, part, 0, count) for part, count in counts.items()]
        elif parallelism == len(parts):
            shares.append(Share(state, task, 0, counts.get(task, 0)))
        else:
            total = sum(counts.values())
            start, stop = _run(total, task, parallelism, following)
            following = (following + total % parallelism) % parallelism
            shares += _cut(state, counts, start, stop)
    return sorted((share for share in shares if share.stop > share.start), key=lambda s: (s.part, s.state))


def _run(total: int, task: int, parallelism: int, first: int) -> tuple[int, int]:
    """Return the run of one task where the remainder goes to the tasks from `first` on, in a ring."""
    length, rest = divmod(total, parallelism)

    def extra(task: int) -> bool:
        return (task - first) % parallelism < rest

    start = task * length + sum(map(extra, range(task)))
    return start, start + length + extra(task)


def _cut(state: str, counts: Mapping[int, int], start: int, stop: int) -> list[Share]:
    shares, before = [], 0
    for part, count in counts.items():
        lowest, highest = max(start - before, 0), min(stop - before, count)
        if lowest < highest:
            shares.append(Share(state, part, lowest, highest))
        before += count
    return shares
