"""The report of a run of the contract: as JSON for scripts, as Markdown, and on the terminal."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from keyedstate import version
from keyedstate.plugins import Backend
from keyedstate.testing.contract.reports.baseline import Baseline
from keyedstate.testing.contract.reports.matrix import EVERY_BACKEND, Line, matrix
from keyedstate.testing.contract.reports.outcomes import Ending, Outcome

#: Increased when a key of the document is renamed or removed, and not for new keys.
FORMAT = 1
_MATRIX_HEAD = ("capability", "claimed", "passed", "failed", "skipped", "announced", "verdict")
_BASELINE_HEAD = ("operation", "entries/s", "compared with", "its entries/s", "ratio")


@dataclass(frozen=True)
class Report:
    """A run of the contract on one backend.

    Attributes
    ----------
    backend : Backend
    options : mapping of str to str
        Options that it ran with, by their full names.
    select : str or None
        The expression that chose the tests; None for all.
    outcomes : sequence of Outcome
    baseline : Baseline or None
        None if it was not measured.
    """

    backend: Backend
    options: Mapping[str, str]
    select: str | None
    outcomes: Sequence[Outcome]
    baseline: Baseline | None

    @property
    def lines(self) -> list[Line]:
        """The capability matrix."""
        return matrix(self.backend.description, self.outcomes)

    @property
    def passed(self) -> bool:
        """Whether no mandatory test failed."""
        return not self.ended(Ending.FAILED)

    @property
    def versions(self) -> dict[str, str]:
        """The versions of Python, keyedstate, the backend and pyarrow."""
        return {
            "python": platform.python_version(),
            "keyedstate": version.__version__,
            self.backend.provider.distribution: self.backend.provider.version,
            "pyarrow": pa.__version__,
        }

    def ended(self, ending: Ending) -> list[Outcome]:
        """Return the tests that ended in one way."""
        return [outcome for outcome in self.outcomes if outcome.ending is ending]

    def document(self) -> dict[str, Any]:
        """Return everything in types that JSON has; ``docs/how-to/contract-kit.md`` explains the keys."""
        description = self.backend.description
        return {
            "format": FORMAT,
            "backend": description.name,
            "build": description.build or None,
            "hook_api": list(description.hook_api),
            "options": dict(self.options),
            "select": self.select,
            "versions": self.versions,
            "passed": self.passed,
            "matrix": [
                {
                    "capability": line.name,
                    "claimed": None if line.level is None else line.level.value,
                    "passed": line.passed,
                    "failed": line.failed,
                    "skipped": line.skipped,
                    "announced": line.announced,
                    "verdict": line.verdict,
                }
                for line in self.lines
            ],
            "failures": [_failure(outcome) for outcome in self.ended(Ending.FAILED)],
            "announced": [_failure(outcome) for outcome in self.ended(Ending.ANNOUNCED)],
            "baseline": None
            if self.baseline is None
            else {
                "entries": self.baseline.entries,
                "rounds": self.baseline.rounds,
                "operations": [
                    {
                        "operation": measured.operation,
                        "entries_per_second": round(measured.entries_per_second),
                        "floor": measured.floor,
                        "floor_entries_per_second": round(measured.floor_entries_per_second),
                        "ratio": round(measured.ratio, 3),
                    }
                    for measured in self.baseline.operations
                ],
            },
        }

    def markdown(self) -> str:
        """Return everything as a page."""
        parts = [f"# The contract on {self.backend.name}", "", f"{self._about()}.", ""]
        parts += [*_markdown_table(_MATRIX_HEAD, self._matrix_rows()), "", self._summary(), ""]
        for title, ending in (("Failed", Ending.FAILED), ("Announced, not mandatory yet", Ending.ANNOUNCED)):
            if self.ended(ending):
                parts += [f"## {title}", ""]
                for outcome in self.ended(ending):
                    parts.append(f"- `{outcome.test}` ({_of(outcome)}): `{_message(outcome)}`")
                parts.append("")
        if self.baseline is not None:
            parts += ["## Performance baseline", "", _baseline_title(self.baseline), ""]
            parts += [*_markdown_table(_BASELINE_HEAD, _baseline_rows(self.baseline)), ""]
        return "\n".join(parts)

    def print(self, console: Console, *, tracebacks: bool = False) -> None:
        """Print everything for people, with `tracebacks` also the source lines of each failure."""
        console.print(f"{self._about()}\n", markup=False)
        console.print(_table(_MATRIX_HEAD, self._matrix_rows()))
        for title, ending in (("failed", Ending.FAILED), ("announced, not mandatory yet", Ending.ANNOUNCED)):
            for outcome in self.ended(ending):
                console.print(f"\n{title}: {outcome.test} ({_of(outcome)})", markup=False)
                text = outcome.traceback if tracebacks and outcome.traceback else outcome.case
                console.print(indent(text, "  "), markup=False, soft_wrap=True)
        if self.baseline is not None:
            console.print(f"\n{_baseline_title(self.baseline)}", markup=False)
            console.print(_table(_BASELINE_HEAD, _baseline_rows(self.baseline)))
        console.print(f"\n{self._summary()}", markup=False)

    def _about(self) -> str:
        build = self.backend.description.build
        options = "".join(f", {name}={value}" for name, value in self.options.items())
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"{self.backend.name}{f' ({build})' if build else ''}{options}: {versions}"

    def _summary(self) -> str:
        counts = [f"{len(self.ended(ending))} {ending.value}" for ending in Ending if self.ended(ending)]
        failed = [line.name for line in self.lines if line.failed]
        which = f" of those that {self.select!r} selects" if self.select is not None else ""
        verdict = f"What fails: {', '.join(failed)}." if failed else "Everything that is claimed holds."
        return f"Tests{which}: {', '.join(counts)}. {verdict}"

    def _matrix_rows(self) -> list[tuple[str, ...]]:
        return [
            (
                line.name,
                "" if line.level is None else line.level.value,
                *map(str, (line.passed, line.failed, line.skipped, line.announced)),
                line.verdict,
            )
            for line in self.lines
        ]


def _baseline_title(baseline: Baseline) -> str:
    return (
        f"Value state, {baseline.entries:,} entries, medians of {baseline.rounds} rounds; a ratio of 0.5 is "
        "half as fast as what it is compared with."
    )


def _baseline_rows(baseline: Baseline) -> list[tuple[str, ...]]:
    return [
        (
            measured.operation,
            f"{measured.entries_per_second:,.0f}",
            measured.floor,
            f"{measured.floor_entries_per_second:,.0f}",
            f"{measured.ratio:.2f}",
        )
        for measured in baseline.operations
    ]


def _of(outcome: Outcome) -> str:
    return ", ".join(subject.value for subject in outcome.subjects) or EVERY_BACKEND


def _message(outcome: Outcome) -> str:
    return outcome.message.replace("`", "'")


def _failure(outcome: Outcome) -> dict[str, Any]:
    return {
        "test": outcome.test,
        "capabilities": [subject.value for subject in outcome.subjects],
        "error": outcome.message,
        "case": outcome.case,
        "traceback": outcome.traceback,
    }


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in head:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
