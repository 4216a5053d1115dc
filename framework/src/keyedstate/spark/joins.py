"""Interval joins at the border to Spark: which columns they put out."""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from keyedstate.runtime import ConnectedInputs
from keyedstate.runtime.joins import (
    LATE_LEFT,
    LATE_RIGHT,
    MISSING_LEFT,
    MISSING_RIGHT,
    JoinOutput,
    joined_columns,
)
from keyedstate.runtime.windows import MAIN, OUTPUT
from keyedstate.spark.errors import OutputDeclarationError
from keyedstate.spark.schema import folded, parse_output


def join_output_type(
    left: DataFrame, right: DataFrame, inputs: ConnectedInputs, output: JoinOutput, *, by_itself: bool
) -> StructType:
    """Return the columns that a join puts out.

    Parameters
    ----------
    left, right : DataFrame
    inputs : ConnectedInputs
        The same two, as Arrow has their columns.
    output : JoinOutput
    by_itself : bool
        Whether the join makes the rows, and no function does.

    Raises
    ------
    OutputDeclarationError
        For declared columns that cannot be used, and where two have one name.
    """
    if by_itself:
        columns = joined_columns(inputs, partial(folded, left))
        main = StructType(
            [_named(right if each.of_right else left, each.place, each.name) for each in columns]
        )
        _check_distinct(left, main)
    else:
        main, _ = parse_output(left.sparkSession, output.schema)  # type: ignore[arg-type] # it checks what it is given
    if not output.sides:
        return main
    own = {LATE_LEFT: left, MISSING_LEFT: left, LATE_RIGHT: right, MISSING_RIGHT: right}
    tag = StructField(OUTPUT, StringType(), nullable=False)
    made = StructType([tag, StructField(MAIN, main)])
    for name, schema in output.sides.items():
        columns_of_side = own[name].schema if name in own else parse_output(left.sparkSession, schema)[0]  # type: ignore[arg-type]
        made.add(name, columns_of_side)
    _check_distinct(left, made)
    return made


def _named(frame: DataFrame, place: int, name: str) -> StructField:
    found = frame.schema.fields[place]
    return StructField(name, found.dataType, found.nullable)


def _check_distinct(frame: DataFrame, columns: StructType) -> None:
    names = [folded(frame, name) for name in columns.names]
    for name in names:
        if names.count(name) > 1:
            raise OutputDeclarationError(
                columns.simpleString(), f"two columns are named {name!r}; rename one"
            )
