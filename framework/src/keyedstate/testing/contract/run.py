"""The whole contract, run on one backend in a process and a folder of its own."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from keyedstate.errors import KeyedStateError
from keyedstate.testing.contract import outcomes
from keyedstate.testing.contract.outcomes import Outcome, read_outcomes

#: A test that takes longer hangs; watched where pytest-timeout is installed, as the extra ``test`` has it.
_TEST_SECONDS = 300
_LAST_LINES = 20
#: What pytest returns where tests passed, and where some failed.
_RAN = (0, 1)
_NOTHING_SELECTED = 5


class NoTestSelectedError(KeyedStateError, ValueError):
    """An expression that selects no test.

    Attributes
    ----------
    expression : str
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        super().__init__(
            f"no test of the contract kit is selected by {expression!r}. Use a part of a test's name, such "
            "as 'snapshot', or leave the option -k out."
        )


class ContractRunError(KeyedStateError):
    """pytest could not run the tests.

    Attributes
    ----------
    output : str
        The last lines that it printed.
    """

    def __init__(self, status: int, output: str) -> None:
        self.output = "\n".join(output.splitlines()[-_LAST_LINES:])
        super().__init__(
            f"pytest ended with status {status} and without running the contract kit. Correct what it says:\n"
            f"{self.output}"
        )


def run_contract(backend: str, options: Mapping[str, str], select: str | None = None) -> list[Outcome]:
    """Run the tests of the contract on an installed backend.

    pytest runs in another process: it sees neither the configuration, the plugins nor the ``conftest.py`` of
    the folder that it is started in, and a backend may take it down.

    Parameters
    ----------
    backend : str
        Its name; that it can be chosen was looked at before.
    options : mapping of str to str
        Options by their full names.
    select : str, optional
        An expression over the names of tests, as pytest's ``-k`` takes it.

    Returns
    -------
    list of Outcome
        In the order in which they ran.  Where the process died, the test that was under way is the last.

    Raises
    ------
    NoTestSelectedError
        If `select` leaves none.
    ContractRunError
        If pytest could not run.
    """
    with tempfile.TemporaryDirectory(prefix="keyedstate-contract-") as made:
        folder = Path(made)
        tests, settings, found = folder / "test_contract.py", folder / "pytest.ini", folder / "outcomes.jsonl"
        tests.write_text(
            "from keyedstate.testing import BackendContract\n\n\n"
            "class TestContract(BackendContract):\n"
            f"    backend = {backend!r}\n"
            f"    options = {dict(options)!r}\n",
            encoding="utf-8",
        )
        settings.write_text("[pytest]\n", encoding="utf-8")
        command = [sys.executable, "-m", "pytest", str(tests), "-c", str(settings), "--rootdir", made, "-q"]
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
        ran = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        ended, under_way = read_outcomes(found) if found.exists() else ([], None)
        if under_way is not None:
            ended.append(
                replace(under_way, message=f"{_death(ran.returncode)}; the tests after it did not run")
            )
        elif ran.returncode == _NOTHING_SELECTED and select is not None:
            raise NoTestSelectedError(select)
        elif ran.returncode not in _RAN or not ended:
            raise ContractRunError(ran.returncode, ran.stdout)
        return ended


def _death(status: int) -> str:
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process ended with status {status}"
