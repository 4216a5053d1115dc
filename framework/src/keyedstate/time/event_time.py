"""Which column has the event time of rows: `EventTime`."""

from __future__ import annotations

from dataclasses import dataclass

from keyedstate.durations import Duration, milliseconds
from keyedstate.errors import EventTimeError


@dataclass(frozen=True)
class EventTime:
    """The event time of rows, and their watermark: ``EventTime("ts", delay="10 minutes")``.

    Parameters
    ----------
    column : str
        The column with the event time of each row, a timestamp or a date.
    delay : str, timedelta or int, optional
        How far behind the largest event time the watermark stays.  A job needs one; without it the watermark
        of a test harness moves only when the test moves it.
    inputs : str, optional
        The column with the input of each row, where one DataFrame has several inputs and some may be far
        behind others: the watermark is then the least of those of the inputs.
    idle : str, timedelta or int, optional
        After how long without rows an input no longer holds the watermark back, until it has caught up; by
        default never.  For several inputs: those of `inputs`, or one of two that are connected.
    follows : str, optional
        The uid of the operator whose output the rows are, in the same query on Spark:
        ``EventTime("at", follows="per-hour")``.  The watermark is that operator's, less the delay, by
        default 0, and arrives in the same micro-batch.  In a test harness the test moves it.

    Raises
    ------
    EventTimeError
        For a negative delay, an idle time that is not positive, and `inputs` or `idle` with `follows`.
    InvalidDurationError
    """

    column: str
    delay: Duration | None = None
    inputs: str | None = None
    idle: Duration | None = None
    follows: str | None = None

    def __post_init__(self) -> None:
        delay_ms, idle_ms = self.delay_ms, self.idle_ms
        if delay_ms is not None and delay_ms < 0:
            raise EventTimeError(self.column, f"the delay {self.delay!r} is negative; give 0 or more")
        if idle_ms is not None and idle_ms <= 0:
            raise EventTimeError(
                self.column, f"the idle time {self.idle!r} is not positive; give '5 minutes' or so"
            )
        if self.follows is not None and (self.inputs is not None or self.idle is not None):
            given = "inputs=" if self.inputs is not None else "idle="
            raise EventTimeError(
                self.column,
                f"the watermark is that of the operator {self.follows!r}, which has inputs and idle times of "
                f"its own; leave {given} out, or give it to that operator",
            )

    @property
    def delay_ms(self) -> int | None:
        """The delay in milliseconds."""
        return None if self.delay is None else milliseconds(self.delay)

    @property
    def idle_ms(self) -> int | None:
        """The idle time in milliseconds."""
        return None if self.idle is None else milliseconds(self.idle)
