"""CP-07: which failures count, and when there are too many of them in a row."""

from __future__ import annotations

import pytest

from keyedstate.checkpoint.format.snapshot_report import FailureReason
from keyedstate.checkpoint.protocol.failures import FailureManager

IO = FailureReason.IO


def test_more_failures_in_a_row_than_are_tolerated_are_reported_once() -> None:
    """CP-07, the ids of Flink's test."""
    manager = FailureManager(2)
    assert not manager.on_failure(1, IO)
    assert not manager.on_failure(2, IO)
    assert not manager.on_failure(3, FailureReason.CANCELLED)
    assert manager.on_failure(4, IO)
    assert not manager.on_failure(5, IO), "the count began anew"


def test_a_success_resets_the_count() -> None:
    """CP-07."""
    manager = FailureManager(2)
    manager.on_failure(1, IO)
    manager.on_failure(2, IO)
    manager.on_success(3)
    assert manager.failures == 0
    assert not manager.on_failure(4, IO)
    assert not manager.on_failure(5, IO)
    assert manager.on_failure(6, IO)


def test_an_id_that_several_tasks_report_counts_once() -> None:
    """CP-07."""
    manager = FailureManager(1)
    assert not any(manager.on_failure(1, IO) for _ in range(5))
    assert manager.failures == 1
    assert manager.on_failure(2, FailureReason.IO)


def test_what_failed_before_the_newest_success_is_ignored() -> None:
    """CP-07."""
    manager = FailureManager(0)
    manager.on_success(7)
    assert not manager.on_failure(6, IO)
    assert not manager.on_failure(7, IO)
    manager.on_success(3)
    assert not manager.on_failure(7, IO), "an older success does not set the newest one back"
    assert manager.on_failure(8, IO)


def test_a_late_success_of_an_older_one_does_not_forget_failures() -> None:
    """CP-07."""
    manager = FailureManager(1)
    manager.on_success(5)
    manager.on_failure(6, IO)
    manager.on_success(4)
    assert manager.on_failure(7, IO)


@pytest.mark.parametrize("reason", list(FailureReason))
def test_exactly_five_reasons_count_where_none_is_tolerated(reason: FailureReason) -> None:
    """CP-07."""
    counted = {"IO", "ASYNCHRONOUS", "EXPIRED", "FINALIZATION"}
    assert FailureManager(0).on_failure(0, reason) == (reason.name in counted)


def test_a_negative_number_of_tolerated_failures_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        FailureManager(-1)
