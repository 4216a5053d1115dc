"""Keys as `DataFrame.groupBy` takes them: names, lists of names, columns and expressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField

from keyedstate.errors import KeyColumnError, UnsupportedTypeError, did_you_mean
from keyedstate.keygroups import KEY_GROUP_COLUMN
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.spark.routing import quoted
from keyedstate.spark.schema import arrow_type_of, fields_by_name, first_line, folded, without_arrow_type
from keyedstate.spark.session import is_connect

#: What `groupBy` takes.
KeyColumns: TypeAlias = "str | Column | Sequence[str | Column]"


def with_key_columns(frame: DataFrame, keys: Sequence[KeyColumns]) -> tuple[DataFrame, list[str]]:
    """Return the rows with a column for each part of the key, and the names of these columns.

    An expression becomes a column under the name that `groupBy` would give it. A list must be the only
    element.

    Raises `KeyColumnError` for no key, a duplicate or ambiguous one, a type that cannot be a key, an
    expression that Spark refuses or that has the name of a column, and rows that are no DataFrame.
    """
    if not isinstance(frame, DataFrame):
        raise KeyColumnError(
            None,
            f"they are a {type(frame).__name__} and no DataFrame of Spark; make one with createDataFrame()",
        )
    if len(keys) == 1 and isinstance(keys[0], (list, tuple)):
        keys = keys[0]
    if not keys:
        raise KeyColumnError(None, "no key column was given; name at least one: keyed(df, 'user_id')")
    fields = fields_by_name(frame)
    parts = [_part_of(frame, fields, key) for key in keys]
    names = [folded(frame, part.name) for part, _ in parts]
    for (part, _), name in zip(parts, names, strict=True):
        if names.count(name) > 1:
            raise KeyColumnError(part.name, f"the column {part.name!r} is named twice; name each once")
    for part, expression in parts:
        if expression is not None and folded(frame, part.name) in fields:
            raise KeyColumnError(
                part.name,
                f"an expression is named {part.name!r}, as a column of the DataFrame is; give it another "
                "name with .alias()",
            )
        _check_type(part)
    if any(folded(frame, name) == folded(frame, KEY_GROUP_COLUMN) for name in frame.columns):
        raise KeyColumnError(
            KEY_GROUP_COLUMN,
            f"the DataFrame has a column {KEY_GROUP_COLUMN!r}, a name that keyedstate needs for itself; "
            "drop or rename it",
        )
    computed = [expression.alias(part.name) for part, expression in parts if expression is not None]
    return (frame.select("*", *computed) if computed else frame), [part.name for part, _ in parts]


def _part_of(
    frame: DataFrame, fields: dict[str, list[StructField]], key: Any
) -> tuple[StructField, Column | None]:
    """Return one part of the key as a column, and its expression if it has to be computed."""
    if isinstance(key, str):
        found = fields.get(folded(frame, key), [])
        if len(found) > 1:
            raise KeyColumnError(key, f"the DataFrame has {len(found)} columns {key!r}; rename all but one")
        if found:
            return found[0], None
        try:
            return _grouped(frame, f.col(key))
        except PySparkException:
            hint = did_you_mean(key, frame.columns) or f" It has the columns {', '.join(frame.columns)}"
            raise KeyColumnError(key, f"the DataFrame has no column {key!r}.{hint}") from None
    if not isinstance(key, Column):
        raise KeyColumnError(
            None, f"a key is given as {key!r}; give names and columns as to groupBy(), or one list of these"
        )
    try:
        return _grouped(frame, key)
    except PySparkException as error:
        raise KeyColumnError(None, f"Spark cannot group by {key}: {first_line(error)}") from error


def _grouped(frame: DataFrame, expression: Column) -> tuple[StructField, Column | None]:
    """Return the column that `groupBy` makes of an expression, and the expression if it must be computed."""
    grouped = frame.groupBy(expression).agg(f.count(f.lit(1)))
    fields = grouped.schema.fields
    if len(fields) != 2:
        raise KeyColumnError(None, f"{expression} stands for {len(fields) - 1} columns; name each")
    if is_connect(frame.sparkSession):
        return _column_of(frame, expression, fields[0])
    part = _analyzed(grouped).aggregateExpressions().head()
    if part.getClass().getSimpleName() == "AttributeReference":
        output = _analyzed(frame).output()
        ids = [output.apply(place).exprId().id() for place in range(output.size())]
        if part.exprId().id() in ids:
            field = frame.schema.fields[ids.index(part.exprId().id())]
            if frame.columns.count(field.name) > 1:
                raise KeyColumnError(
                    field.name, f"the DataFrame has several columns {field.name!r}; rename all but one"
                )
            return field, None
    return fields[0], expression


def _column_of(
    frame: DataFrame, expression: Column, grouped: StructField
) -> tuple[StructField, Column | None]:
    """Return what `_grouped` does, for a DataFrame of Spark Connect, whose plan only the server knows."""
    named = fields_by_name(frame).get(folded(frame, grouped.name), [])
    if len(named) == 1:
        column = frame.select(frame[quoted(named[0].name)])
        if frame.select(expression).sameSemantics(column):
            return named[0], None
    return grouped, expression


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _check_type(field: StructField) -> None:
    fault = without_arrow_type([field])
    if fault is not None:
        raise KeyColumnError(field.name, fault)
    described = f"the column {field.name!r} has the type {field.dataType.simpleString()}"
    try:
        key_serializer_for([arrow_type_of(field)])
    except UnsupportedTypeError as error:
        raise KeyColumnError(field.name, f"{described}: {str(error).rstrip('.')}") from error
    if isinstance(field.dataType, StringType) and "collate" in field.dataType.simpleString():
        raise KeyColumnError(
            field.name,
            f"{described}: strings that differ would be one key to Spark and two to Python; key by "
            "lower(column), say, cast to a plain string",
        )
