"""Which task restores which operator state.

A pure function of the manifests, so a task reads only the files that it needs, and all tasks agree (Flink's
``RoundRobinOperatorStateRepartitioner``):

- A list stays where it was when the parallelism has not changed.  Otherwise all its elements, part after
  part, are cut into as many runs as there are tasks.  The shares of two tasks in all lists together differ
  by one element at most.
- Every task gets a whole union list.
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
    """Return what one of the new tasks restores, by part and, within one, by name; no empty share.

    The parts have, for each old task in order, the number of entries of each of its states.
    """
    shares: list[Share] = []
    # The next list gives its remainder to the tasks after those that already got one.
    following = 0
    for state in sorted(kinds):
        counts = {part: written[state] for part, written in enumerate(parts) if state in written}
        if kinds[state] is OperatorStateKind.BROADCAST:
            writers = list(counts)
            chosen = writers[task % len(writers)] if writers else 0
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
    """Return the run of one task; the tasks from `first` on, in a ring, get one of the remainder each."""
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
