"""Restarts of a run whose subtask was killed: from the last checkpoint, with the sources there too."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import nullcontext

from keyedstate.errors import SubtaskFailedError
from keyedstate.local.parallel.job import ParallelJob
from keyedstate.local.run.chain import Chain
from keyedstate.local.run.elements import Committed, Element
from keyedstate.local.run.plan import OperatorPlan
from keyedstate.local.run.stop_request import StopRequest
from keyedstate.local.sources.batches import BatchSource
from keyedstate.local.sources.rows import RowSource

_log = logging.getLogger(__name__)


def restarted(chain: Chain, *, drain: bool, all_or_nothing: bool) -> Generator[Element, None, None]:
    """Run operators with subtasks; after one was killed, run them again from the last checkpoint.

    A second failure without a checkpoint in between ends the run: the same rows would kill the next one too.
    Raises as `ParallelJob.elements`.
    """
    can_restart = chain.keeps_state and not any(_reads_once(plan) for plan in chain.plans)
    has_progressed = True
    stop = StopRequest()
    with stop if chain.keeps_state else nullcontext():
        while True:
            job = ParallelJob(chain, drain=drain, all_or_nothing=all_or_nothing, stop=stop)
            try:
                for element in job.elements():
                    has_progressed = has_progressed or isinstance(element, Committed)
                    yield element
                return
            except SubtaskFailedError as error:
                if stop.requested:
                    # The last checkpoint is where the run stops.
                    raise KeyboardInterrupt from error
                if not (can_restart and has_progressed):
                    raise
                _log.warning(
                    "subtask %d of %r failed: %s. The run continues from its last checkpoint.",
                    error.subtask,
                    error.operator,
                    error.reason,
                )
                has_progressed = False


def _reads_once(plan: OperatorPlan) -> bool:
    """Return whether a source cannot be read again in this process, such as a generator."""
    sources = [*(input_.rows for input_ in plan.read.inputs), plan.read.broadcast]
    return any(isinstance(rows, (BatchSource, RowSource)) and rows.reads_once for rows in sources)
