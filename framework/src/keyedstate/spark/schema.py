"""Columns and types between Spark and Arrow, and the declared columns of an output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from keyedstate.columns.declared import of_struct_type
from keyedstate.errors import OutputSchemaError
from keyedstate.runtime.output import OutputSchema


def parse_output(
    spark: SparkSession, schema: object, side: str | None = None
) -> tuple[StructType, OutputSchema]:
    """Return the declared columns of an output, or of a side output, and what checks its rows.

    Raises `OutputSchemaError`, also for a value that is neither text nor a StructType.
    """
    if not isinstance(schema, (str, StructType)):
        raise OutputSchemaError(f"it is a {type(schema).__name__}", schema, side)
    text = schema if isinstance(schema, str) else schema.simpleString()
    try:
        # The one public parser of schema strings that all versions have.
        parsed = spark.createDataFrame([], schema).schema if isinstance(schema, str) else schema
        return parsed, OutputSchema(to_arrow(parsed), side)
    except (PySparkException, TypeError) as error:
        raise OutputSchemaError(first_line(error), text, side) from error
    except OutputSchemaError as error:
        raise OutputSchemaError(error.reason, text, side) from error


def distinct(frame: DataFrame, columns: StructType) -> StructType:
    """Return the columns; raises `OutputSchemaError` if two have the same name."""
    names = [folded(frame, name) for name in columns.names]
    for name in names:
        if names.count(name) > 1:
            raise OutputSchemaError(f"two columns are named {name!r}; rename one", columns.simpleString())
    return columns


def to_arrow(schema: StructType) -> pa.Schema:
    """Return a schema as Arrow's, with instants in UTC on every PySpark."""
    return of_struct_type(schema)


def arrow_type_of(field: StructField) -> pa.DataType | None:
    """Return the Arrow type of a column; None if Arrow has none for it."""
    try:
        return to_arrow(StructType([field])).field(0).type
    except (PySparkException, TypeError):
        return None


def without_arrow_type(fields: Iterable[StructField]) -> str | None:
    """Describe the first column that Arrow has no type for; None if it has one for each."""
    for field in fields:
        if arrow_type_of(field) is None:
            return (
                f"the column {field.name!r} has the type {field.dataType.simpleString()}, which has no Arrow "
                "type; cast it, for example to a string"
            )
    return None


def key_types(frame: DataFrame, key_columns: Sequence[str]) -> list[pa.DataType]:
    """Return the Arrow types of the key columns."""
    return list(to_arrow(StructType([frame.schema[name] for name in key_columns])).types)


def fields_by_name(frame: DataFrame) -> dict[str, list[StructField]]:
    """Return the top-level columns by their `folded` names; several columns may share one."""
    fields: dict[str, list[StructField]] = {}
    for field in frame.schema.fields:
        fields.setdefault(folded(frame, field.name), []).append(field)
    return fields


def folded(frame: DataFrame, name: str) -> str:
    """Return a column name in the form in which Spark compares it, by default in lower case."""
    return name if frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true" else name.lower()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, without a full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")
