"""The function of ``applyInPandasWithState`` as a function of a keyed operator.

Stored are the value of a key's state and its timeout.  The timer of a timeout is a millisecond later: Spark
calls a function for those that are before the watermark or the processing time, not at it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError, PySparkTypeError
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StructType

from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.timers import TimeDomain
from keyedstate.spark.drop_in.frames import PandasProcessor, series_of
from keyedstate.spark.drop_in.processor import Group
from keyedstate.spark.drop_in.state_values import StructValues
from keyedstate.state import ValueState as ValueDescriptor
from keyedstate.types import INT64

#: By the names of Spark's timeouts.
TIMEOUT_DOMAINS = {
    GroupStateTimeout.NoTimeout: None,
    GroupStateTimeout.ProcessingTimeTimeout: TimeDomain.PROCESSING_TIME,
    GroupStateTimeout.EventTimeTimeout: TimeDomain.EVENT_TIME,
}
#: The names of the states, which are those of the columns of Spark's own store.
GROUP_STATE, TIMEOUT = "groupState", "timeoutTimestamp"

UserFunction = Callable[[Any, Iterator[Any], GroupState], Iterable[Any]]


def group_state_descriptor(values: StructValues) -> ValueDescriptor[Any]:
    """Return the declaration of the value of a key."""
    return ValueDescriptor(GROUP_STATE, values.value_type)


def timeout_descriptor() -> ValueDescriptor[Any]:
    """Return the declaration of the timeout of a key."""
    return ValueDescriptor(TIMEOUT, INT64)


def timer_of(timeout: Any) -> Any:
    """Return the time of the timer of a timeout, which is a number or a column of Spark."""
    return timeout + 1


class GroupStateFunction(PandasProcessor):
    """Calls a function of the user with the frames of each key, and then for each key that has timed out.

    Parameters
    ----------
    function : callable
        Of the key, its frames and its state; returns frames.
    timeout : str
        One of `TIMEOUT_DOMAINS`.
    columns : pyarrow.Schema
        Of the rows.
    has_watermark : bool
    key_columns, output
        As `ProcessorFunction` takes them.
    state : StructType
        Of the state.
    computed_keys
        As `ProcessorFunction` takes them.
    **settings
        As `PandasProcessor` takes them.
    """

    def __init__(
        self,
        function: UserFunction,
        timeout: str,
        columns: pa.Schema,
        has_watermark: bool,
        key_columns: Sequence[str],
        output: pa.Schema,
        state: StructType,
        computed_keys: Sequence[str],
        **settings: Any,
    ) -> None:
        super().__init__(
            None, TIMEOUT_DOMAINS[timeout], key_columns, output, {}, None, computed_keys, **settings
        )
        self._call = function
        self._timeout_conf = timeout
        self._columns = columns
        self._names = [name for name in columns.names if name not in computed_keys]
        self._has_watermark = has_watermark
        self._state_schema = state

    def open(self, ctx: Context) -> None:
        """Register the states."""
        self._values = StructValues(self._state_schema)
        self._value = ctx.state(group_state_descriptor(self._values))
        if self.time_domain is not None:
            self._timeout = ctx.state(timeout_descriptor())

    def close(self) -> None:
        """Do nothing: the user's function is not closed."""

    def groups(self, rows: pa.RecordBatch, counts: Sequence[int]) -> Iterator[Group]:
        """Yield the key and the frames of each key."""
        frames = _Frames(rows, rows.num_columns - len(self._computed_keys))
        places = [rows.schema.get_field_index(name) for name in self._key_columns]
        most = self.most_rows(rows)
        start = 0
        for count in counts:
            yield frames.parts(start, places), frames.cut(start, start + count, most), None
            start += count

    def process_group(self, rows: Group, ctx: Context) -> Iterator[Any]:
        """Call the function with the rows of a key, and store its state."""
        key, frames, _ = rows
        state = self._state(ctx, timed_out=False)
        yield from self._frames_of(self._call(key, frames, state))
        self._store(state)

    def process_timer(self, time: int, ctx: Context) -> Iterator[Any]:
        """Call the function for a key that has timed out, and store its state."""
        parts = ctx.key if len(self._key_columns) > 1 else (ctx.key,)
        kinds = [self._columns.field(name).type for name in self._key_columns]
        key = tuple(_as_in_frame(part, kind) for part, kind in zip(parts, kinds, strict=True))
        state = self._state(ctx, timed_out=True)
        yield from self._frames_of(self._call(key, iter([pd.DataFrame(columns=self._names)]), state))
        if not self._store(state):
            # As in Spark, what leaves the state alone leaves its timeout, too.
            self.timers.fire_again(time)

    def _state(self, ctx: Context, *, timed_out: bool) -> GroupState:
        value = self._value.value()
        return GroupState(
            optionalValue=None if value is None else self._values.row(value),  # type: ignore[arg-type]
            batchProcessingTimeMs=ctx._timers.clock.processing_time,
            # Spark's watermark begins with 0.
            eventTimeWatermarkMs=max(ctx.watermark, 0) if self._has_watermark else GroupState.NO_TIMESTAMP,
            timeoutConf=self._timeout_conf,
            hasTimedOut=timed_out,
            watermarkPresent=self._has_watermark,
            defined=value is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=GroupState.NO_TIMESTAMP,
            keyAsUnsafe=b"",
            valueSchema=self._state_schema,
        )

    def _store(self, state: GroupState) -> bool:
        """Store what the function has changed; return whether it has changed anything."""
        timeout = int(state._timeout_timestamp)
        if not (state._updated or state._removed or timeout != GroupState.NO_TIMESTAMP):
            return False
        if state._updated:
            self._value.update(self._values.encode(state.get, "Error updating the state"))
        elif state._removed:
            self._value.clear()
        if self.time_domain is not None:
            before = self._timeout.value()
            if before is not None and before != timeout:
                self.timers.delete(timer_of(before))
            if timeout == GroupState.NO_TIMESTAMP:
                self._timeout.clear()
            elif timeout != before:
                self._timeout.update(timeout)
                self.timers.register(timer_of(timeout))
        return True

    def _frames_of(self, returned: Any) -> Iterator[pd.DataFrame]:
        """Yield the frames that the function returns; raises Spark's errors."""
        if isinstance(returned, pd.DataFrame):
            raise _wrong_type("iterable of pandas.DataFrame", "DataFrame")
        if not hasattr(returned, "__iter__"):
            raise _wrong_type("iterable", type(returned).__name__)
        for frame in returned:
            if not isinstance(frame, pd.DataFrame):
                raise _wrong_type("iterator of pandas.DataFrame", f"iterator of {type(frame).__name__}")
            if len(frame.columns) != len(self._output) and len(frame.columns):
                raise PySparkRuntimeError(
                    errorClass="RESULT_COLUMN_SCHEMA_MISMATCH",
                    messageParameters={
                        "expected": str(len(self._output)),
                        "actual": str(len(frame.columns)),
                    },
                )
            if len(frame):
                yield frame


