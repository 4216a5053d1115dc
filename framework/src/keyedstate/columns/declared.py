"""The columns of rows: declared in any form that a user has, converted to an Arrow schema."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from keyedstate.errors import OutputSchemaError, UnsupportedTypeError
from keyedstate.runtime.output import OutputSchema
from keyedstate.types import TypeSerializer, infer
from keyedstate.types.inference.schemas import is_spark_type
from keyedstate.types.inference.spark_syntax import SparkSyntaxError, parse_schema


def output_schema(declared: object, side: str | None = None) -> OutputSchema:
    """Return what checks the rows of an output, or of a side output, with declared columns.

    Raises
    ------
    OutputSchemaError
    """
    try:
        return OutputSchema(arrow_schema(declared), side)
    except OutputSchemaError as error:
        raise OutputSchemaError(error.reason, declared, side) from error


def arrow_schema(declared: object) -> pa.Schema:
    """Return the Arrow schema of declared columns, as Spark's batches have it.

    Parameters
    ----------
    declared : str, mapping, pyarrow.Schema or StructType
        A string in Spark's syntax, ``"user string, views long not null"``.  A mapping gives each column a
        type of `keyedstate.types` or anything that `infer` takes; its columns may all be null.

    Raises
    ------
    OutputSchemaError
    """
    if isinstance(declared, pa.Schema):
        return declared
    if isinstance(declared, str):
        try:
            return parse_schema(declared)
        except SparkSyntaxError as error:
            raise OutputSchemaError(str(error)) from error
    if isinstance(declared, Mapping):
        return pa.schema([pa.field(name, _column_type(name, type_)) for name, type_ in declared.items()])
    if is_spark_type(declared) and type(declared).__name__ == "StructType":
        try:
            return of_struct_type(declared)
        except Exception as error:  # PySpark's errors are not those of one class in all of its versions
            raise OutputSchemaError(f"{error}".rstrip(".")) from error
    raise OutputSchemaError(f"it is a {type(declared).__name__}")


def of_struct_type(declared: Any) -> pa.Schema:
    """Return a ``StructType`` as Arrow's schema, with instants in UTC on every PySpark."""
    # Only a program that has imported PySpark has a StructType.
    from pyspark.sql.pandas.types import to_arrow_schema

    # Up to 4.2 PySpark always writes UTC; later versions have a parameter.
    arguments: dict[str, Any] = {}
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        arguments["timezone"] = "UTC"
    return to_arrow_schema(declared, **arguments)


def _column_type(name: object, declared: object) -> pa.DataType:
    if not isinstance(name, str):
        raise OutputSchemaError(f"{name!r} is no name of a column")
    if isinstance(declared, pa.DataType):
        return declared
    try:
        serializer: TypeSerializer[Any] = infer(declared)
    except UnsupportedTypeError as error:
        raise OutputSchemaError(f"the column {name!r}: {str(error).rstrip('.')}") from error
    return serializer.arrow_type
