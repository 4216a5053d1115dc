"""A ``StatefulProcessor`` of the user as a function of a keyed operator: with rows, or with pandas frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues
from pyspark.sql.types import Row, StructType

from keyedstate.errors import OutputBatchError
from keyedstate.runtime.functions.groups import GroupedFunction
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.key_runs import ROWS_AT_ONCE
from keyedstate.runtime.timers import TimeDomain
from keyedstate.spark.drop_in.handle import INITIALIZED, KeyedHandle
from keyedstate.spark.drop_in.state_values import make_row

#: What Spark's timer values have where there is no time.
_NO_TIME = TimerValues(-1, -1)


class ProcessorFunction(GroupedFunction):
    """Runs a processor of the user in a task.

    Parameters
    ----------
    key_columns : sequence of str
    output : pyarrow.Schema
    schemas : mapping of str to StructType
        The schemas of states that `init` gives as text.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        time_domain: TimeDomain | None,
        key_columns: Sequence[str],
        output: pa.Schema,
        schemas: Mapping[str, StructType],
    ) -> None:
        self._processor = processor
        self.time_domain = time_domain
        self._key_columns = list(key_columns)
        self._output = output
        self._schemas = dict(schemas)

    def open(self, ctx: Context) -> None:
        """Call the processor's ``init``."""
        timers = None if self.time_domain is None else self.timers
        handle = KeyedHandle(self.time_domain, self._schemas, store=_Store(ctx), timers=timers)
        self._processor.init(handle)
        handle.phase = INITIALIZED

    def close(self) -> None:
        """Call the processor's ``close``."""
        self._processor.close()

    def process_group(self, rows: tuple[tuple[Any, ...], Iterator[Any]], ctx: Context) -> Iterable[Any]:
        """Call ``handleInputRows`` with the key and its rows."""
        return self._processor.handleInputRows(*rows, self._timer_values(ctx))

    def process_timer(self, time: int, ctx: Context) -> Iterable[Any]:
        """Call ``handleExpiredTimer``."""
        parts = ctx.key if len(self._key_columns) > 1 else (ctx.key,)
        return self._processor.handleExpiredTimer(
            key=make_row(self._key_columns, parts),
            timerValues=self._timer_values(ctx),
            expiredTimerInfo=ExpiredTimerInfo(time),
        )

    def _timer_values(self, ctx: Context) -> TimerValues:
        if self.time_domain is None:
            return _NO_TIME
        # Spark's watermark begins with 0; a batch has none.
        watermark = -1 if ctx.epoch is None else max(ctx.watermark, 0)
        return TimerValues(ctx.timer_service.current_processing_time, watermark)


class _Store:
    """Finds states for a handle."""

    def __init__(self, ctx: Context) -> None:
        self.state = ctx.state
        self.clear_state = ctx._backend.clear_state


class RowProcessor(ProcessorFunction):
    """For ``transformWithState``: rows in, rows out."""

    def groups(
        self, rows: pa.RecordBatch, counts: Sequence[int]
    ) -> Iterator[tuple[tuple[Any, ...], Iterator[Row]]]:
        """Yield the key and the rows of each key."""
        of_key = [rows.schema.get_field_index(name) for name in self._key_columns]
        every = _rows(rows)
        for count in counts:
            first = next(every)
            group = _Group(first, every, count)
            yield tuple(first[index] for index in of_key), group
            # A processor need not read all of its rows.
            group.skip()

    def batches_of(self, output: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        """Return rows as a batch, their fields found by name, as Spark does."""
        columns = []
        dicts: list[dict[str, Any]] | None = None
        names = getattr(output[0], "__fields__", None)
        same = names is not None and all(
            row.__class__ is Row and getattr(row, "__fields__", None) == names for row in output
        )
        if not same or any(pa.types.is_nested(field.type) for field in self._output):
            dicts = [row.asDict(True) for row in output]
        for field in self._output:
            if dicts is not None:
                values: Sequence[Any] = [row.get(field.name) for row in dicts]
            elif names is not None and field.name in names:
                place = list(names).index(field.name)
                values = [row[place] for row in output]
            else:
                values = [None] * len(output)
            columns.append(pa.array(values, field.type))
        yield pa.RecordBatch.from_arrays(columns, schema=self._output)


class _Group(Iterator[Row]):
    """The rows of one key, of which the first has been taken from the rows of all keys."""

    def __init__(self, first: Row, every: Iterator[Row], count: int) -> None:
        self._first: Row | None = first
        self._every = every
        self._left = count - 1

    def __next__(self) -> Row:
        if self._first is not None:
            row, self._first = self._first, None
            return row
        if not self._left:
            raise StopIteration
        self._left -= 1
        return next(self._every)

    def skip(self) -> None:
        """Take the rows that are left."""
        left, self._left, self._first = self._left, 0, None
        next(islice(self._every, left, left), None)


def _rows(rows: pa.RecordBatch) -> Iterator[Row]:
    names = list(rows.schema.names)
    for start in range(0, rows.num_rows, ROWS_AT_ONCE):
        some = rows.slice(start, ROWS_AT_ONCE)
        for values in zip(*map(_values, some.columns), strict=True):
            yield make_row(names, values)


def _values(column: pa.Array) -> list[Any]:
    plain = pa.types.is_integer(column.type) or pa.types.is_float64(column.type)
    if plain and not column.null_count:
        return column.to_numpy().tolist()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]


