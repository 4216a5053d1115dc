"""Side outputs at the border to Spark: their columns, and several outputs from one DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from keyedstate.errors import OutputSchemaError, SideOutputError
from keyedstate.runtime import KeyedCoProcessFunction, KeyedFunction
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.side_outputs import MAIN, OUTPUT, check_name
from keyedstate.spark.routing import quoted
from keyedstate.spark.schema import distinct, parse_output


def declared_outputs(
    frame: DataFrame, schema: str | StructType, function: KeyedFunction, inputs: Sequence[StructType]
) -> tuple[StructType, OutputSchema, dict[str, OutputSchema]]:
    """Return what an operator puts out as Spark's type, and what checks the rows of each output.

    Parameters
    ----------
    frame : DataFrame
        Of the session that reads declarations.
    schema : str or StructType
        The columns of the rows that the function yields.
    function : KeyedFunction
    inputs : sequence of StructType
        The columns of its inputs.

    Raises
    ------
    OutputSchemaError, SideOutputNameError
    """
    main, checked = parse_output(frame.sparkSession, schema)
    if not function.side_outputs:
        return main, checked, {}
    made = StructType([StructField(OUTPUT, StringType(), nullable=False), StructField(MAIN, main)])
    sides = {}
    for name, columns in function.side_outputs.items():
        check_name(name)
        if columns is None:
            columns = _of_input(name, function, inputs)
        declared, sides[name] = parse_output(frame.sparkSession, columns, name)
        made.add(name, declared)
    return distinct(frame, made), checked, sides


def _of_input(name: str, function: KeyedFunction, inputs: Sequence[StructType]) -> StructType:
    places = function.side_inputs if isinstance(function, KeyedCoProcessFunction) else {name: 0}
    if name not in places:
        raise OutputSchemaError(
            f"the side output {name!r} of a function of two inputs does not say its columns"
        )
    return inputs[places[name]]


class SplitOutputs(Mapping[str, DataFrame]):
    """The outputs of one run by their names; made by `split`.  In a ``with`` statement, or to be closed."""

    def __init__(self, out: DataFrame, names: Sequence[str]) -> None:
        self._out = out
        self._frames = {name: out.where(out[OUTPUT] == name).select(f"{quoted(name)}.*") for name in names}

    def __getitem__(self, name: str) -> DataFrame:
        return self._frames[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._frames)

    def __len__(self) -> int:
        return len(self._frames)

    def __enter__(self) -> SplitOutputs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the rows that are held."""
        self._out.unpersist()


def split(out: DataFrame) -> SplitOutputs:
    """Return the outputs of an operator that has side outputs, each as a DataFrame of its own.

    The rows are made once, now, and held until the outputs are closed::

        def write(batch, epoch):
            with split(batch) as outputs:
                outputs["main"].write.mode("append").saveAsTable("departures")
                outputs["late"].write.mode("append").saveAsTable("late_departures")

    Parameters
    ----------
    out : DataFrame
        A batch one: that of a `foreachBatch` function, or what an operator made of a batch DataFrame.

    Raises
    ------
    SideOutputError
        For a streaming one, of which each output would be a query that runs the state again, and for one
        without side outputs.
    """
    if not isinstance(out, DataFrame):
        raise SideOutputError(f"it is a {type(out).__name__} and no DataFrame")
    fields = {field.name: field.dataType for field in out.schema.fields}
    names = [name for name, type_ in fields.items() if isinstance(type_, StructType)]
    if OUTPUT not in fields or MAIN not in names:
        raise SideOutputError(f"it has the columns {', '.join(out.columns)}, and no column of outputs")
    if out.isStreaming:
        raise SideOutputError(
            "it is a streaming one, and each output would run the state again; call split() in the function "
            "of foreachBatch"
        )
    held = out.persist()
    try:
        # Every row, at once: an output that is read in part would leave an epoch half evaluated.
        held.count()
    except BaseException:
        held.unpersist()
        raise
    return SplitOutputs(held, names)
