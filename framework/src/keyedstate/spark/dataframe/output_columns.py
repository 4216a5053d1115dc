"""The output columns of windowed functions and joins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from keyedstate.joins import JoinedColumn, JoinFunction, RowKindColumn, WindowColumn
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs
from keyedstate.spark.dataframe.state_columns import spark_type_of
from keyedstate.spark.schema import distinct, folded, parse_output, to_arrow
from keyedstate.windows import WINDOW_END, WINDOW_START, WindowOutput


def window_output_type(frame: DataFrame, key_columns: Sequence[str], output: WindowOutput) -> StructType:
    """Return the columns of the rows that a windowed function yields; raises `OutputSchemaError`."""
    fields = {field.name: field for field in frame.schema.fields}
    columns = [field for name, field in fields.items() if name not in key_columns]
    if callable(output.schema):
        results = output.schema(to_arrow(frame.schema), key_columns)
        columns = [StructField(field.name, spark_type_of(field.type), field.nullable) for field in results]
    elif output.schema is not None or not output.with_window:
        columns = parse_output(frame.sparkSession, output.schema)[0].fields
    if not output.with_window:
        return StructType(columns)
    bounds = [StructField(name, TimestampType()) for name in (WINDOW_START, WINDOW_END)]
    keys = [fields[name] for name in key_columns]
    return distinct(frame, StructType([*keys, *(bounds if output.bounded else []), *columns]))


def ranked_output_type(frame: DataFrame, output: pa.Schema) -> StructType:
    """Return the columns of chosen rows: those of the DataFrame, and columns that were added."""
    fields = {field.name: field for field in frame.schema.fields}
    columns = [
        fields.get(field.name) or StructField(field.name, spark_type_of(field.type), field.nullable)
        for field in output
    ]
    return distinct(frame, StructType(columns))


def join_output_type(
    frames: Sequence[DataFrame], inputs: ConnectedInputs, declared: object, function: JoinFunction
) -> StructType:
    """Return the columns of the rows of a join; raises `OutputSchemaError`.

    They are the declared ones of the user's function, unless the join makes the rows by itself.
    """
    made = function.output_columns(inputs, partial(folded, frames[0]))
    if made is None:
        return parse_output(frames[0].sparkSession, declared)[0]
    return joined_type(frames, made)


def joined_type(
    frames: Sequence[DataFrame], made: Sequence[JoinedColumn | RowKindColumn | WindowColumn]
) -> StructType:
    """Return the types of the columns of joined rows; raises `OutputSchemaError`."""
    columns = StructType()
    for each in made:
        if isinstance(each, WindowColumn):
            columns.add(StructField(each.name, TimestampType()))
            continue
        if isinstance(each, RowKindColumn):
            columns.add(StructField(each.name, StringType(), nullable=False))
            continue
        field = frames[each.side].schema.fields[each.place]
        columns.add(StructField(each.name, field.dataType, field.nullable or each.optional))
    return distinct(frames[0], columns)
