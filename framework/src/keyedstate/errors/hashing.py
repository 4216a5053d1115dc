"""What goes wrong with a key before it has a hash: its type, or its value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyedstate.errors.base import KeyedStateError

if TYPE_CHECKING:
    import pyarrow as pa

SUPPORTED_TYPES = (
    "bool, int8, int16, int32, int64, float, double, string, binary, date32, timestamp, time64, duration, "
    "decimal up to precision 38, null, and structs, lists and dictionaries of these"
)
"""The Arrow types that have a hash, in words."""


class UnsupportedKeyTypeError(KeyedStateError, TypeError):
    """A key column of a type that Spark's ``hash`` or this implementation of it does not take."""

    arrow_type: pa.DataType  # The type that has no hash; for a nested column the part at fault

    def _message(self) -> str:
        reason = " (Spark refuses to hash maps)" if str(self.arrow_type).startswith("map<") else ""
        return (
            f"a key of type {self.arrow_type} has no hash{reason}. Supported are {SUPPORTED_TYPES}. "
            "Cast the key column to one of these."
        )


class InvalidKeyValueError(KeyedStateError, ValueError):
    """A value that does not fit the type of its key column."""

    value: object  # The value
    arrow_type: pa.DataType  # The type of the key column
    reason: str

    def _message(self) -> str:
        shown = repr(self.value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return (
            f"{shown} is no value of a key column of type {self.arrow_type}: {self.reason}. "
            "Convert the value to the column's type first."
        )


class LossyKeyTimeError(KeyedStateError, ValueError):
    """A key column of times that are finer, or reach further, than Spark's unit."""

    arrow_type: pa.DataType  # The type of the key column, and the one that Spark keeps such values in
    spark_type: pa.DataType
    reason: str
    message = (
        "a key column of type {arrow_type} holds a value that Spark's {spark_type} cannot hold ({reason}). "
        "Round the column and cast it to {spark_type} first."
    )
