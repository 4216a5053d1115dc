"""The time of a micro-batch: Spark decides it once, and logs it with the offsets before any task runs.

A repeated micro-batch has the same time, in all of its tasks, as Spark's ``current_timestamp()`` has.
"""

from __future__ import annotations

import json
from typing import Any

from keyedstate.epoch.configuration import storage_in_task
from keyedstate.errors import KeyedStateError


def batch_time(offsets: str, settings: tuple[tuple[str, Any], ...], epoch: int) -> int | None:
    """Return the time of a micro-batch in milliseconds since 1970 UTC.

    None where this process cannot read the log of offsets, or the log does not have the time.
    """
    try:
        # A version, a JSON document, and a line for each source.
        _, document, *_ = storage_in_task(offsets, settings).read(str(epoch)).decode().split("\n", 2)
        time = json.loads(document)["batchTimestampMs"]
    except (KeyedStateError, ValueError, KeyError, TypeError):
        return None
    return time if isinstance(time, int) else None
