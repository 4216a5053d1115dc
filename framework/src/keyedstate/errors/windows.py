"""Errors about windows: those that no operator can have, and those that only its rows show."""

from __future__ import annotations

from keyedstate.errors.base import KeyedStateError


class WindowError(KeyedStateError):
    """Base class of errors about windows."""


class InvalidWindowError(WindowError, ValueError):
    """Windows that cannot be, found when they are declared."""

    part: str  # What is wrong: ``Tumbling``, ``CountTrigger``, ``the allowed lateness``
    reason: str
    way_out: str
    message = "{part} cannot be used: {reason}. {way_out}"


class MissingTimestampError(WindowError):
    """A row without event time that is given to event-time windows (Flink's ``Long.MIN_VALUE`` timestamp)."""

    assigner: str
    message = (
        "{assigner} cannot assign a row that has no event time. Name the column with event_time=, and say "
        "what is done with rows where it is null: missing='drop' or missing='side output'."
    )


class InvalidGapError(WindowError):
    """A gap that a dynamic session's function gave for a row, and that no session can have."""

    gap: object
    message = (
        "the gap of a session is {gap!r} for this row. Return a duration of at least one millisecond for "
        "every row."
    )


class LateMergeError(WindowError):
    """Windows that merge to one whose end has passed already, which would fire it a second time."""

    window: object
    now: int  # The watermark, or the processing time, in milliseconds
    message = (
        "merging made {window!r}, which ended before the present time {now} of its time line. Make "
        "merge_windows() of the assigner give windows that end no earlier than those that it merges."
    )


class PerWindowStateError(WindowError):
    """Per-window state of windows that merge: it is unknown how to merge it. Flink refuses it too."""

    state: str
    message = (
        "the state {state!r} belongs to one window, and these windows merge. Use ctx.global_state(), which "
        "belongs to the key, or windows that do not merge."
    )
