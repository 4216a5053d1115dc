"""CP-07: which failed full snapshots count, and how many of them there are in a row."""

from __future__ import annotations

import pytest

from keyedstate.checkpoint.format.manifest import FailureReason, FullSnapshotReport
from keyedstate.checkpoint.protocol.full_snapshots import failed_epochs

IO = FailureReason.IO


def failed(*outcomes: tuple[int, FailureReason | None]) -> set[int]:
    return failed_epochs(
        FullSnapshotReport(epoch, True, failure, "", 0.0, 0.0, 0, 0, 0) for epoch, failure in outcomes
    )


def test_only_failures_of_the_storage_and_of_writing_count() -> None:
    """CP-07."""
    assert failed((1, IO), (2, IO), (3, FailureReason.CANCELLED), (4, IO)) == {1, 2, 4}


def test_a_success_resets_the_count() -> None:
    """CP-07."""
    assert failed((1, IO), (2, IO), (3, None)) == set()
    assert failed((1, IO), (2, IO), (3, None), (4, IO), (5, IO)) == {4, 5}


def test_an_epoch_that_fails_in_several_tasks_counts_once() -> None:
    """CP-07."""
    assert failed(*[(1, IO)] * 5) == {1}


def test_what_failed_before_the_newest_success_is_ignored() -> None:
    """CP-07."""
    assert failed((7, None), (6, IO)) == set()
    assert failed((7, None), (3, None), (6, IO), (8, IO)) == {8}


def test_a_late_success_of_an_older_one_does_not_forget_failures() -> None:
    """CP-07."""
    assert failed((5, None), (6, IO), (4, None), (7, IO)) == {6, 7}


@pytest.mark.parametrize("reason", list(FailureReason))
def test_exactly_four_reasons_count(reason: FailureReason) -> None:
    """CP-07."""
    counted = {"IO", "ASYNCHRONOUS", "EXPIRED", "FINALIZATION"}
    assert bool(failed((0, reason))) == (reason.name in counted)
