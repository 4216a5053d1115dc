"""Interval joins at the border to Spark: which columns they put out."""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from keyedstate.joins import joined_columns
from keyedstate.runtime.two_inputs import ConnectedInputs
from keyedstate.spark.schema import distinct, folded, parse_output


def join_output_type(
    left: DataFrame, right: DataFrame, inputs: ConnectedInputs, declared: object, *, by_itself: bool
) -> StructType:
    """Return the columns of the rows that a join puts out.

    Parameters
    ----------
    left, right : DataFrame
    inputs : ConnectedInputs
        The same two, as Arrow has their columns.
    declared : object
        The columns that the user declared for the rows of a function.
    by_itself : bool
        Whether the join makes the rows, and no function does.

    Raises
    ------
    OutputSchemaError
        For declared columns that cannot be used, and where two have one name.
    """
    if by_itself:
        columns = joined_columns(inputs, partial(folded, left))
        main = StructType(
            [_named(right if each.of_right else left, each.place, each.name) for each in columns]
        )
        return distinct(left, main)
    main, _ = parse_output(left.sparkSession, declared)  # type: ignore[arg-type] # it checks what it is given
    return main


def _named(frame: DataFrame, place: int, name: str) -> StructField:
    found = frame.schema.fields[place]
    return StructField(name, found.dataType, found.nullable)
