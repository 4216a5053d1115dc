"""Columns and types at the border to Spark: which columns make the key, and what the output looks like."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    StructField,
    StructType,
)

from keyedstate.errors import InvalidAggregateError, OutputSchemaError, did_you_mean
from keyedstate.runtime.output import OutputSchema


def input_column_of(frame: DataFrame, aggregate: str, name: str) -> str:
    """Return a column that an aggregate reads by the name that the frame gives it.

    Raises
    ------
    InvalidAggregateError
    """
    fields = fields_by_name(frame)
    found = fields.get(folded(frame, name), [])
    if len(found) == 1:
        return found[0].name
    if found:
        reason = f"the DataFrame has {len(found)} columns {name!r}; rename all but one"
    elif name.partition(".")[1] and folded(frame, name.partition(".")[0]) in fields:
        reason = f"{name!r} is inside a column; add it as one of its own with withColumn()"
    else:
        hint = did_you_mean(name, frame.columns)
        reason = f"the DataFrame has no column {name!r}, but {', '.join(frame.columns)}.{hint}"
    raise InvalidAggregateError(aggregate, reason)


def arrow_types(frame: DataFrame, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the Arrow types of columns by name.

    Raises
    ------
    InvalidAggregateError
        For a column that has none.
    """
    by_name = {field.name: field for field in frame.schema.fields}
    try:
        return {name: to_arrow(StructType([by_name[name]])).field(0).type for name in names}
    except (PySparkException, TypeError) as error:
        raise InvalidAggregateError(None, f"a column has no Arrow type: {first_line(error)}") from error


def key_types(frame: DataFrame, key_columns: Sequence[str]) -> list[pa.DataType]:
    """Return the Arrow types of the key columns."""
    by_name = {field.name: field for field in frame.schema.fields}
    return list(to_arrow(StructType([by_name[name] for name in key_columns])).types)


def parse_output(
    spark: SparkSession, schema: str | StructType, side: str | None = None
) -> tuple[StructType, OutputSchema]:
    """Return the declared output as Spark's type and as what rows are checked against.

    Parameters
    ----------
    spark : SparkSession
    schema : str or StructType
    side : str, optional
        Name of the side output that it is declared for.

    Raises
    ------
    OutputSchemaError
    """
    if not isinstance(schema, (str, StructType)):
        raise OutputSchemaError(f"it is a {type(schema).__name__}", schema, side)
    if isinstance(schema, str):
        try:
            # The public way to parse a schema string that is the same in all versions.
            parsed = spark.createDataFrame([], schema).schema
        except PySparkException as error:
            raise OutputSchemaError(first_line(error), schema, side) from error
    else:
        parsed = schema
    try:
        return parsed, OutputSchema(to_arrow(parsed), side)
    except (PySparkException, TypeError) as error:
        raise OutputSchemaError(first_line(error), _text(schema), side) from error
    except OutputSchemaError as error:
        raise OutputSchemaError(error.reason, _text(schema), side) from error


def distinct(frame: DataFrame, columns: StructType) -> StructType:
    """Return columns of which no two have one name.

    Raises
    ------
    OutputSchemaError
    """
    names = [folded(frame, name) for name in columns.names]
    for name in names:
        if names.count(name) > 1:
            raise OutputSchemaError(f"two columns are named {name!r}; rename one", columns.simpleString())
    return columns


def to_arrow(schema: StructType) -> pa.Schema:
    """Return a schema as Arrow's, with instants in UTC on every PySpark."""
    # Up to 4.2 PySpark always puts UTC; later it wants to be told.
    arguments: dict[str, Any] = {}
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        arguments["timezone"] = "UTC"
    return to_arrow_schema(schema, **arguments)


def fields_by_name(frame: DataFrame) -> dict[str, list[StructField]]:
    """Return the top-level columns by their names as Spark compares them; two may have one name."""
    fields: dict[str, list[StructField]] = {}
    for field in frame.schema.fields:
        fields.setdefault(folded(frame, field.name), []).append(field)
    return fields


def folded(frame: DataFrame, name: str) -> str:
    """Return a column name in the form in which Spark compares it."""
    return name if frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true" else name.lower()


def first_line(error: BaseException) -> str:
    """Return what an error says in its first line, without a full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def _text(schema: str | StructType) -> str:
    return schema if isinstance(schema, str) else schema.simpleString()
