"""`transform_with_state` and `transform_with_state_in_pandas`: Spark's methods as functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
from pyspark.errors import IllegalArgumentException, PySparkRuntimeError
from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType, _parse_datatype_string

from keyedstate.errors import ClassicSparkRequiredError, EventTimeError, InitialStateError
from keyedstate.options import CHECKPOINT_DIR
from keyedstate.runtime.functions.groups import GroupedFunction
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.timers import TimeDomain
from keyedstate.spark.checkpoint_location import record_checkpoint_locations
from keyedstate.spark.dataframe.keys import with_key_columns
from keyedstate.spark.dataframe.time_columns import DELAY_MS, event_time_of
from keyedstate.spark.drop_in.frames import PandasProcessor
from keyedstate.spark.drop_in.handle import declared_schemas, time_domain_of
from keyedstate.spark.drop_in.processor import INITIAL_COLUMN, ProcessorFunction
from keyedstate.spark.drop_in.rows import RowProcessor
from keyedstate.spark.plan.configuration import read_configuration
from keyedstate.spark.plan.operator_plan import KeyedRows, task_of
from keyedstate.spark.plan.source_files import new_source_file
from keyedstate.spark.routing import quoted
from keyedstate.spark.schema import parse_output
from keyedstate.spark.session import is_connect
from keyedstate.spark.task.arrow_batches import MAX_RECORDS, UNLIMITED, bytes_per_batch
from keyedstate.time import EventTime

#: Begins the name under which Spark shows an operator, and its uid, before its number in the query.
_NAME = "transform_with_state"
#: The names under which operators are shown in a plan.
_SHOWN_NAME = re.compile(rb"(?:transform|apply_in_pandas)_with_state_([0-9a-f]{16})")
_OUTPUT_MODES = ("append", "complete", "update")
#: How often processing time advances where no row comes.
_BEAT_MS = 1_000


class SparkEventTime(EventTime):
    """Event time with Spark's watermark: a millisecond later than Flink's, which is exclusive."""

    def __post_init__(self) -> None:
        """Allow what the millisecond makes of a delay of 0."""

    @property
    def delay_ms(self) -> int:
        """The delay in milliseconds."""
        return (super().delay_ms or 0) - 1


def transform_with_state(
    grouped: GroupedData,
    statefulProcessor: StatefulProcessor,
    outputStructType: StructType | str,
    outputMode: str,
    timeMode: str,
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
) -> DataFrame:
    """Run a processor over rows, as Spark's ``GroupedData.transformWithState`` does, on keyedstate.

    Parameters
    ----------
    grouped : GroupedData
        ``df.groupBy("key")``.
    statefulProcessor, outputStructType, outputMode, timeMode, initialState, eventTimeColumnName
        As Spark's.

    Returns
    -------
    DataFrame
        Streaming if the input is.  The state is stored at the checkpoint location of the query or, where the
        option ``checkpoint.dir`` is set, there, under the id of the query.

    Raises
    ------
    IllegalArgumentException
        For an unknown output or time mode.
    PySparkRuntimeError
        For states that Spark refuses, too; raised here, because ``init`` runs on the driver now.
    InitialStateError
        For an initial state that is streaming or grouped by other types.
    KeyColumnError
        For an expression with the name of a column, and for types that cannot be a key.
    ClassicSparkRequiredError
        On Spark Connect, for a streaming DataFrame without the option ``checkpoint.dir``.
    EventTimeError
        For an event time of the output where the input has no watermark.
    """
    operator = _Operator(grouped, statefulProcessor, outputStructType, outputMode, timeMode)
    return operator.run(RowProcessor, initialState, eventTimeColumnName)


def transform_with_state_in_pandas(
    grouped: GroupedData,
    statefulProcessor: StatefulProcessor,
    outputStructType: StructType | str,
    outputMode: str,
    timeMode: str,
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
) -> DataFrame:
    """Run a processor over pandas frames, as Spark's ``transformWithStateInPandas``, on keyedstate.

    Parameters, result and errors are those of `transform_with_state`.
    """
    operator = _Operator(grouped, statefulProcessor, outputStructType, outputMode, timeMode)
    make = partial(PandasProcessor, **pandas_settings(operator.spark))
    return operator.run(make, initialState, eventTimeColumnName)


def pandas_settings(spark: SparkSession) -> dict[str, Any]:
    """Return what Spark's settings say about pandas frames, as `PandasProcessor` takes it."""
    conf = spark.conf
    max_records = int(conf.get(MAX_RECORDS) or 0)
    return {
        "max_records": max_records if max_records > 0 else 2**31 - 1,
        "max_bytes": bytes_per_batch(spark) or UNLIMITED,
        "by_name": conf.get("spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName") != "false",
        "safe": conf.get("spark.sql.execution.pandas.convertToArrowArraySafely") == "true",
    }


