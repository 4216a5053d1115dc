"""`apply_in_pandas_with_state`: Spark's method as a function."""

from __future__ import annotations

from pyspark.errors import AnalysisException, IllegalArgumentException, UnsupportedOperationException
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.types import StructType

from keyedstate.runtime.timers import TimeDomain
from keyedstate.spark.dataframe.keys import with_key_columns
from keyedstate.spark.dataframe.time_columns import event_time_of
from keyedstate.spark.drop_in.group_state import TIMEOUT_DOMAINS, GroupStateFunction, UserFunction
from keyedstate.spark.drop_in.operators import (
    computed_keys,
    frame_of,
    key_columns_of,
    output_of,
    pandas_settings,
    parse_fields,
)
from keyedstate.spark.schema import parse_output, to_arrow

#: Begins the name under which Spark shows an operator, and its uid, before its number in the query.
_NAME = "apply_in_pandas_with_state"


def apply_in_pandas_with_state(
    grouped: GroupedData,
    func: UserFunction,
    outputStructType: StructType | str,
    stateStructType: StructType | str,
    outputMode: str,
    timeoutConf: str,
) -> DataFrame:
    """Call a function with the frames and the state of each key, as Spark's ``applyInPandasWithState`` does.

    Parameters
    ----------
    grouped : GroupedData
        ``df.groupBy("key")`` of a streaming DataFrame.
    func, outputStructType, stateStructType, outputMode, timeoutConf
        As Spark's.

    Returns
    -------
    DataFrame
        The state is stored at the checkpoint location of the query or, where the option ``checkpoint.dir`` is
        set, there, under the id of the query.

    Raises
    ------
    AssertionError
        For an unknown timeout.
    IllegalArgumentException
        For an output mode other than append and update.
    UnsupportedOperationException
        For a batch DataFrame.
    AnalysisException
        For timeouts of event time without a watermark.
    KeyColumnError
        For an expression with the name of a column, and for types that cannot be a key.
    ClassicSparkRequiredError
        For a DataFrame of Spark Connect.
    """
    assert timeoutConf in TIMEOUT_DOMAINS, f"timeoutConf is {timeoutConf!r}, not one of {[*TIMEOUT_DOMAINS]}"
    _check_output_mode(outputMode)
    frame = frame_of(grouped, _NAME)
    spark = frame.sparkSession
    if not frame.isStreaming:
        raise UnsupportedOperationException(
            "applyInPandasWithState is unsupported in batch query. Use applyInPandas instead."
        )
    rows, key_columns = with_key_columns(frame, key_columns_of(grouped))
    has_watermark = event_time_of(rows, None) is not None
    if TIMEOUT_DOMAINS[timeoutConf] is TimeDomain.EVENT_TIME and not has_watermark:
        raise AnalysisException(
            "Watermark must be specified in the query using '[Dataset/DataFrame].withWatermark()' for using "
            "event-time timeout in a applyInPandasWithState. Event-time timeout not supported without "
            "watermark."
        )
    output, checked = parse_output(spark, _fields(outputStructType))
    function = GroupStateFunction(
        func,
        timeoutConf,
        to_arrow(rows.schema),
        has_watermark,
        key_columns,
        checked.schema,
        _fields(stateStructType),
        computed_keys(frame, key_columns),
        **pandas_settings(spark),
    )
    return output_of(_NAME, function, rows, key_columns, output, checked)


def _fields(schema: StructType | str) -> StructType:
    return parse_fields(schema) if isinstance(schema, str) else schema


def _check_output_mode(mode: str) -> None:
    if mode.lower() == "complete":
        raise IllegalArgumentException("The output mode of function should be append or update")
    if mode.lower() not in ("append", "update"):
        raise IllegalArgumentException(
            f"[STREAMING_OUTPUT_MODE.INVALID] Invalid streaming output mode: {mode}. Accepted output modes "
            "are 'Append', 'Complete', 'Update'. SQLSTATE: 42KDE"
        )
