"""How the tests of the contract end: a pytest plugin that writes it down, and the records that it writes.

One line of JSON when a test starts and one when it has ended, each on the disk at once: a backend that takes
its process down must not take along what was known by then.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from keyedstate.backend import Capability
from keyedstate.testing.contract.base import capabilities_of

#: The command-line option of pytest that names the file.
OUTCOMES_OPTION = "--contract-outcomes"


class Ending(str, enum.Enum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    #: The backend does not claim what it needs, or it has nothing to look at here.
    SKIPPED = "skipped"
    #: It failed, and is not mandatory yet: ``pytest.mark.xfail(strict=False)``.
    ANNOUNCED = "announced"


@dataclass(frozen=True)
class Outcome:
    """How one test ended.

    Attributes
    ----------
    test : str
        Its name, with its parameters.
    capabilities : tuple of Capability
        What it is a test of; empty where every backend must pass it.
    ending : Ending
    message : str
        The first line of the error, or why it was skipped; empty where it passed.
    """

    test: str
    capabilities: tuple[Capability, ...]
    ending: Ending
    message: str


def read_outcomes(file: Path) -> tuple[list[Outcome], Outcome | None]:
    """Return the tests that ended, and the one that was under way when the process ended, or None.

    Parameters
    ----------
    file : Path
        What `OutcomeWriter` wrote.
    """
    ended: list[Outcome] = []
    under_way: Outcome | None = None
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        outcome = Outcome(
            record["test"],
            tuple(map(Capability, record["capabilities"])),
            Ending(record["ending"]),
            record["message"],
        )
        # The line of the start says "failed" until the line of the end says otherwise.
        if under_way is None:
            under_way = outcome
        else:
            ended.append(outcome)
            under_way = None
    return ended, under_way


class OutcomeWriter:
    """Writes how each test ends.

    Parameters
    ----------
    file : Path
        Made anew.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._reports: list[pytest.TestReport] = []
        file.write_text("", encoding="utf-8")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Write one line before and one after a test."""
        self._reports.clear()
        capabilities = capabilities_of(item)
        self._write(Outcome(item.name, capabilities, Ending.FAILED, "its process ended"))
        result = yield
        self._write(Outcome(item.name, capabilities, *_ending(self._reports)))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the reports of a test: set-up, call and tear-down."""
        self._reports.append(report)

    def _write(self, outcome: Outcome) -> None:
        record = {
            **asdict(outcome),
            "capabilities": [capability.value for capability in outcome.capabilities],
        }
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def _ending(reports: list[pytest.TestReport]) -> tuple[Ending, str]:
    for report in reports:
        if report.failed:
            return Ending.FAILED, _first_line(report)
    for report in reports:
        if report.skipped and hasattr(report, "wasxfail"):
            return Ending.ANNOUNCED, _first_line(report)
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            return Ending.SKIPPED, reason.removeprefix("Skipped: ")
    return Ending.PASSED, ""


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash is not None else str(report.longrepr)).splitlines()
    return lines[0] if lines else ""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file."""
    parser.addoption(
        OUTCOMES_OPTION, type=Path, default=None, help="file for the outcomes of the contract kit"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Write where the option is given."""
    file = config.getoption(OUTCOMES_OPTION)
    if file is not None:
        config.pluginmanager.register(OutcomeWriter(file), "keyedstate-contract-outcomes")
