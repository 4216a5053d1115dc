"""Errors about running the contract kit."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors.base import KeyedStateError


class MissingTestExtraError(KeyedStateError, ImportError):
    """A module that the contract kit imports is not installed."""

    modules: Sequence[str]  # What is missing
    message = (
        "the contract kit needs {modules: and }, which is not installed here. Install it with `pip install "
        "'keyedstate[test]'`."
    )


class NoTestSelectedError(KeyedStateError, ValueError):
    """An expression that selects no test."""

    expression: str
    message = (
        "no test of the contract kit is selected by {expression!r}. Use a part of a test's name, such as "
        "'snapshot', or leave the option -k out."
    )


class ContractRunError(KeyedStateError):
    """pytest could not run the tests."""

    status: int
    output: str  # The last lines that it printed
    message = (
        "pytest ended with status {status} and without running the contract kit. Correct what it "
        "says:\n{output}"
    )