class _Operator:
    """The arguments of one call."""

    def __init__(
        self,
        grouped: GroupedData,
        processor: StatefulProcessor,
        output: StructType | str,
        output_mode: str,
        time_mode: str,
    ) -> None:
        self._time_domain = time_domain_of(time_mode)
        if output_mode.lower() not in _OUTPUT_MODES:
            raise IllegalArgumentException(
                f"Unknown output mode {output_mode}. Accepted output modes are 'append', 'complete', 'update'"
            )
        self._frame = frame_of(grouped, _NAME)
        self.spark = self._frame.sparkSession
        self._keys = key_columns_of(grouped)
        self._processor = processor
        schema = parse_fields(output) if isinstance(output, str) else output
        self._output, self._checked = parse_output(self.spark, schema)

    def run(
        self,
        make: Callable[..., ProcessorFunction],
        initial_state: GroupedData | None,
        event_time_column: str,
    ) -> DataFrame:
        rows, key_columns = with_key_columns(self._frame, self._keys)
        first_rows = None
        if initial_state is not None:
            state_rows, state_keys = with_key_columns(initial_state._df, key_columns_of(initial_state))
            given = initial_state._df.columns
            rows, first_rows = _with_initial_state(rows, key_columns, state_rows, state_keys, given)
        # Spark runs init() in another process: the processor itself stays as it is.
        on_driver = cloudpickle.loads(cloudpickle.dumps(self._processor))
        schemas = declared_schemas(on_driver.init, self._time_domain, parse_fields)
        on_driver.close()
        function = make(
            self._processor,
            self._time_domain,
            key_columns,
            self._checked.schema,
            schemas,
            event_time_column or None,
            computed_keys(self._frame, key_columns),
        )
        found = event_time_of(rows, None)
        out = output_of(_NAME, function, rows, key_columns, self._output, self._checked, first_rows)
        if not event_time_column:
            return out
        if found is None or event_time_column not in out.columns:
            raise EventTimeError(
                event_time_column,
                "the output has an event time if it has that column and the input a watermark",
            )
        return _with_event_time(out, event_time_column, found.delay_ms or 0)


def output_of(
    name: str,
    function: GroupedFunction,
    rows: DataFrame,
    key_columns: list[str],
    output: StructType,
    checked: OutputSchema,
    first_rows: DataFrame | None = None,
) -> DataFrame:
    """Return the output of a function of the user over rows, with its state at the location of the query.

    Parameters
    ----------
    name : str
        Begins the name under which Spark shows the operator, and its uid.
    output, checked
        The columns, as `parse_output` takes and returns them.
    first_rows : DataFrame, optional
        Those of the initial state.
    """
    found = event_time_of(rows, None)
    event_times = () if found is None else (SparkEventTime(found.column, delay=found.delay),)
    in_processing_time = function.time_domain is TimeDomain.PROCESSING_TIME
    in_event_time = function.time_domain is TimeDomain.EVENT_TIME and bool(event_times)
    connect = is_connect(rows.sparkSession)
    uid = name.replace("_", "-") if rows.isStreaming else None
    if uid is not None and connect:
        uid = f"{uid}-{_operators_before(rows)}"
    keyed_rows = KeyedRows(
        rows,
        key_columns,
        uid,
        None,
        # A client of Spark Connect receives no watermark.
        interval_ms=_BEAT_MS if in_processing_time or (in_event_time and connect) else None,
        event_times=event_times,
        location_of_query=True,
        time_of_query=in_processing_time,
        watermark_file=new_source_file() if in_event_time and not connect else None,
        first_rows=first_rows,
    )
    if rows.isStreaming and not connect:
        record_checkpoint_locations(rows.sparkSession)
    plan, routed = keyed_rows.planned(function, checked, {}, keeps_state=True)
    # By the id in the name its tasks know which operator of the query it is.
    shown = name if plan.acknowledging is None else f"{name}_{plan.acknowledging.operator_id}"
    return routed.mapInArrow(task_of(plan, shown), output)


