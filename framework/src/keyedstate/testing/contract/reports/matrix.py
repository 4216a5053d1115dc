"""The capability matrix: what a backend claims, and how the tests of each claim ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from keyedstate.backend import BackendDescription, Capability, Level
from keyedstate.testing.contract.parts import TablePart
from keyedstate.testing.contract.reports.outcomes import Ending, Outcome

#: What the line of the tests that belong to no capability is called.
EVERY_BACKEND = "every backend"


@dataclass(frozen=True)
class Line:
    """One line of the matrix.

    Attributes
    ----------
    subject : Capability or TablePart or None
        None for the tests that every backend must pass.
    level : Level or None
        What the backend claims of a capability.
    passed, failed, skipped, announced : int
        Tests by how they ended.  A test of several capabilities counts for each.
    """

    subject: Capability | TablePart | None
    level: Level | None
    passed: int
    failed: int
    skipped: int
    announced: int

    @property
    def name(self) -> str:
        """What the line is about, as users read it."""
        return EVERY_BACKEND if self.subject is None else self.subject.value

    @property
    def verdict(self) -> str:
        """What the line comes to."""
        if self.failed:
            return "fails"
        if self.passed:
            return "holds"
        if self.level is not None and not self.level.usable:
            return "not claimed"
        if isinstance(self.subject, TablePart) and self.skipped:
            return "not implemented"
        return "not tested"


def matrix(description: BackendDescription, outcomes: Sequence[Outcome]) -> list[Line]:
    """Return the matrix: first the tests that every backend must pass, then the others by what they need.

    Parameters
    ----------
    description : BackendDescription
        Of the backend.
    outcomes : sequence of Outcome
    """
    counted: dict[Capability | TablePart | None, Counter[Ending]] = {None: Counter()}
    counted |= {subject: Counter() for subject in (*Capability, *TablePart)}
    for outcome in outcomes:
        for subject in dict.fromkeys(outcome.subjects or (None,)):
            counted[subject][outcome.ending] += 1
    return [
        Line(
            subject,
            description.level(subject) if isinstance(subject, Capability) else None,
            passed=endings[Ending.PASSED],
            failed=endings[Ending.FAILED],
            skipped=endings[Ending.SKIPPED],
            announced=endings[Ending.ANNOUNCED],
        )
        for subject, endings in counted.items()
    ]
