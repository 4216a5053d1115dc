"""A run of the whole contract on one backend, in its own process and folder."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from keyedstate.errors import ContractRunError, NoTestSelectedError
from keyedstate.testing.contract.reports import outcomes
from keyedstate.testing.contract.reports.outcomes import Outcome, OutcomeReader
from keyedstate.working_folder import WorkingFolder

#: A longer test hangs; used if pytest-timeout is installed, which the extra ``test`` has.
_TEST_SECONDS = 300
_LAST_LINES = 20
_LOOK_EVERY_S = 0.1

#: Called while tests run: the outcomes since the last call, the running test or an empty text, and the number
#: of tests.
Follow: TypeAlias = "Callable[[Sequence[Outcome], str, int], None]"
#: pytest's exit codes when all tests passed, and when some failed.
_RAN = (0, 1)
_NOTHING_SELECTED = 5


def run_contract(
    backend: str, options: Mapping[str, str], select: str | None = None, follow: Follow | None = None
) -> list[Outcome]:
    """Run the tests of the contract on an installed backend.

    pytest runs in another process, which a backend may crash, without the configuration, the plugins and the
    ``conftest.py`` of the working folder.

    Parameters
    ----------
    backend : str
        Its name; the caller has checked that it can be chosen.
    options : mapping of str to str
        Options by their full names.
    select : str, optional
        An expression over the names of tests, as pytest's ``-k`` takes it.
    follow : callable, optional
        Called a few times a second while the tests run.

    Returns
    -------
    list of Outcome
        In the order in which they ran. If the process died, the running test is the last one.

    Raises
    ------
    NoTestSelectedError
        If `select` leaves none.
    ContractRunError
        If pytest could not run.
    """
    with WorkingFolder() as folder:
        tests, settings, found = folder / "test_contract.py", folder / "pytest.ini", folder / "outcomes.jsonl"
        tests.write_text(
            "from keyedstate.testing import BackendContract\n\n\n"
            "class TestContract(BackendContract):\n"
            f"    backend = {backend!r}\n"
            f"    options = {dict(options)!r}\n",
            encoding="utf-8",
        )
        settings.write_text("[pytest]\n", encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pytest",
            str(tests),
            "-c",
            str(settings),
            "--rootdir",
            str(folder),
            "-q",
        ]
        command += ["-p", "no:cacheprovider", "--basetemp", str(folder / "work")]
        command += ["-p", outcomes.__name__, f"{outcomes.OUTCOMES_OPTION}={found}"]
        if importlib.util.find_spec("pytest_timeout") is not None:
            command += ["-p", "pytest_timeout", f"--timeout={_TEST_SECONDS}"]
        if select is not None:
            command += ["-k", select]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
        }
        output, reader = folder / "output.txt", OutcomeReader(found)
        with (
            output.open("wb") as printed,
            subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT
            ) as process,
        ):
            try:
                _follow(process, reader, follow)
            finally:
                # After an interrupt nothing is left running.
                process.kill()
        status = process.returncode
        if reader.under_way is not None:
            message = f"{_death(status)}; the tests after it did not run"
            reader.ended.append(replace(reader.under_way, message=message, case=message))
        elif status == _NOTHING_SELECTED and select is not None:
            raise NoTestSelectedError(select)
        elif status not in _RAN or not reader.ended:
            lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
            raise ContractRunError(status, "\n".join(lines[-_LAST_LINES:]))
        return reader.ended


def _follow(process: subprocess.Popen[bytes], reader: OutcomeReader, follow: Follow | None) -> None:
    """Wait for the end of the tests."""
    running = True
    while running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_EVERY_S)
            running = False
        ended = reader.read()
        if follow is not None:
            follow(ended, reader.under_way.test if reader.under_way is not None else "", reader.total)


def _death(status: int) -> str:
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process ended with status {status}"
