"""The join with a versioned table: each left row meets the version of its key as of its event time.

The right input is the log of a table that changes slowly: each row is a version of its key, valid from its
event time until the next one.  A left row waits until the watermark has reached its time, because its version
may still come.  Of the versions that the watermark has passed only the last one is kept.  Flink's
``TemporalRowTimeJoinOperator``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from keyedstate.errors import InvalidJoinError
from keyedstate.joins.columns import Fold, JoinedColumn, JoinedRows, JoinType, deletion_place, joined_columns
from keyedstate.joins.join_function import NULL_KEY, JoinFunction, declared_side_outputs
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs
from keyedstate.runtime.functions.keyed import Context
from keyedstate.state import MapState, StateDescriptor
from keyedstate.time import Timer
from keyedstate.types import INT64, VOID, VOID_NAMESPACE, list_of

#: The timer service of the times at which left rows are joined and versions replaced.
TIMERS = "versioned-join"


class VersionedJoinFunction(JoinFunction):
    """Joins left rows with the versions of right rows; made by `keyedstate.joins.versioned_join`.

    `deleted` is the boolean column of the right input that is true where a version ends its key.
    """

    _declared_by = "versioned_join()"

    def __init__(
        self, how: JoinType, deleted: str | None, side_outputs: Mapping[str, Any], missing: str
    ) -> None:
        super().__init__(side_outputs, missing)
        self._how = how
        self._deleted = deleted
        self._deleted_place: int | None = None

    def for_inputs(self, inputs: ConnectedInputs) -> VersionedJoinFunction:
        """Return the function for rows of these columns.

        Raises
        ------
        InvalidJoinError
            Where they have no event times, or the right input no such column.
        """
        self._need_event_time(inputs, "the versioned join", "versions are found by their event times")
        bound = self._bound(inputs)
        if self._deleted is not None:
            bound._deleted_place = deletion_place("the right rows", self._deleted, inputs.second.schema)
        return bound

    def output_columns(self, inputs: ConnectedInputs, fold: Fold) -> list[JoinedColumn]:
        return joined_columns(inputs, fold, self._how)

    def states(self) -> list[StateDescriptor[Any]]:
        """Return the states, which are no attributes: left rows that wait, and versions, by their times."""
        (_, left), (_, right) = self._row_types()
        return [MapState("waiting", INT64, list_of(left)), MapState("versions", INT64, right)]

    def open(self, ctx: Context) -> None:
        self._waiting, self._versions = (ctx.state(state) for state in self.states())
        assert self._inputs is not None, "it has states"
        self._joined = JoinedRows(self._inputs)
        self._timers = ctx._timers.service(TIMERS, self, VOID)

    def process1(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        time = self._time_of(row, ctx, False)
        if time is None:
            return None
        if time < ctx.watermark:
            self._set_late_aside(row, ctx, False)
        elif not self._null_in_key(ctx):
            # Not in place: a snapshot that is being written may share the list.
            self._waiting.put(time, [*(self._waiting.get(time) or ()), row])
            self._timers.register_event_time_timer(VOID_NAMESPACE, time)
        elif self._how is JoinType.LEFT:
            return [self._joined.alone(row, of_right=False)]
        else:
            ctx._dropped[NULL_KEY] += 1
        return None

    def process2(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        time = self._time_of(row, ctx, True)
        if time is None or self._has_null_key(ctx):
            return None
        if time < ctx.watermark and self._time_of_version(ctx.watermark, time) > time:
            # Every left row that is still to come has a later version.
            self._set_late_aside(row, ctx, True)
            return None
        self._versions.put(time, row)
        self._timers.register_event_time_timer(VOID_NAMESPACE, time)
        return None

    def _time_of_version(self, until: int, default: int) -> int:
        """Return the time of the last version up to a time."""
        return max((time for time, _ in self._versions.items() if time <= until), default=default)

    def on_event_time(self, timer: Timer) -> Iterable[Any] | None:
        """Join the left rows of a time, and remove the versions that were replaced by then."""
        versions, now = self._versions, timer.time
        passed = sorted(time for time, _ in versions.items() if time <= now)
        version = versions.get(passed[-1]) if passed else None
        if version is not None and self._deleted_place is not None and version[self._deleted_place]:
            version = None
        # A version that ends its key is removed like the ones before it.
        versions.remove_all(passed if version is None else passed[:-1])
        rows = self._waiting.get(now)
        if rows is None:
            return None
        self._waiting.remove(now)
        if version is not None:
            of_left, right = self._joined.of_left, self._joined.of_right(version)
            return [of_left(row) + right for row in rows]
        if self._how is JoinType.LEFT:
            return [self._joined.alone(row, of_right=False) for row in rows]
        return None

    def on_processing_time(self, timer: Timer) -> None:
        """Do nothing: a versioned join registers none."""


def versioned_join(
    how: str = "inner", *, deleted: str | None = None, late: str = "drop", missing: str = "fail"
) -> VersionedJoinFunction:
    """Declare a versioned join without Spark; the result is a function of two inputs, for a test harness.

    Parameters
    ----------
    how : {"inner", "left"}, optional
    deleted : str, optional
        A boolean column of the right input, true in a row that ends the versions of its key.
    late : {"drop", "side output"}, optional
        What happens to left rows before the watermark, and to versions that are replaced when they come.
    missing : {"fail", "drop", "side output"}, optional
        What happens to rows without an event time.

    Raises
    ------
    InvalidJoinError
    """
    chosen = JoinType.of(how)
    if chosen not in (JoinType.INNER, JoinType.LEFT):
        raise InvalidJoinError(
            f"the {how} join",
            "a versioned join emits left rows, with or without a version",
            "Give 'inner' or 'left'.",
        )
    sides, policy = declared_side_outputs(late, missing)
    return VersionedJoinFunction(chosen, deleted, sides, policy)
