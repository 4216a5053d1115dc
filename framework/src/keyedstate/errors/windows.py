"""Errors about declared aggregates, row kinds, windows and joins."""

from __future__ import annotations

from keyedstate.errors.base import KeyedStateError


class AggregateError(KeyedStateError):
    """Base class of errors about aggregates; ``name`` is the output column, None before it has one."""

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
        "decimal(28, 0) for whole numbers or to double; the accumulator then starts empty."
    )


class InvalidRankingError(KeyedStateError, ValueError):
    """A deduplication or top-n with a column or an option that cannot be used."""

    part: str
    reason: str
    way_out: str
    message = "{part} cannot be declared: {reason}. {way_out}"


class RowKindError(KeyedStateError, ValueError):
    """Rows without a column of row kinds, with a wrong one, or for an operator that takes no row back."""

    column: str
    reason: str
    message = (
        "The row kinds in the column {column!r} cannot be used: {reason}. Row kinds are written by "
        "aggregate(), top_n() and join() with row_kind=, and read by the aggregate() and join() of "
        "keyed(row_kind=...)."
    )


class UpsertError(KeyedStateError, ValueError):
    """A sink that cannot write the rows into its table."""

    table: str
    reason: str
    way_out: str
    message = "the table {table} cannot be written: {reason}. {way_out}"


# -- windows --------------------------------------------------------------------------------------


class InvalidWindowError(KeyedStateError, ValueError):
    """Windows that are invalid, found when they are declared or by what their functions return."""

    part: str  # What is wrong: ``Tumbling``, ``CountTrigger``, ``the allowed lateness``
    reason: str
    way_out: str
    message = "{part} cannot be used: {reason}. {way_out}"


class MissingTimestampError(KeyedStateError):
    """A row without event time in event-time windows or a join (Flink's ``Long.MIN_VALUE`` timestamp)."""

    reader: str  # The assigner, or ``the left input of the join``
    message = (
        "{reader} cannot take a row that has no event time. Name the column with event_time=, and say what "
        "is done with rows where it is null: missing='drop' or missing='side output'."
    )


# -- joins ----------------------------------------------------------------------------------------


class InvalidJoinError(KeyedStateError, ValueError):
    """A join that is invalid, found when it is declared."""

    part: str  # What is wrong: ``the interval``, ``process()``
    reason: str
    way_out: str
    message = "{part} cannot be used: {reason}. {way_out}"


class UnboundedStateWarning(UserWarning):
    """A streaming join that keeps its rows for ever."""

    def __init__(self, part: str) -> None:
        super().__init__(
            f"{part} keeps every row for ever, so its state grows without bound. Give ttl=, as in "
            "ttl=Ttl.of('1 day', clock=TtlClock.EVENT_TIME)."
        )
