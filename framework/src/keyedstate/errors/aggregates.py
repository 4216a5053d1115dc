"""Errors about declared aggregates."""

from __future__ import annotations

from keyedstate.errors.kernel import KeyedStateError


class AggregateError(KeyedStateError):
    """Base class of errors about aggregates; ``name`` is the output column, None where there is none yet."""

    name: str | None


class InvalidAggregateError(AggregateError):
    """An aggregate that cannot be computed: of a wrong column, of a wrong type, with a wrong name."""

    def __init__(self, name: str | None, reason: str) -> None:
        self.name = name
        self.reason = reason
        which = "the aggregation" if name is None else f"the aggregate {name!r}"
        super().__init__(f"{which} cannot be computed: {reason.rstrip('.')}.")


class AggregateOverflowError(AggregateError, ArithmeticError):
    """A sum that its type cannot hold.

    Attributes
    ----------
    name : str
        What is computed: ``sum(amount)``.
    type : str
    key : object
        A key whose sum it is.
    """

    def __init__(self, name: str, type: str, key: object) -> None:
        self.name = name
        self.type = type
        self.key = key
        super().__init__(
            f"{name} of the key {key!r} is too large for {type}. Cast the column before it is summed, to "
            "decimal(28, 0) for whole numbers or to double; the accumulator then begins anew."
        )


class MissingSketchLibraryError(AggregateError, ImportError):
    """An approximate aggregate where the library that computes it is not installed."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"{name} needs the package 'datasketches', which is not installed here. Install it on the driver "
            "and on all executors: pip install 'keyedstate[sketches]'."
        )
