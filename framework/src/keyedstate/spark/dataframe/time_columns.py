"""The columns of event times: which a DataFrame has, and how far the watermark stays behind them."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import DateType, IntegralType, StringType, TimestampNTZType, TimestampType

from keyedstate.durations import Duration, milliseconds
from keyedstate.epoch.event_time import EventTime
from keyedstate.errors import EventTimeError
from keyedstate.spark.dataframe.schema import fields_by_name, folded


def time_column_of(frame: DataFrame, name: str) -> str:
    """Return the column of event times by the name that the frame gives it.

    Raises
    ------
    EventTimeError
        For a column that is not there, or holds neither timestamps nor dates.
    """
    found = fields_by_name(frame).get(folded(frame, name), [])
    if len(found) != 1:
        columns = ", ".join(frame.columns)
        raise EventTimeError(name, f"the DataFrame has {len(found)} columns of that name; it has {columns}")
    (field,) = found
    if not isinstance(field.dataType, (DateType, TimestampType, TimestampNTZType)):
        raise EventTimeError(
            name,
            f"it has the type {field.dataType.simpleString()}; make a timestamp of it, for example with "
            f"withColumn({name!r}, timestamp_millis({name}))",
        )
    return field.name


def source_column_of(frame: DataFrame, name: str) -> str:
    """Return the column that says of which input a row is, by the name that the frame gives it.

    Raises
    ------
    EventTimeError
        For a column that is not there, or cannot be text.
    """
    found = fields_by_name(frame).get(folded(frame, name), [])
    if len(found) != 1:
        columns = ", ".join(frame.columns)
        raise EventTimeError(name, f"the DataFrame has {len(found)} columns of that name; it has {columns}")
    (field,) = found
    if not isinstance(field.dataType, (StringType, IntegralType)):
        raise EventTimeError(
            name, f"it has the type {field.dataType.simpleString()}; inputs are told by text or whole numbers"
        )
    return field.name


def event_time_of(
    frame: DataFrame,
    column: str | None,
    delay: Duration | None,
    inputs: str | None = None,
    idle: Duration | None = None,
) -> EventTime | None:
    """Return where the rows of a DataFrame have their event time from; None where they have none.

    Raises
    ------
    EventTimeError, InvalidDurationError
    """
    if column is None:
        if delay is not None or inputs is not None or idle is not None:
            given = "a delay" if delay is not None else "inputs" if inputs is not None else "an idle time"
            raise EventTimeError(None, f"there is {given} and no column; name it with time=")
        return None
    name, delay_ms = column_and_delay(frame, column, delay)
    if idle is not None and inputs is None:
        raise EventTimeError(
            name, "an idle time is for several inputs; name the column that tells them with inputs="
        )
    told_by = None if inputs is None else source_column_of(frame, inputs)
    return EventTime(name, delay_ms, told_by, idle_ms(name, idle))


def column_and_delay(frame: DataFrame, column: str, delay: Duration | None) -> tuple[str, int]:
    """Return the column of event times, and how far the watermark stays behind them in milliseconds.

    Raises
    ------
    EventTimeError, InvalidDurationError
    """
    name = time_column_of(frame, column)
    if delay is None:
        raise EventTimeError(
            name, "no delay is given; say how late rows may come, as in delay='10 minutes', or delay=0"
        )
    delay_ms = milliseconds(delay)
    if delay_ms < 0:
        raise EventTimeError(name, f"the delay {delay!r} is negative; give 0 or more")
    return name, delay_ms


def idle_ms(column: str, idle: Duration | None) -> int | None:
    """Return after how long an input is idle, in milliseconds; None for never.

    Raises
    ------
    EventTimeError, InvalidDurationError
    """
    found = None if idle is None else milliseconds(idle)
    if found is not None and found <= 0:
        raise EventTimeError(column, f"the idle time {idle!r} is not positive; give '5 minutes' or so")
    return found
