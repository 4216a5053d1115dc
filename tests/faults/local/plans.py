"""What a history of runs does: its channels, and how each of its runs is configured and ends.

A plan follows from a seed and a number, so that a history can be repeated; only the operating system decides
at which row a kill arrives.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from typing import Any

BACKENDS = ("heap-cow", "nested-map", "rocksdb", "spillable")
#: The chain is two operators, of which the second one reads the rows of the first; the join has two sources.
OPERATORS = ("count", "windows", "chain", "running", "deduplicate", "join")
MODES = ("exactly-once", "at-least-once", "unaligned")
#: How a run ends: by itself, at the kill of a task or of the program, or at Ctrl-C.
ENDINGS = ("end", "kill task", "kill program", "interrupt")


@dataclass(frozen=True)
class ChannelPlan:
    """A channel of the source.

    Attributes
    ----------
    rows : int
    batch : int
        Rows of a batch.
    read_ms : float
        How long a batch takes to be read.
    process_ms : float
        How long one row in ten takes to be processed.
    disorder : int
        How many seconds of event time a row may be behind an earlier one.
    """

    rows: int
    batch: int
    read_ms: float
    process_ms: float
    disorder: int


@dataclass(frozen=True)
class RunPlan:
    """A run of the program.

    Attributes
    ----------
    parallelism : tuple of int
        Of each operator.
    backend, mode : str
    alignment_timeout_ms, interval_ms : int
    ending : str
        One of `ENDINGS`.
    at : int
        The row of the first channel at which a task is killed; else milliseconds from the first row on.
    killed : int
        The operator whose task is killed.
    """

    parallelism: tuple[int, ...]
    backend: str
    mode: str
    alignment_timeout_ms: int
    interval_ms: int
    ending: str
    at: int
    killed: int

    @property
    def tasks(self) -> str:
        """How many tasks each operator has."""
        return "+".join(map(str, self.parallelism))


@dataclass(frozen=True)
class Plan:
    """A history: runs of one program over one checkpoint folder, of which the last one ends by itself."""

    seed: int
    number: int
    operator: str
    channels: tuple[ChannelPlan, ...]
    runs: tuple[RunPlan, ...]

    @property
    def exactly_once(self) -> bool:
        """Whether no row may count twice."""
        return all(run.mode != "at-least-once" or max(run.parallelism) == 1 for run in self.runs)

    def to_json(self) -> str:
        """Return the plan as `from_json` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return a plan that was written as JSON."""
        body: dict[str, Any] = json.loads(text)
        channels = tuple(ChannelPlan(**channel) for channel in body.pop("channels"))
        return cls(channels=channels, runs=tuple(map(_run, body.pop("runs"))), **body)


def _run(body: dict[str, Any]) -> RunPlan:
    return RunPlan(parallelism=tuple(body.pop("parallelism")), **body)


def plan_of(seed: int, number: int) -> Plan:
    """Return one plan of a campaign."""
    rng = random.Random(f"{seed}/{number}")
    channels = tuple(
        ChannelPlan(
            rows=rng.randrange(50, 250),
            batch=rng.choice((1, 5, 20)),
            read_ms=rng.choice((0.5, 1, 3)),
            process_ms=rng.choice((0, 0, 2, 10)),
            disorder=rng.choice((0, 4)),
        )
        for _ in range(rng.randrange(1, 4))
    )
    # Half of the histories guarantee that each row counts once.
    modes = rng.choice((MODES, ("exactly-once", "unaligned")))
    operator = rng.choice(OPERATORS)
    operators = 2 if operator == "chain" else 1
    endings = [rng.choice(ENDINGS[1:]) for _ in range(rng.randrange(1, 4))]
    runs = tuple(
        RunPlan(
            parallelism=tuple(rng.choice((1, 2, 2, 3)) for _ in range(operators)),
            backend=rng.choice(BACKENDS),
            mode=rng.choice(modes),
            alignment_timeout_ms=rng.choice((0, 0, 20)),
            interval_ms=rng.choice((20, 100, 300)),
            ending=ending,
            at=rng.randrange(channels[0].rows) if ending == "kill task" else rng.randrange(50, 800),
            killed=rng.randrange(operators),
        )
        for ending in [*endings, "end"]
    )
    return Plan(seed, number, operator, channels, runs)
