"""Errors of the spill policy and its options."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors import KeyedStateError


class SmallMemoryBudgetError(KeyedStateError):
    """A memory budget that the process exceeds before it has any state."""

    budget: int
    occupied: int
    least: int
    message = (
        "spillable.memory-budget, or a lower limit of the resident set (ulimit -m), is {budget} bytes, and "
        "this process occupies {occupied} without any state, to which the memory of databases is added. Set "
        "it to {least} at least."
    )


class MarkOrderError(KeyedStateError):
    """Marks of memory that are not in ascending order."""

    options: Sequence[str]
    values: Sequence[float]
    message = "the options {options} are {values}. Set them to ascending numbers, no two of them equal."


class WeightOrderError(KeyedStateError):
    """A weight of requests that is not below that of sizes."""

    sizes: float
    requests: float
    message = (
        "spillable.weight-requests is {requests}, and spillable.weight-size is {sizes}. Set the weight of "
        "requests below that of sizes."
    )


class UnknownPolicyError(KeyedStateError):
    """A spill policy that no installed distribution provides."""

    name: str
    known: Sequence[str]
    message = (
        "there is no spill policy {name!r}.{name:~known} Installed: {known}. Set spillable.policy to one of "
        "them, or install the distribution that provides it on the driver and the executors."
    )


class InvalidPolicyError(KeyedStateError):
    """A spill policy that cannot be made."""

    name: str
    origin: str  # The entry point's value
    reason: str
    message = (
        "the spill policy {name!r} of {origin!r} cannot be used: {reason}. Correct it, or set "
        "spillable.policy to another one."
    )
