"""Declared aggregates on a DataFrame: the columns that they read and return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from keyedstate.aggregates import Aggregate, Aggregation, RunningAggregation
from keyedstate.aggregates.changes import aggregation
from keyedstate.errors import InvalidAggregateError, did_you_mean
from keyedstate.spark.dataframe.state_columns import spark_type_of
from keyedstate.spark.routing import quoted
from keyedstate.spark.schema import distinct, fields_by_name, folded, to_arrow, without_arrow_type
from keyedstate.state import Ttl


def aggregation_of(
    frame: DataFrame,
    key_columns: Sequence[str],
    aggregates: Mapping[str, Aggregate],
    ttl: Ttl | None,
    time_columns: Sequence[str],
    row_kinds: tuple[str | None, str | None],
) -> tuple[DataFrame, Aggregation, StructType]:
    """Return the needed columns of a DataFrame, the function that reads them, and the columns of its output.

    `row_kinds` are the columns of the row kinds of the rows, and of the results, where they have some.
    Raises `InvalidAggregateError`.
    """
    taken = {folded(frame, name): f"a key column is named {name!r}" for name in key_columns}
    resolved: dict[str, Aggregate] = {}
    for name, aggregate in aggregates.items():
        if folded(frame, name) in taken:
            raise InvalidAggregateError(name, f"{taken[folded(frame, name)]} already; rename one of them")
        taken[folded(frame, name)] = f"an aggregate is named {name!r}"
        resolved[name] = aggregate.over(frame.columns, partial(_input_column, frame, name))
    read = [column for aggregate in resolved.values() for column in aggregate.read]
    read_kind, shown_kind = row_kinds
    row_kind = read_kind if shown_kind is None else shown_kind
    if row_kind is not None and folded(frame, row_kind) in taken:
        raise InvalidAggregateError(row_kind, f"{taken[folded(frame, row_kind)]} already; rename one of them")
    kinds = [] if read_kind is None else [read_kind]
    needed = list(dict.fromkeys([*key_columns, *read, *time_columns, *kinds]))
    read_fields = [frame.schema[name] for name in needed]
    fault = without_arrow_type(read_fields)
    if fault is not None:
        raise InvalidAggregateError(None, fault)
    types = dict(zip(needed, to_arrow(StructType(read_fields)).types, strict=True))
    function = aggregation(key_columns, types, resolved, ttl, row_kinds)
    results = [
        StructField(field.name, spark_type_of(field.type), field.nullable)
        for field in list(function.output)[len(key_columns) :]
    ]
    output = StructType([*(frame.schema[name] for name in key_columns), *results])
    return frame.select(*(frame[quoted(name)] for name in needed)), function, output


def running_of(
    frame: DataFrame, key_columns: Sequence[str], aggregates: Mapping[str, Aggregate], ttl: Ttl | None
) -> tuple[RunningAggregation, StructType]:
    """Return the function that adds aggregates to the rows of a DataFrame, and the columns of its output.

    Raises `InvalidAggregateError`.
    """
    taken = set(fields_by_name(frame))
    resolved: dict[str, Aggregate] = {}
    for name, aggregate in aggregates.items():
        if folded(frame, name) in taken:
            raise InvalidAggregateError(name, "the rows have a column of that name; give it another one")
        taken.add(folded(frame, name))
        resolved[name] = aggregate.over(frame.columns, partial(_input_column, frame, name))
    fault = without_arrow_type(frame.schema.fields)
    if fault is not None:
        raise InvalidAggregateError(None, fault)
    function = RunningAggregation(to_arrow(frame.schema), key_columns, resolved, ttl)
    results = [
        StructField(field.name, spark_type_of(field.type), field.nullable)
        for field in list(function.output)[len(frame.columns) :]
    ]
    return function, distinct(frame, StructType([*frame.schema.fields, *results]))


def _input_column(frame: DataFrame, aggregate: str, name: str) -> str:
    """Return the name that the DataFrame has for a column which an aggregate reads."""
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
