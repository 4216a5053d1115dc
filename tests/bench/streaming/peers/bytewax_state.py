"""Count and sum per key by Bytewax's ``stateful_map``, in memory, one worker.

Answers each line of its input, ``<batch> <rows> <keys>``, with the seconds that the micro-batch took.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

sys.path.append(str(Path(__file__).parent.parent))
from events import pairs

#: Rows that the dataflow takes at once, as many as Spark gives Python.
AT_ONCE = 10_000


class _Rows(StatelessSourcePartition[tuple[str, int]]):
    def __init__(self) -> None:
        self._waiting: list[list[tuple[str, int]]] = []
        self._began: float | None = None

    def next_batch(self) -> list[tuple[str, int]]:
        if self._waiting:
            return self._waiting.pop()
        # The dataflow asks for more only when what it had has passed the sink: there is one worker.
        if self._began is not None:
            print(time.perf_counter() - self._began, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise StopIteration
        rows = list(pairs(*map(int, line.split())))
        self._waiting = [rows[first : first + AT_ONCE] for first in range(0, len(rows), AT_ONCE)]
        self._began = time.perf_counter()
        return self._waiting.pop()


class _Source(DynamicSource[tuple[str, int]]):
    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Rows:
        return _Rows()


class _Dropped(StatelessSinkPartition[Any]):
    def write_batch(self, items: list[Any]) -> None:
        pass


class _Sink(DynamicSink[Any]):
    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Dropped:
        return _Dropped()


def count(state: tuple[int, int] | None, amount: int) -> tuple[tuple[int, int], tuple[int, int]]:
    seen, total = state or (0, 0)
    state = (seen + 1, total + amount)
    return state, state


flow = Dataflow("counts")
rows = op.input("rows", flow, _Source())
op.output("out", op.stateful_map("count", rows, count), _Sink())
run_main(flow)
