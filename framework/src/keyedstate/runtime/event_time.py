"""The event time of rows: a column of times, in milliseconds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

#: The policies for a row without event time; the last one is also the name of a side output for it.
FAIL = "fail"
DROP = "drop"
MISSING = "missing"
#: The reasons for dropped rows in the metrics of an epoch.
LATE, TIMELESS = "late", "timeless"


def event_times(column: pa.Array) -> list[int | None]:
    """Return timestamps or dates as milliseconds since 1970 UTC, rounded down; times without zone are UTC."""
    times, missing = event_time_array(column)
    found: list[int | None] = pa.array(times, mask=missing).to_pylist()
    return found


def event_time_array(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
    """Return the times as an array, and a mask of the rows without one, whose times are undefined.

    The mask is None where all rows have a time.
    """
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    factor = {"s": 1000, "ms": 1, "us": -1000, "ns": -1_000_000}[column.type.unit]
    # A cast between units would refuse to round.
    numbers = column.view(pa.int64())
    missing = None
    if numbers.null_count:
        missing = numbers.is_null().to_numpy(zero_copy_only=False)
        numbers = numbers.fill_null(0)
    if factor > 0:
        return pc.multiply_checked(numbers, factor).to_numpy(), missing
    return numbers.to_numpy() // -factor, missing


def largest_by_input(inputs: pa.Array, times: pa.Array) -> dict[str, int]:
    """Return the largest event time of each input, by its name as text; null is an input too."""
    names = pc.fill_null(inputs.cast(pa.string()), "null")
    table = pa.table({"input": names, "time": times})
    grouped = table.group_by("input").aggregate([("time", "max")]).to_pydict()
    found = zip(grouped["input"], grouped["time_max"], strict=True)
    return {name: time for name, time in found if time is not None}


def is_event_time(arrow_type: pa.DataType) -> bool:
    """Return whether `event_times` reads columns of this type."""
    return bool(pa.types.is_timestamp(arrow_type) or pa.types.is_date(arrow_type))
