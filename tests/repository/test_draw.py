"""What ``make test`` leaves out of slow tests with several sets of parameters."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FILE = "tests/plugins/spillable/test_bad_input.py"
SLOW = "test_a_damaged_file_is_an_error_with_state_and_file_and_no_wrong_value"


def collected(root: str, draw: str) -> list[str]:
    """Return the tests of the file that a run with this draw would execute."""
    pytest_command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    found = subprocess.run(
        [*pytest_command, "--draw", "--collect-only", "-q", FILE],
        cwd=root,
        env={**os.environ, "KEYEDSTATE_TEST_DRAW": draw},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    return [line for line in found.stdout.splitlines() if "::" in line]


@pytest.mark.slow
def test_a_draw_takes_one_set_of_parameters_of_a_slow_test_and_leaves_others_alone(pytestconfig):
    root = str(pytestconfig.rootpath)
    draws = [collected(root, str(number)) for number in range(3)]
    slow = [[each for each in draw if SLOW in each] for draw in draws]
    assert [len(each) for each in slow] == [1, 1, 1]
    assert len({each for draw in slow for each in draw}) > 1
    assert collected(root, "0") == draws[0]
    assert len({frozenset(each for each in draw if SLOW not in each) for draw in draws}) == 1
