"""What goes wrong with a key before it has a hash: its type, or its value."""

from __future__ import annotations

import pyarrow as pa

from keyedstate.errors.kernel import KeyedStateError

SUPPORTED_TYPES = (
    "bool, int8, int16, int32, int64, float, double, string, binary, date32, timestamp, time64, duration, "
    "decimal up to precision 38, null, and structs, lists and dictionaries of these"
)
"""The Arrow types that have a hash, in words."""


class UnsupportedKeyTypeError(KeyedStateError, TypeError):
    """A key column of a type that Spark's ``hash`` or this implementation of it does not take.

    Attributes
    ----------
    arrow_type : pyarrow.DataType
        The type that has no hash; for a nested column the part at fault.
    """

    def __init__(self, arrow_type: pa.DataType) -> None:
        self.arrow_type = arrow_type
        reason = " (Spark refuses to hash maps)" if pa.types.is_map(arrow_type) else ""
        super().__init__(
            f"a key of type {arrow_type} has no hash{reason}. Supported are {SUPPORTED_TYPES}. "
            "Cast the key column to one of these."
        )


class InvalidKeyValueError(KeyedStateError, ValueError):
    """A value that does not fit the type of its key column.

    Attributes
    ----------
    value : object
        The value.
    arrow_type : pyarrow.DataType
        The type of the key column.
    """

    def __init__(self, value: object, arrow_type: pa.DataType, reason: str) -> None:
        self.value = value
        self.arrow_type = arrow_type
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        super().__init__(
            f"{shown} is no value of a key column of type {arrow_type}: {reason}. "
            "Convert the value to the column's type first."
        )


class LossyKeyTimeError(KeyedStateError, ValueError):
    """A key column of times that are finer, or reach further, than Spark's unit.

    Attributes
    ----------
    arrow_type, spark_type : pyarrow.DataType
        The type of the key column, and the one that Spark keeps such values in.
    """

    def __init__(self, arrow_type: pa.DataType, spark_type: pa.DataType, reason: str) -> None:
        self.arrow_type = arrow_type
        self.spark_type = spark_type
        super().__init__(
            f"a key column of type {arrow_type} holds a value that Spark's {spark_type} cannot hold "
            f"({reason}). Round the column and cast it to {spark_type} first."
        )
