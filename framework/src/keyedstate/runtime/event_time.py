"""The event time of rows: a column of times, in milliseconds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

#: What may be done with a row without event time; the last one puts it out to the side output of that name.
FAIL = "fail"
DROP = "drop"
MISSING = "missing"
#: Why rows are dropped, in the metrics of an epoch.
LATE, TIMELESS = "late", "timeless"


def event_times(column: pa.Array) -> list[int | None]:
    """Return a column of timestamps or dates in milliseconds since 1970 UTC, rounded down; null as None.

    Times without a zone count as UTC.
    """
    times, missing = event_time_array(column)
    found: list[int | None] = pa.array(times, mask=missing).to_pylist()
    return found


def event_time_array(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
    """Return what `event_times` returns as an array, and which of its places have no time; None where all do.

    What stands at a place without time is no time.
    """
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    factor = {"s": 1000, "ms": 1, "us": -1000, "ns": -1_000_000}[column.type.unit]
    # By hand: a cast between units refuses what it would have to round.
    numbers = column.view(pa.int64())
    missing = None
    if numbers.null_count:
        missing = numbers.is_null().to_numpy(zero_copy_only=False)
        numbers = numbers.fill_null(0)
    if factor > 0:
        return pc.multiply_checked(numbers, factor).to_numpy(), missing
    return numbers.to_numpy() // -factor, missing


def largest_by_input(inputs: pa.Array, times: pa.Array) -> dict[str, int]:
    """Return the largest of some event times of each input, by its name as text.

    A null input is one like any other.
    """
    names = pc.fill_null(inputs.cast(pa.string()), "null")
    table = pa.table({"input": names, "time": times})
    grouped = table.group_by("input").aggregate([("time", "max")]).to_pydict()
    found = zip(grouped["input"], grouped["time_max"], strict=True)
    return {name: time for name, time in found if time is not None}


def is_event_time(arrow_type: pa.DataType) -> bool:
    """Return whether `event_times` reads columns of this type."""
    return bool(pa.types.is_timestamp(arrow_type) or pa.types.is_date(arrow_type))
