"""Errors about declared aggregates."""

from __future__ import annotations

from keyedstate.errors.base import KeyedStateError


class AggregateError(KeyedStateError):
    """Base class of errors about aggregates; ``name`` is the output column, None where there is none yet."""

    name: str | None


class InvalidAggregateError(AggregateError):
    """An aggregate that cannot be computed: of a wrong column, of a wrong type, with a wrong name."""

    reason: str
    message = "{name:?the aggregate {name!r}}{name:|the aggregation} cannot be computed: {reason}."


class AggregateOverflowError(AggregateError, ArithmeticError):
    """A sum that its type cannot hold."""

    type: str
    key: object  # A key whose sum it is
    message = (
        "{name} of the key {key!r} is too large for {type}. Cast the column before it is summed, to "
        "decimal(28, 0) for whole numbers or to double; the accumulator then begins anew."
    )


class MissingSketchLibraryError(AggregateError, ImportError):
    """An approximate aggregate where the library that computes it is not installed."""

    message = (
        "{name} needs the package 'datasketches', which is not installed here. Install it on the driver and "
        "on all executors: pip install 'keyedstate[sketches]'."
    )
