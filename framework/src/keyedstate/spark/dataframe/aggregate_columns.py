"""Declared aggregates at the border to Spark: which columns they read, and what they put out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from keyedstate.aggregates import Aggregate, Aggregation
from keyedstate.errors import InvalidAggregateError
from keyedstate.spark.dataframe.state_columns import spark_type_of
from keyedstate.spark.routing import quoted
from keyedstate.spark.schema import arrow_types, folded, input_column_of
from keyedstate.state import Ttl


def aggregation_of(
    frame: DataFrame,
    key_columns: Sequence[str],
    aggregates: Mapping[str, Aggregate],
    ttl: Ttl | None,
    time_columns: Sequence[str],
) -> tuple[DataFrame, Aggregation, StructType]:
    """Return the columns that are needed, the function that reads them, and what it puts out.

    Raises
    ------
    InvalidAggregateError
    """
    taken = {folded(frame, name): f"a key column is named {name!r}" for name in key_columns}
    resolved: dict[str, Aggregate] = {}
    for name, aggregate in aggregates.items():
        if folded(frame, name) in taken:
            raise InvalidAggregateError(name, f"{taken[folded(frame, name)]} already; rename one of them")
        taken[folded(frame, name)] = f"an aggregate is named {name!r}"
        columns = tuple(input_column_of(frame, name, column) for column in aggregate.columns)
        resolved[name] = replace(aggregate, columns=columns)
    read = [column for aggregate in resolved.values() for column in aggregate.columns]
    needed = list(dict.fromkeys([*key_columns, *read, *time_columns]))
    function = Aggregation(key_columns, arrow_types(frame, needed), resolved, ttl)
    by_name = {field.name: field for field in frame.schema.fields}
    keys = [by_name[name] for name in key_columns]
    results = [
        StructField(field.name, spark_type_of(field.type), field.nullable)
        for field in list(function.output)[len(keys) :]
    ]
    return frame.select(*(frame[quoted(name)] for name in needed)), function, StructType([*keys, *results])
