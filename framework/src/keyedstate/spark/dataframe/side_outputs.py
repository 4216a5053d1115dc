"""Side outputs: their columns, and one DataFrame for each output."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from keyedstate.errors import SideOutputError
from keyedstate.runtime import KeyedFunction
from keyedstate.runtime.functions.connected_inputs import input_of_side_output
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.side_outputs import MAIN, OUTPUT, check_name
from keyedstate.spark.routing import quoted
from keyedstate.spark.schema import distinct, parse_output


def declared_outputs(
    frame: DataFrame, schema: str | StructType, function: KeyedFunction, inputs: Sequence[StructType]
) -> tuple[StructType, OutputSchema, dict[str, OutputSchema]]:
    """Return the columns of an operator's output, and what checks the rows of the main and each side output.

    `schema` declares the main output; `inputs` are the columns of the function's inputs. Raises
    `OutputSchemaError` or `SideOutputNameError`.
    """
    main, checked = parse_output(frame.sparkSession, schema)
    if not function.side_outputs:
        return main, checked, {}
    made = StructType([StructField(OUTPUT, StringType(), nullable=False), StructField(MAIN, main)])
    sides = {}
    for name, columns in function.side_outputs.items():
        check_name(name)
        if columns is None:
            columns = inputs[input_of_side_output(function, name)]
        declared, sides[name] = parse_output(frame.sparkSession, columns, name)
        made.add(name, declared)
    return distinct(frame, made), checked, sides


class SplitOutputs(dict[str, DataFrame], AbstractContextManager["SplitOutputs"]):
    """The outputs of one run by name; made by `split`.  Use it in a ``with`` statement, or close it."""

    def __init__(self, out: DataFrame, names: Sequence[str]) -> None:
        super().__init__((name, out.where(out[OUTPUT] == name).select(f"{quoted(name)}.*")) for name in names)
        self._out = out

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the cached rows."""
        self._out.unpersist()


def split(out: DataFrame) -> SplitOutputs:
    """Return each output of an operator with side outputs as a DataFrame.

    The rows are computed once, now, and cached until the outputs are closed::

        def write(batch, epoch):
            with split(batch) as outputs:
                outputs["main"].write.mode("append").saveAsTable("departures")
                outputs["late"].write.mode("append").saveAsTable("late_departures")

    Parameters
    ----------
    out : DataFrame
        A batch one: that of a `foreachBatch` function, or an operator's result over a batch DataFrame.

    Raises
    ------
    SideOutputError
        For a streaming DataFrame, and for one without side outputs.
    """
    if not isinstance(out, DataFrame):
        raise SideOutputError(f"it is a {type(out).__name__} and no DataFrame")
    fields = {field.name: field.dataType for field in out.schema.fields}
    names = [name for name, type_ in fields.items() if isinstance(type_, StructType)]
    if OUTPUT not in fields or MAIN not in names:
        raise SideOutputError(f"it has the columns {', '.join(out.columns)}, and no side outputs")
    if out.isStreaming:
        raise SideOutputError(
            "it is a streaming one, and each output would run the state again; call split() in the function "
            "of foreachBatch"
        )
    cached = out.persist()
    try:
        # All rows, now: reading one output in part would leave the epoch half evaluated.
        cached.count()
    except BaseException:
        cached.unpersist()
        raise
    return SplitOutputs(cached, names)
