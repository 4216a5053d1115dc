"""A chain: the operators of a run, and which of them reads the rows of which other one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keyedstate.errors import LocalRunError
from keyedstate.local.run.plan import OperatorPlan
from keyedstate.local.sources.source import Source
from keyedstate.options import CHECKPOINT_INTERVAL


@dataclass(frozen=True)
class Chain:
    """An operator and all operators that it reads from, directly or not."""

    #: Those that feed others come before them. The rows of the last one are the result.
    plans: tuple[OperatorPlan, ...]
    #: By each other operator, who reads its rows: the operator and the number of its input.
    receivers: Mapping[OperatorPlan, tuple[OperatorPlan, int]]

    @classmethod
    def of(cls, last: OperatorPlan) -> Chain:
        """Return the chain whose last operator is given.

        Raises `LocalRunError` where two operators read the rows of one, and where only some of them keep
        state.
        """
        receivers: dict[OperatorPlan, tuple[OperatorPlan, int]] = {}
        plans = tuple(_added(last, receivers))
        kept = [plan for plan in plans if plan.folder is not None]
        if kept and len(kept) < len(plans):
            raise LocalRunError(
                "a chain of operators",
                "only some of them have a uid, and only all together have a checkpoint",
                "Give each operator a uid, or none.",
            )
        return cls(plans, receivers)

    @property
    def keeps_state(self) -> bool:
        """Whether its operators keep state."""
        return self.plans[-1].folder is not None

    @property
    def has_several_tasks(self) -> bool:
        """Whether one of its operators has several tasks: then each task is a process."""
        return any(plan.partitions.parallelism > 1 for plan in self.plans)

    @property
    def interval_s(self) -> float:
        """The seconds between two checkpoints, the least that an operator is configured with."""
        return min(plan.config[CHECKPOINT_INTERVAL] for plan in self.plans) / 1000.0


def _added(plan: OperatorPlan, receivers: dict[OperatorPlan, tuple[OperatorPlan, int]]) -> list[OperatorPlan]:
    """Return an operator behind those that it reads from, whose receivers are added."""
    plans: list[OperatorPlan] = []
    for number, input_ in enumerate(plan.read.inputs):
        if isinstance(input_.rows, Source):
            continue
        if input_.rows.plan in receivers:
            raise LocalRunError(
                "the result of an operator",
                "two operators read it",
                "Let one function yield the rows of both, to side outputs.",
            )
        receivers[input_.rows.plan] = plan, number
        plans += _added(input_.rows.plan, receivers)
    return [*plans, plan]