class _Frames:
    """The rows of several keys, to be cut into frames of one key, with so many of the columns."""

    def __init__(self, rows: pa.RecordBatch, columns: int) -> None:
        self._number = columns
        self._frame = pd.DataFrame(
            {number: _series(column) for number, column in enumerate(rows.columns)}, copy=False
        )
        self._frame.columns = rows.schema.names
        #: Columns that have another type where no value is null, which each frame decides for itself.
        self._varying = {
            number: column
            for number, column in enumerate(rows.columns)
            if column.null_count and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type))
        }

    def parts(self, row: int, places: Sequence[int]) -> tuple[Any, ...]:
        """Return some values of a row."""
        return tuple(
            _series(self._varying[place].slice(row, 1))[0]
            if place in self._varying
            else self._frame.iat[row, place]
            for place in places
        )

    def cut(self, start: int, end: int, most: int) -> Iterator[pd.DataFrame]:
        """Yield some rows in frames of so many."""
        for first in range(start, end, most):
            last = min(first + most, end)
            frame = self._frame.iloc[first:last, : self._number].reset_index(drop=True)
            for place, column in self._varying.items():
                if place < self._number:
                    frame.isetitem(place, _series(column.slice(first, last - first)))
            yield frame


def _series(column: pa.Array) -> pd.Series[Any]:
    """Return a column as Spark makes it."""
    if pa.types.is_map(column.type):
        return column.to_pandas(maps_as_pydicts="lossy")
    return series_of(column)


def _as_in_frame(part: Any, kind: pa.DataType) -> Any:
    """Return a part of a key as frames have it."""
    if part.__class__ is str:
        return part
    if part.__class__ is int:
        return kind.to_pandas_dtype()(part)
    return _series(pa.array([part], kind))[0]


def _wrong_type(expected: str, actual: str) -> PySparkTypeError:
    return PySparkTypeError(
        errorClass="UDF_RETURN_TYPE", messageParameters={"expected": expected, "actual": actual}
    )