class PandasProcessor(ProcessorFunction):
    """For ``transformWithStateInPandas``: frames in, frames out.

    Parameters
    ----------
    max_records, max_bytes : int
        The most rows and bytes of a frame that the processor gets.
    by_name : bool
        Whether the columns of its frames are found by name, where they have names.
    safe : bool
        Whether a conversion that changes a value is an error.
    """

    def __init__(self, *arguments: Any, max_records: int, max_bytes: int, by_name: bool, safe: bool) -> None:
        super().__init__(*arguments)
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._by_name = by_name
        self._safe = safe

    def groups(
        self, rows: pa.RecordBatch, counts: Sequence[int]
    ) -> Iterator[tuple[tuple[Any, ...], Iterator[pd.DataFrame]]]:
        """Yield the key and the frames of each key."""
        frame = pd.DataFrame(
            {number: _series(column) for number, column in enumerate(rows.columns)}, copy=False
        )
        frame.columns = rows.schema.names
        places = [rows.schema.get_field_index(name) for name in self._key_columns]
        most = min(self._max_records, max(1, _ceil(self._max_bytes, rows.nbytes / rows.num_rows)))
        start = 0
        for count in counts:
            key = tuple(frame.iat[start, place] for place in places)
            yield tuple(map(_python, key)), self._frames(frame, start, start + count, most)
            start += count

    @staticmethod
    def _frames(frame: pd.DataFrame, start: int, end: int, most: int) -> Iterator[pd.DataFrame]:
        for first in range(start, end, most):
            yield frame.iloc[first : min(first + most, end)].reset_index(drop=True)

    def batches_of(self, output: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        """Return frames as batches, their columns found by name or by position, as Spark does."""
        for frame in output:
            if not isinstance(frame, pd.DataFrame):
                raise PySparkValueError(
                    "Invalid return type. Please make sure that the UDF returns a pandas.DataFrame when the "
                    "specified return type is StructType."
                )
        columns = output[0].columns
        if all(frame.columns.equals(columns) for frame in output):
            filled = [frame for frame in output if len(frame)]
            output = [pd.concat(filled, ignore_index=True)] if filled else []
        for frame in output:
            yield self._batch_of(frame)

    def _batch_of(self, frame: pd.DataFrame) -> pa.RecordBatch:
        by_name = self._by_name and any(isinstance(name, str) for name in frame.columns)
        arrays = []
        for place, field in enumerate(self._output):
            if by_name and field.name not in frame.columns:
                raise self._mismatch(f"it lacks the column {field.name!r}")
            if not by_name and place >= len(frame.columns):
                raise self._mismatch(f"it has {len(frame.columns)} column(s)")
            series = frame[field.name] if by_name else frame.iloc[:, place]
            zone = getattr(field.type, "tz", None)
            if zone is not None and pd.api.types.is_datetime64_any_dtype(series.dtype):
                series = series.dt.tz_localize(zone) if series.dt.tz is None else series
            arrays.append(pa.Array.from_pandas(series, type=field.type, safe=self._safe))
        if not by_name and len(frame.columns) > len(arrays):
            raise self._mismatch(f"it has {len(frame.columns)} column(s)")
        return pa.RecordBatch.from_arrays(arrays, schema=self._output)

    def _mismatch(self, reason: str) -> OutputBatchError:
        return OutputBatchError(None, reason, self._output.names, None)


def _ceil(total: int, each: float) -> int:
    return int(-(-total // each)) if each else total


def _python(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _series(column: pa.Array) -> pd.Series[Any]:
    """Return a column as Spark makes it, of rows: with wide numbers and local times."""
    series: pd.Series[Any] = column.to_pandas(date_as_object=True)
    if pa.types.is_timestamp(column.type):
        if column.type.tz is not None:
            series = (
                series.dt.tz_localize(None)
                if series.dt.tz is None
                else series.dt.tz_convert(column.type.tz).dt.tz_localize(None)
            )
        return series.astype("datetime64[ns]")
    if series.dtype.kind in "iu":
        return series.astype("int64")
    return series.astype("float64") if series.dtype.kind == "f" else series
