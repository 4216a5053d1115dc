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
from typing import Any

import pytest

from keyedstate.backend import Capability
from keyedstate.testing.contract.base import subjects_of
from keyedstate.testing.contract.parts import TablePart

#: Every subject by its name.
_SUBJECTS: dict[str, Capability | TablePart] = {
    subject.value: subject for subject in (*Capability, *TablePart)
}
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
    subjects : tuple of Capability and TablePart
        What it is a test of; empty where every backend must pass it.
    ending : Ending
    message : str
        The first line of the error, or why it was skipped; empty where it passed.
    case : str
        What failed, in full: the error with the values and the falsifying example of a random test; empty
        where it did not fail.
    traceback : str
        The same with the lines of source that lead there.
    """

    test: str
    subjects: tuple[Capability | TablePart, ...]
    ending: Ending
    message: str
    case: str = ""
    traceback: str = ""


class OutcomeReader:
    """Reads what `OutcomeWriter` writes, also while it is written.

    Parameters
    ----------
    file : Path

    Attributes
    ----------
    total : int
        How many tests are to run; 0 until they are collected.
    ended : list of Outcome
    under_way : Outcome or None
        The test that has begun and not ended.
    """

    def __init__(self, file: Path) -> None:
        self.total = 0
        self.ended: list[Outcome] = []
        self.under_way: Outcome | None = None
        self._file = file
        self._position = 0

    def read(self) -> list[Outcome]:
        """Return the tests that have ended since it was called last."""
        if not self._file.exists():
            return []
        with self._file.open("rb") as file:
            file.seek(self._position)
            # A line may be half written.
            lines = file.read().rpartition(b"\n")[0].splitlines(keepends=True)
        before = len(self.ended)
        for line in lines:
            self._take(json.loads(line))
        self._position += sum(map(len, lines)) + (1 if lines else 0)
        return self.ended[before:]

    def _take(self, record: dict[str, Any]) -> None:
        if "total" in record:
            self.total = record["total"]
            return
        subjects = tuple(map(_SUBJECTS.__getitem__, record.pop("subjects")))
        outcome = Outcome(subjects=subjects, ending=Ending(record.pop("ending")), **record)
        # The line of the start says "failed" until the line of the end says otherwise.
        if self.under_way is None:
            self.under_way = outcome
        else:
            self.ended.append(outcome)
            self.under_way = None


class OutcomeWriter:
    """Writes how each test ends.

    Parameters
    ----------
    file : Path
        A new file.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._reports: list[pytest.TestReport] = []
        file.write_text("", encoding="utf-8")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Write how many tests there are."""
        self._write({"total": len(session.items)})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Write one line before and one after a test."""
        self._reports.clear()
        subjects = subjects_of(item)
        self._write(_record(Outcome(item.name, subjects, Ending.FAILED, "its process ended")))
        result = yield
        self._write(_record(Outcome(item.name, subjects, *_ending(self._reports))))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the reports of a test: set-up, call and tear-down."""
        self._reports.append(report)

    def _write(self, record: dict[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def _record(outcome: Outcome) -> dict[str, Any]:
    return {**asdict(outcome), "subjects": [subject.value for subject in outcome.subjects]}


def _ending(reports: list[pytest.TestReport]) -> tuple[Ending, str, str, str]:
    for report in reports:
        if report.failed:
            return Ending.FAILED, *_error(report)
    for report in reports:
        if report.skipped and hasattr(report, "wasxfail"):
            return Ending.ANNOUNCED, *_error(report)
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            return Ending.SKIPPED, reason.removeprefix("Skipped: "), "", ""
    return Ending.PASSED, "", "", ""


def _error(report: pytest.TestReport) -> tuple[str, str, str]:
    """Return the first line of the error, all of it, and the traceback."""
    crash = getattr(report.longrepr, "reprcrash", None)
    case = crash.message if crash is not None else str(report.longrepr)
    return next(iter(case.splitlines()), ""), case, report.longreprtext


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
