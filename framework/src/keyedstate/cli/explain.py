"""``keyedstate explain``: why a job failed, from the log of a Spark driver or executor."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, TextIO

import typer

from keyedstate.cli.output import Format, print_json
from keyedstate.cli.settings import OutputFormat
from keyedstate.errors import FACTS, UserFunctionError, user_function_error

#: A report of a user's function is shorter.
_WINDOW = 40_000
_OURS = re.compile(r"\b(keyedstate\w*(?:\.\w+)*\.\w*Error): (\S.*)")
_PYTHON = re.compile(r"(?:[A-Za-z_][\w.]*(?:Error|Exception|Exit)|[a-z_][\w.]*\.[A-Z]\w*)(?:: .*)?$")
_TRACEBACK = "Traceback (most recent call last):"
_JAVA = re.compile(
    r"(?:Caused by: |ERROR .*?: |Exception in thread \S+ )((?:\w+\.)+\w*(?:Exception|Error)\b.*)"
)
#: The first line of what Java prints of an error, which may be that of another one.
_JAVA_OUTER = re.compile(r"(?:\w+\.)+\w*(?:Exception|Error)\b.*")


@dataclass
class _Cause:
    """An error, and how often the log has it."""

    error: str
    details: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    times: int = 1

    def text(self) -> str:
        times = "once" if self.times == 1 else f"{self.times} times"
        return f"{self.error}\n{self.details}The log has it {times}."


def explain(
    log: Annotated[
        typer.FileText,
        typer.Argument(
            metavar="LOGFILE",
            help="The log of a driver or executor; - is standard input.",
            encoding="utf-8",
            errors="replace",
        ),
    ],
    format: OutputFormat = Format.table,
) -> None:
    """Print why a job failed: each cause that its log names, once.

    These are errors of your own functions and of keyedstate; where the log has neither, errors of other
    Python code, and else those of Java.
    """
    causes = _causes(log)
    if format is Format.json:
        print_json([{"error": cause.error, **cause.facts, "times": cause.times} for cause in causes])
    elif causes:
        print("\n\n".join(cause.text() for cause in causes))
    else:
        print(
            "No error was found in the log. Look into the logs of the executors too, and at the end of the "
            "driver's."
        )
    if not causes:
        raise typer.Exit(1)


def _causes(log: TextIO) -> list[_Cause]:
    """Return the causes of the most telling kind in the log, in their order."""
    ours: dict[str, _Cause] = {}
    python: dict[str, _Cause] = {}
    java: dict[str, _Cause] = {}
    java_outer: dict[str, _Cause] = {}
    window: list[str] = []
    size = 0
    in_traceback = False
    for line in _lines(log):
        window.append(line)
        size += len(line)
        while size > _WINDOW and len(window) > 1:
            size -= len(window.pop(0))
        if FACTS in line:
            error = user_function_error("".join(window))
            if error is not None:
                _note(ours, _of_function(error))
            window, size = [], 0
        elif (found := _OURS.search(line)) and not found[1].endswith(UserFunctionError.__name__):
            _note(ours, _Cause(f"{found[1].rpartition('.')[2]}: {found[2]}"))
        elif line.startswith(_TRACEBACK) or line.rstrip().endswith(_TRACEBACK):
            in_traceback = True
        elif in_traceback and not line.startswith(" "):
            in_traceback = False
            if _PYTHON.match(line.rstrip()):
                _note(python, _Cause(line.rstrip()))
        elif found := _JAVA.search(line):
            _note(java, _Cause(found[1].rstrip()))
        elif found := _JAVA_OUTER.match(line):
            _note(java_outer, _Cause(found[0].rstrip()))
    return list((ours or python or java or java_outer).values())


def _note(causes: dict[str, _Cause], cause: _Cause) -> None:
    known = causes.setdefault(f"{cause.error}\n{cause.details}", cause)
    if known is not cause:
        known.times += 1


def _of_function(error: UserFunctionError) -> _Cause:
    facts = {name: value for name, value in vars(error).items() if name != "error"}
    facts["key"] = error.key if isinstance(error.key, (str, int, float, bool)) else repr(error.key)
    place = str(error)[str(error).rindex("Raised in ") :]
    trace = f"{error.trace}\n" if error.trace else ""
    return _Cause(error.error, f"{trace}{place}\n", facts)


def _lines(log: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a log; those within the strings of a structured one too."""
    for line in log:
        if line.startswith("{"):
            try:
                document = json.loads(line)
            except ValueError:
                document = None
            if isinstance(document, dict):
                for text in _strings(document):
                    yield from (f"{part}\n" for part in text.split("\n"))
                continue
        yield line


def _strings(document: object) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, (dict, list)):
        for part in document.values() if isinstance(document, dict) else document:
            yield from _strings(part)
