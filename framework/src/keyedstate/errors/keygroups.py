"""Errors about key groups, their ranges and parallelism."""

from __future__ import annotations

from keyedstate.errors.base import KeyedStateError


class KeyGroupError(KeyedStateError, ValueError):
    """Base class of errors about key groups, their ranges and parallelism."""


class InvalidKeyGroupRangeError(KeyGroupError):
    """Bounds that no range of key groups has."""

    start: int
    end: int
    message = (
        "[{start}, {end}] is no range of key groups: the start must be at least 0 and at most the end. Use "
        "KeyGroupRange.of(start, end) where a start behind the end is to mean the empty range."
    )


class KeyGroupOutOfRangeError(KeyGroupError):
    """A key group outside the range that an object covers."""

    key_group: int
    key_group_range: object
    message = (
        "key group {key_group} lies outside {key_group_range}. Route the key by the parallelism and max "
        "parallelism that this range was computed with."
    )


class InvalidParallelismError(KeyGroupError):
    """A parallelism outside 1 to 32,768 or above the max parallelism."""

    parallelism: int
    max_parallelism: int | None

    def _message(self) -> str:
        if self.max_parallelism is None:
            bounds = "32768. Set the number of partitions to a value within these bounds"
        else:
            bounds = (
                f"the max parallelism {self.max_parallelism}. Use fewer partitions; the max parallelism of "
                "existing state is fixed, so a higher one needs a query that starts without state"
            )
        return f"the parallelism {self.parallelism} must lie between 1 and {bounds}."


class InvalidMaxParallelismError(KeyGroupError):
    """A max parallelism outside 1 to 32,768."""

    max_parallelism: int
    message = (
        "the max parallelism {max_parallelism} must lie between 1 and 32768. Choose a value within these "
        "bounds, such as a power of two well above the number of partitions."
    )
