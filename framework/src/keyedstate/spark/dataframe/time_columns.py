"""The event time of a DataFrame: given by the user, or that of its watermark."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, DateType, IntegralType, StringType, TimestampNTZType, TimestampType

from keyedstate.errors import EventTimeError
from keyedstate.spark.schema import fields_by_name, folded
from keyedstate.time import EventTime

_TIMES = (DateType, TimestampType, TimestampNTZType)
#: The delay of `DataFrame.withWatermark` in the metadata of its column.
DELAY_MS = "spark.watermarkDelayMs"


def event_time_of(frame: DataFrame, given: EventTime | None) -> EventTime | None:
    """Return the given event time, or that of `DataFrame.withWatermark`, with the DataFrame's column names.

    Raises `EventTimeError` for columns that are missing or have other types, a missing delay, and several
    watermarks.
    """
    if given is None:
        return _of_watermark(frame)
    if type(given) is not EventTime:
        reason = f"it is {given!r}; give EventTime('ts', delay='10 minutes')"
        raise EventTimeError(None, reason)
    name, type_ = _column(frame, given.column)
    if not isinstance(type_, _TIMES):
        raise EventTimeError(
            name,
            f"it has the type {type_.simpleString()}; make a timestamp of it, for example with "
            f"withColumn({name!r}, timestamp_millis({name}))",
        )
    if given.delay is None and given.follows is None:
        raise EventTimeError(
            name, "no delay is given; say how late rows may come, as in delay='10 minutes', or delay=0"
        )
    if given.inputs is None:
        return replace(given, column=name)
    inputs, type_ = _column(frame, given.inputs)
    if not isinstance(type_, (StringType, IntegralType)):
        raise EventTimeError(
            inputs, f"it has the type {type_.simpleString()}; text or whole numbers distinguish inputs"
        )
    return replace(given, column=name, inputs=inputs)


def _of_watermark(frame: DataFrame) -> EventTime | None:
    fields = [
        field
        for field in frame.schema.fields
        if DELAY_MS in field.metadata and isinstance(field.dataType, _TIMES)
    ]
    if not fields:
        return None
    if len(fields) > 1:
        names = ", ".join(repr(field.name) for field in fields)
        raise EventTimeError(
            None, f"the columns {names} have watermarks; name one, as in event_time=EventTime(...)"
        )
    return EventTime(fields[0].name, delay=fields[0].metadata[DELAY_MS])


def _column(frame: DataFrame, name: str) -> tuple[str, DataType]:
    found = fields_by_name(frame).get(folded(frame, name), [])
    if len(found) != 1:
        columns = ", ".join(frame.columns)
        raise EventTimeError(name, f"the DataFrame has {len(found)} columns of that name; it has {columns}")
    return found[0].name, found[0].dataType
