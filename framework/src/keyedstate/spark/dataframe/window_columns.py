"""Windows at the border to Spark: which columns they put out."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType, TimestampType

from keyedstate.errors import InvalidWindowError
from keyedstate.spark.dataframe.state_columns import spark_type_of
from keyedstate.spark.schema import distinct, parse_output, to_arrow
from keyedstate.windows import WINDOW_END, WINDOW_START, Global, WindowOutput
from keyedstate.windows.declaration.definition import WindowDefinition


def check_event_time(definition: WindowDefinition, *, known: bool) -> None:
    """Refuse windows in event time over rows that have none.

    Raises
    ------
    InvalidWindowError
    """
    assigner = definition.assigner
    if not known and assigner.is_event_time and not isinstance(assigner, Global):
        raise InvalidWindowError(
            repr(assigner),
            "it assigns rows by their event time, and they have none",
            "Name the column, as in keyed(..., event_time=EventTime('ts', delay='10 minutes')), or use "
            "processing_time=True.",
        )


def output_type(frame: DataFrame, key_columns: Sequence[str], output: WindowOutput) -> StructType:
    """Return the columns of the rows that a windowed function yields.

    Raises
    ------
    OutputSchemaError
        For declared columns that cannot be used, and where two have one name.
    """
    fields = {field.name: field for field in frame.schema.fields}
    columns = [field for name, field in fields.items() if name not in key_columns]
    if callable(output.schema):
        results = output.schema(to_arrow(frame.schema), key_columns)
        columns = [StructField(field.name, spark_type_of(field.type), field.nullable) for field in results]
    elif output.schema is not None or not output.with_window:
        columns = list(_parsed(frame, output.schema).fields)
    if not output.with_window:
        return StructType(columns)
    bounds = [StructField(name, TimestampType()) for name in (WINDOW_START, WINDOW_END)]
    keys = [fields[name] for name in key_columns]
    return distinct(frame, StructType([*keys, *(bounds if output.bounded else []), *columns]))


def _parsed(frame: DataFrame, schema: object) -> StructType:
    declared, _ = parse_output(frame.sparkSession, schema)  # type: ignore[arg-type] # it checks what it is given
    return declared