def frame_of(grouped: GroupedData, name: str) -> DataFrame:
    """Return the DataFrame that is grouped.

    Raises `ClassicSparkRequiredError` for a streaming one of Spark Connect without a folder for its state.
    """
    frame: DataFrame = grouped._df
    spark = frame.sparkSession
    if (
        frame.isStreaming
        and is_connect(spark)
        and read_configuration(spark, None).get(CHECKPOINT_DIR) is None
    ):
        raise ClassicSparkRequiredError(
            f"{name} keeps its state at the checkpoint location of its query, and finds that through the JVM "
            "of the driver, which a client of Spark Connect does not have",
            "Set spark.keyedstate.checkpoint.dir, a folder for the states of queries.",
        )
    return frame


def _operators_before(rows: DataFrame) -> int:
    """Return how many operators of the drop-in a DataFrame of Spark Connect is the output of.

    Tasks do not know the plan of their query there.
    """
    of_client: Any = rows
    plan = of_client._plan.to_proto(of_client.sparkSession._client)
    return len(set(_SHOWN_NAME.findall(plan.SerializeToString())))


def key_columns_of(grouped: GroupedData) -> list[Column]:
    """Return the columns and expressions by which rows are grouped."""
    of_session: Any = grouped
    if is_connect(grouped._df.sparkSession):
        return list(of_session._grouping_cols)
    # A client of Spark Connect may lack the classic API.
    from pyspark.sql.classic.column import Column as ClassicColumn

    make: Callable[[Any], Column] = ClassicColumn
    expressions = of_session._jgd.groupingExprs()
    utils = of_session.session._jvm.org.apache.spark.sql.classic.ExpressionUtils
    return [make(utils.column(expressions.apply(place))) for place in range(expressions.size())]


def computed_keys(frame: DataFrame, key_columns: list[str]) -> list[str]:
    """Return the parts of a key that are no columns of a DataFrame: the user's functions do not get them."""
    return [name for name in key_columns if name not in frame.columns]


def _with_event_time(out: DataFrame, name: str, delay_ms: int) -> DataFrame:
    """Return the output with the event time that Spark's operators after this one use.

    They find it by the metadata of the column.  ``withWatermark`` is no way: Spark refuses a second watermark
    before a stateful operator of its own.
    """
    columns = [
        out[quoted(field)].alias(field, metadata={DELAY_MS: delay_ms})
        if field == name
        else out[quoted(field)]
        for field in out.columns
    ]
    return out.select(*columns)


def _with_initial_state(
    rows: DataFrame, key_columns: list[str], state: DataFrame, state_keys: list[str], given: list[str]
) -> tuple[DataFrame, DataFrame | None]:
    """Return the input with the column of the initial state, and the rows of that, for a streaming input.

    The processor gets the columns `given` of the initial state.

    Rows of the initial state are rows of the input: that column has them, and the other columns are null,
    except those of the key.  A batch input has them already.

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
    row = f.struct(*(state[quoted(name)] for name in given))
    columns = [
        state[quoted(keys[field.name])].alias(field.name)
        if field.name in keys
        else f.lit(None).cast(field.dataType).alias(field.name)
        for field in rows.schema.fields
    ]
    state_rows = state.select(*columns, row.alias(INITIAL_COLUMN))
    declared = state_rows.schema[INITIAL_COLUMN].dataType
    rows = rows.withColumn(INITIAL_COLUMN, f.lit(None).cast(declared))
    return (rows, state_rows) if rows.isStreaming else (rows.unionByName(state_rows), None)


def parse_fields(schema: str) -> StructType:
    """Return the fields that a text declares."""
    found = _parse_datatype_string(schema)
    if not isinstance(found, StructType):
        raise PySparkRuntimeError(
            f"Error parsing string schema: {schema!r} is the type {found.simpleString()}; give the names and "
            "types of fields, as in 'value long'."
        )
    return found
