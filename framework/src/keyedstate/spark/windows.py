"""Windows at the border to Spark: which columns they put out, and several outputs from one DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from keyedstate.runtime.windows import MAIN, OUTPUT, WINDOW_END, WINDOW_START, WindowOutput
from keyedstate.spark.columns import spark_type_of
from keyedstate.spark.errors import OutputDeclarationError, SideOutputError
from keyedstate.spark.routing import quoted
from keyedstate.spark.schema import folded, parse_output, to_arrow
from keyedstate.window import Global, InvalidWindowError
from keyedstate.window.definition import WindowDefinition


def check_event_time(definition: WindowDefinition, time: str | None) -> None:
    """Refuse windows in event time over rows that have none.

    Raises
    ------
    InvalidWindowError
    """
    assigner = definition.assigner
    if time is None and assigner.is_event_time and not isinstance(assigner, Global):
        raise InvalidWindowError(
            repr(assigner),
            "it assigns rows by their event time, and no column is named",
            "Name it, as in window(..., time='ts', delay='10 minutes'), or use processing_time=True.",
        )


def output_type(frame: DataFrame, key_columns: Sequence[str], output: WindowOutput) -> StructType:
    """Return the columns that a windowed function puts out.

    Raises
    ------
    OutputDeclarationError
        For declared columns that cannot be used, and where two have one name.
    """
    if not output.sides:
        return _main(frame, key_columns, output)
    sides = [
        StructField(name, frame.schema if schema is None else _parsed(frame, schema))
        for name, schema in output.sides.items()
    ]
    tag = StructField(OUTPUT, StringType(), nullable=False)
    main = StructField(MAIN, _main(frame, key_columns, output))
    return _distinct(frame, StructType([tag, main, *sides]))


def _main(frame: DataFrame, key_columns: Sequence[str], output: WindowOutput) -> StructType:
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
    return _distinct(frame, StructType([*keys, *(bounds if output.bounded else []), *columns]))


def _parsed(frame: DataFrame, schema: object) -> StructType:
    declared, _ = parse_output(frame.sparkSession, schema)  # type: ignore[arg-type] # it checks what it is given
    return declared


def _distinct(frame: DataFrame, columns: StructType) -> StructType:
    names = [folded(frame, name) for name in columns.names]
    for name in names:
        if names.count(name) > 1:
            raise OutputDeclarationError(
                columns.simpleString(), f"two columns are named {name!r}; rename one"
            )
    return columns


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
    """Return the outputs of windows that have side outputs, each as a DataFrame of its own.

    The rows are made once, now, and held until the outputs are closed::

        def write(batch, epoch):
            with split(batch) as outputs:
                outputs["main"].write.mode("append").saveAsTable("departures")
                outputs["late"].write.mode("append").saveAsTable("late_departures")

    Parameters
    ----------
    out : DataFrame
        A batch one: that of a `foreachBatch` function, or what windows over a batch DataFrame gave.

    Raises
    ------
    SideOutputError
        For a streaming one, of which each output would be a query that runs the state anew, and for one
        without side outputs.
    """
    fields = {field.name: field.dataType for field in out.schema.fields}
    names = [name for name, type_ in fields.items() if isinstance(type_, StructType)]
    if OUTPUT not in fields or MAIN not in names:
        raise SideOutputError(f"it has the columns {', '.join(out.columns)}, and no outputs to be told apart")
    if out.isStreaming:
        raise SideOutputError(
            "it is a streaming one, and each output would run the state anew; call split() in the function "
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
