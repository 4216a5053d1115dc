"""Processors with pandas frames: ``transformWithStateInPandas``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from pyspark.errors import PySparkValueError

from keyedstate.errors import OutputBatchError
from keyedstate.runtime.grouping import Integers
from keyedstate.spark.drop_in.processor import ProcessorFunction


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

    def keys(self, rows: pa.RecordBatch, starts: Integers) -> Iterator[tuple[Any, ...]]:
        columns = [_series(rows.column(name).take(pa.array(starts))).tolist() for name in self._key_columns]
        return zip(*columns, strict=True)

    def items(self, rows: pa.RecordBatch, counts: Integers) -> tuple[Iterator[pd.DataFrame], Integers]:
        frame = pd.DataFrame(
            {number: _series(column) for number, column in enumerate(rows.columns)}, copy=False
        )
        frame.columns = rows.schema.names
        most = self.most_rows(rows)
        pieces = -(-counts // most)
        # The number of the frame of each row: that of the key's first one, plus its own within the key.
        starts = np.cumsum(counts) - counts
        within = (np.arange(len(frame)) - np.repeat(starts, counts)) // most
        return _frames(frame, np.repeat(np.cumsum(pieces) - pieces, counts) + within), pieces

    def most_rows(self, rows: pa.RecordBatch) -> int:
        """Return the most rows of a frame that the processor gets."""
        return min(self._max_records, max(1, _ceil(self._max_bytes, rows.nbytes / max(1, rows.num_rows))))

    def columns_of(self, output: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        """Return frames as batches, their columns found by name or by position, as Spark does."""
        for frame in output:
            if not isinstance(frame, pd.DataFrame):
                raise PySparkValueError(
                    "Invalid return type. Please make sure that the UDF returns a pandas.DataFrame when the "
                    "specified return type is StructType."
                )
        filled = [frame for frame in output if len(frame)]
        # Those with the same columns become one batch.
        for names, frames in groupby(filled, lambda frame: tuple(frame.columns.tolist())):
            yield self._batch_of(names, list(frames))

    def _batch_of(self, names: tuple[Any, ...], frames: list[pd.DataFrame]) -> pa.RecordBatch:
        by_name = self._by_name and any(isinstance(name, str) for name in names)
        whole = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
        arrays = []
        for place, field in enumerate(self._output):
            if by_name and field.name not in names:
                raise self._mismatch(f"it lacks the column {field.name!r}")
            if not by_name and place >= len(names):
                raise self._mismatch(f"it has {len(names)} column(s)")
            column = names.index(field.name) if by_name else place
            series = whole.iloc[:, column]
            if len(frames) > 1 and series.dtype.kind == "f" and pa.types.is_integer(field.type):
                # Whole numbers of some frames, which floats of others have made floats, may be too large.
                parts = [self._array(frame.iloc[:, column], field.type) for frame in frames]
                arrays.append(pa.concat_arrays(parts))
            else:
                arrays.append(self._array(series, field.type))
        if not by_name and len(names) > len(arrays):
            raise self._mismatch(f"it has {len(names)} column(s)")
        return pa.RecordBatch.from_arrays(arrays, schema=self._output)

    def _array(self, series: pd.Series[Any], arrow_type: pa.DataType) -> pa.Array:
        zone = getattr(arrow_type, "tz", None)
        if zone is not None and pd.api.types.is_datetime64_any_dtype(series.dtype):
            series = series.dt.tz_localize(zone) if series.dt.tz is None else series
        return pa.Array.from_pandas(series, type=arrow_type, safe=self._safe)

    def _mismatch(self, reason: str) -> OutputBatchError:
        return OutputBatchError(None, reason, self._output.names, None)


def _frames(frame: pd.DataFrame, numbers: Integers) -> Iterator[pd.DataFrame]:
    """Yield the consecutive rows of each number as a frame.

    So pandas does it in a sixth of the time of ``frame.iloc[start:end].reset_index(drop=True)``.
    """
    for _, part in frame.groupby(numbers, sort=False):
        part.index = pd.RangeIndex(len(part))
        yield part


def _ceil(total: int, each: float) -> int:
    return int(-(-total // each)) if each else total


def _series(column: pa.Array) -> pd.Series[Any]:
    """Return a column as Spark makes it, of rows: with wide numbers and local times."""
    series = series_of(column)
    if series.dtype.kind in "iu":
        return series.astype("int64")
    return series.astype("float64") if series.dtype.kind == "f" else series


def series_of(column: pa.Array) -> pd.Series[Any]:
    """Return a column with local times."""
    series: pd.Series[Any] = column.to_pandas(date_as_object=True)
    if not pa.types.is_timestamp(column.type):
        return series
    if column.type.tz is not None:
        series = (
            series.dt.tz_localize(None)
            if series.dt.tz is None
            else series.dt.tz_convert(column.type.tz).dt.tz_localize(None)
        )
    return series.astype("datetime64[ns]")
