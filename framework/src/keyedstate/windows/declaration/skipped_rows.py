"""Rows that no window takes: late ones, and those without event time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keyedstate.errors import MissingTimestampError
from keyedstate.runtime.event_time import DROP, FAIL, LATE, MISSING, TIMELESS
from keyedstate.runtime.functions.keyed import Context


@dataclass(frozen=True)
class SkippedRows:
    """What is done with rows that no window takes."""

    #: All declared side outputs by name.
    side_outputs: Mapping[str, Any]
    #: The side output of late rows; None to drop them.
    late: str | None
    #: What is done with a row without event time: FAIL, DROP or MISSING of `keyedstate.runtime.event_time`.
    missing: str

    def put_late(self, ctx: Context, rows: Any, count: int = 1) -> None:
        """Emit a late row, or a batch of `count`, to the side output, or count it as dropped."""
        ctx._set_aside(self.late, LATE, rows, count)

    def put_timeless(self, ctx: Context, rows: Any, error: MissingTimestampError, count: int = 1) -> None:
        """Emit or drop a row without event time, or a batch, or raise the error."""
        if self.missing == FAIL:
            raise error
        ctx._set_aside(None if self.missing == DROP else MISSING, TIMELESS, rows, count)
