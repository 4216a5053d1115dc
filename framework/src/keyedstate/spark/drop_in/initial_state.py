"""The initial state of an operator: rows of a batch DataFrame, which reach the tasks as rows of the input do.

A column of their own has them; the other columns are null, except those of the key.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from keyedstate.errors import InitialStateError
from keyedstate.spark.drop_in.processor import INITIAL_COLUMN
from keyedstate.spark.routing import quoted


def with_initial_state(
    rows: DataFrame, key_columns: list[str], state: DataFrame, state_keys: list[str]
) -> tuple[DataFrame, DataFrame | None]:
    """Return the input with the column of the initial state, and the rows of that, for a streaming input.

    A batch input has them already.

    Raises
    ------
    InitialStateError
        For a streaming DataFrame, and for keys of other types than those of the input.
    """
    if state.isStreaming:
        raise InitialStateError("it is streaming; read it as a batch")
    keys = dict(zip(key_columns, state_keys, strict=False))
    types = [
        [frame.schema[name].dataType for name in names]
        for frame, names in ((rows, key_columns), (state, state_keys))
    ]
    if types[0] != types[1]:
        shown = [", ".join(each.simpleString() for each in of_keys) for of_keys in types]
        raise InitialStateError(
            f"its keys have the types {shown[1]} and those of the input {shown[0]}; group both alike"
        )
    given = f.struct(*(state[quoted(name)] for name in state.columns))
    columns = [
        state[quoted(keys[field.name])].alias(field.name)
        if field.name in keys
        else f.lit(None).cast(field.dataType).alias(field.name)
        for field in rows.schema.fields
    ]
    state_rows = state.select(*columns, given.alias(INITIAL_COLUMN))
    declared = state_rows.schema[INITIAL_COLUMN].dataType
    rows = rows.withColumn(INITIAL_COLUMN, f.lit(None).cast(declared))
    return (rows, state_rows) if rows.isStreaming else (rows.unionByName(state_rows), None)
