"""Declared aggregates of session windows with a fixed gap, by columns.

The rows of a batch and the stored sessions of their keys are intervals.  Sorted by key and start, one pass
finds which of them become one session.  Rows are reduced to one value for each session and merged with the
stored sessions that it covers.  The results are those of the window operator with an `EventTimeTrigger`, row
by row, but for late rows: those of one batch make one late firing of their session.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.aggregates.declaration import Part
from keyedstate.errors import StateValueError
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.functions.vectorized import KeyedBatch
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.runtime.timers import TimerBatch
from keyedstate.state import ValueState
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME
from keyedstate.types import INT64, accumulators_of, nullable
from keyedstate.windows.columnar.function import ColumnarWindowFunction, Integers
from keyedstate.windows.declaration.contents import CONTENTS
from keyedstate.windows.declaration.definition import WindowDefinition
from keyedstate.windows.declaration.sessions import Session

#: The parts of a stored session before its accumulators; the first one of a key has the number of sessions.
_COUNT, _START, _END, _DUE = range(4)
_BOUNDS = ("sessions", "start", "end", "due")


@dataclass
class _Sessions:
    """Sessions of some keys, as columns."""

    #: The place of each session's key.
    owners: Integers
    starts: Integers
    ends: Integers
    #: When a timer must look at it: at its last millisecond, and once it has fired, at the end of the allowed
    #: lateness.
    due: Integers
    #: The parts of the accumulators.
    parts: list[Part]

    def take(self, places: npt.NDArray[Any]) -> _Sessions:
        """Return the sessions at some places, or where a mask is true."""
        if places.dtype == np.bool_:
            if places.all():
                return self
            places = np.flatnonzero(places)
        chosen = places.tolist()
        parts = [[part[place] for place in chosen] for part in self.parts]
        return _Sessions(self.owners[places], self.starts[places], self.ends[places], self.due[places], parts)


class SessionAggregation(ColumnarWindowFunction):
    """Aggregates of sessions in event time with one gap for all rows; made by `DeclaredAggregation`.

    A key's sessions are values of one state: the earliest under the namespace 0, the next one under 1 and so
    on, so that a few bulk calls read and write those of many keys.

    A key with sessions always has a timer when the first of them is due, or before.  A session that grows
    keeps its timer, which registers the next one when it fires.  So a session costs one timer for each gap,
    and not for each batch.
    """

    def __init__(self, definition: WindowDefinition, *given: Any) -> None:
        super().__init__(definition, *given)
        assigner = definition.assigner
        assert isinstance(assigner, Session) and assigner.gap is not None
        self._gap = assigner.gap
        kept = self._aggregation.accumulator_type
        parts = dict(zip(kept.names, kept.field_serializers, strict=True))
        self._type = accumulators_of({**dict.fromkeys(_BOUNDS, nullable(INT64)), **parts})
        self._parts = len(parts)

    def open(self, ctx: Context) -> None:
        self._sessions = ctx._backend.get_state(ValueState(CONTENTS, self._type), 0, INT64)

    # -- rows ---------------------------------------------------------------------------------------------

    def _add(
        self, batch: KeyedBatch, rows: Integers, times: Integers, ctx: Context
    ) -> Iterator[pa.RecordBatch]:
        if not len(rows):
            return
        chosen = batch.rows if len(rows) == len(batch) else batch.rows.take(pa.array(rows))
        by_key = GroupedRows([chosen.column(name) for name in self._key_columns], batch.key_groups[rows])
        times = times[rows]
        stored, before = self._stored(by_key.keys, by_key.key_groups)
        late = self._late_rows(by_key.codes, times, stored, ctx.watermark)
        codes = by_key.codes
        if late.any():
            self._put_late(chosen, np.flatnonzero(late), ctx)
            if late.all():
                return
            chosen, codes, times = chosen.take(pa.array(np.flatnonzero(~late))), codes[~late], times[~late]
            touched = np.zeros(len(by_key), np.bool_)
            touched[codes] = True
            stored, before = stored.take(touched[stored.owners]), np.where(touched, before, 0)
        merged, of_stored, of_rows = self._merged(stored, codes, times, ctx.watermark)
        grown = GroupedRows([pa.array(of_rows)], by_key.key_groups[codes])
        places = np.array(grown.keys, np.int64)
        self._fold(merged, stored, of_stored)
        self._fold_into(merged.parts, places.tolist(), self._aggregation.reduce(chosen, grown))
        # A session without new rows is unchanged, since only a row can merge two of them.
        old_slots = np.full(len(merged.owners), -1)
        old_slots[of_stored] = _ranks(stored.owners)
        old_slots[places] = -1
        self._write(by_key.keys, by_key.key_groups, merged, before, old_slots)
        self._register_earlier(by_key.keys, by_key.key_groups, stored, merged, ctx)
        ended = np.zeros(len(merged.owners), np.bool_)
        ended[places] = merged.ends[places] - 1 <= ctx.watermark
        if ended.any():
            fired = merged.take(ended)
            keys = [column.take(pa.array(fired.owners)) for column in by_key.key_columns]
            results = self._aggregation.results(fired.parts)
            yield from self._results(keys, fired.starts, fired.ends, results)

    def _late_rows(
        self, codes: Integers, times: Integers, stored: _Sessions, watermark: int
    ) -> npt.NDArray[np.bool_]:
        """Return which rows are too late: those whose own window is over, and that touch no session.

        A session may be a stored one, or that of an earlier row.
        """
        late = np.zeros(len(times), np.bool_)
        over = watermark - self._lateness - self._gap + 1
        if over < BEFORE_TIME:
            return late
        suspects = times <= over
        if not suspects.any():
            return late
        keys = np.unique(codes[suspects])
        if not len(stored.owners) and suspects.all():
            return suspects
        windows: dict[int, _Intervals] = {int(key): _Intervals(self._gap) for key in keys.tolist()}
        for place in np.flatnonzero(np.isin(stored.owners, keys)).tolist():
            windows[int(stored.owners[place])].add(int(stored.starts[place]), int(stored.ends[place]))
        for row in np.flatnonzero(np.isin(codes, keys)).tolist():
            of_key, time = windows[int(codes[row])], int(times[row])
            if suspects[row] and not of_key.touches(time, time + self._gap):
                late[row] = True
            else:
                of_key.add(time, time + self._gap)
        return late

    def _merged(
        self, stored: _Sessions, codes: Integers, times: Integers, watermark: int
    ) -> tuple[_Sessions, Integers, Integers]:
        """Return the sessions of stored ones and rows, and for each of both the place of its session.

        Sessions are sorted by owner and start, and have no accumulators yet.
        """
        row_ends = np.where(times > END_OF_TIME - self._gap, END_OF_TIME, times + self._gap)
        owners = np.concatenate([stored.owners, codes])
        starts = np.concatenate([stored.starts, times])
        ends = np.concatenate([stored.ends, row_ends])
        order = _sorted(owners, starts)
        owners, starts, ends = owners[order], starts[order], ends[order]
        is_stored = order < len(stored.owners)
        # The end of the session up to each interval.  Stored sessions of a key do not overlap, and rows end
        # in the order of their starts, so it is the end of the last one of either kind of the same key.
        places = np.arange(len(order))
        of_next_key = np.diff(owners, prepend=-1) != 0
        first_of_key = np.maximum.accumulate(np.where(of_next_key, places, 0))
        reach = ends.copy()
        for kind in (is_stored, ~is_stored):
            last = np.maximum.accumulate(np.where(kind, places, -1))
            of_key = last >= first_of_key
            reach[of_key] = np.maximum(reach[of_key], ends[last[of_key]])
        begins = of_next_key
        begins[1:] |= starts[1:] > reach[:-1]
        numbers = np.cumsum(begins) - 1
        of_either = np.empty(len(order), np.int64)
        of_either[order] = numbers
        of_stored, of_rows = of_either[: len(stored.owners)], of_either[len(stored.owners) :]
        lasts = np.append(np.flatnonzero(begins)[1:], len(order)) - 1
        ends = reach[lasts]
        # A session that fires in this batch only waits for the end of the lateness.
        due = self._due(ends, ends - 1 <= watermark)
        parts: list[Part] = [[None] * len(lasts) for _ in range(self._parts)]
        return _Sessions(owners[begins], starts[begins], ends, due, parts), of_stored, of_rows

    def _due(self, ends: Integers, fired: npt.NDArray[np.bool_]) -> Integers:
        """Return when sessions are due; the end of time for those that are kept forever."""
        lasts = ends - 1
        if self._lateness > END_OF_TIME:
            return np.where(fired, END_OF_TIME, lasts)
        most = END_OF_TIME - self._lateness
        over = np.where(lasts > most, END_OF_TIME, np.minimum(lasts, most) + self._lateness)
        return np.where(fired, over, lasts)

    def _fold(self, merged: _Sessions, stored: _Sessions, of_stored: Integers) -> None:
        """Merge the accumulators of stored sessions, in their order, into the sessions that cover them."""
        ranks = _ranks(of_stored)
        for rank in range(int(ranks.max()) + 1 if len(ranks) else 0):
            some = ranks == rank
            self._fold_into(merged.parts, of_stored[some].tolist(), stored.take(some).parts, empty=rank == 0)

    def _fold_into(
        self, parts: list[Part], places: list[int], new: list[Part], *, empty: bool = False
    ) -> None:
        """Merge accumulators into those at some places, which may be known to be empty."""
        if not empty:
            new = self._aggregation.merged([[part[place] for place in places] for part in parts], new)
        for part, values in zip(parts, new, strict=True):
            for place, value in zip(places, values, strict=True):
                part[place] = value

    def _register_earlier(
        self, keys: list[Any], key_groups: Any, stored: _Sessions, merged: _Sessions, ctx: Context
    ) -> None:
        """Register timers of keys whose first session is due before that of the stored ones."""
        before = _least_by_owner(stored, len(keys))
        now = _least_by_owner(merged, len(keys))
        self._register(keys, key_groups, np.flatnonzero(now < before), now, ctx)

    def _register(
        self, keys: list[Any], key_groups: Any, places: Integers, due: Integers, ctx: Context
    ) -> None:
        if len(places):
            some = [keys[place] for place in places.tolist()]
            groups = np.asarray(key_groups)[places]
            ctx.timer_service.register_event_time_timers(some, due[places], groups)

    # -- timers -------------------------------------------------------------------------------------------

    def on_timers(self, timers: TimerBatch, ctx: Context) -> Iterator[pa.RecordBatch]:
        # A key may have several timers, since an earlier session may come later.
        groups_of = dict(zip(timers.keys, timers.key_groups, strict=True))
        keys, groups = list(groups_of), list(groups_of.values())
        sessions, before = self._stored(keys, groups)
        # Not that of the context, which does not show the final watermark.
        now = ctx.timer_service.current_watermark
        lasts = sessions.ends - 1
        fires = (sessions.due == lasts) & (lasts <= now)
        sessions.due = np.where(fires, self._due(sessions.ends, fires), sessions.due)
        if fires.any():
            fired = sessions.take(fires)
            fired = fired.take(np.argsort(fired.ends, kind="stable"))
            owners = self._as_columns([keys[place] for place in fired.owners.tolist()])
            results = self._aggregation.results(fired.parts)
            yield from self._results(owners, fired.starts, fired.ends, results)
        # Without lateness a session that has fired is due at once.
        stays = (sessions.due > now) | (sessions.due == END_OF_TIME)
        left = sessions.take(stays)
        old_slots = np.where(fires, -1, _ranks(sessions.owners))[stays]
        self._write(keys, groups, left, before, old_slots)
        due = _least_by_owner(left, len(keys))
        self._register(keys, groups, np.flatnonzero(due < END_OF_TIME), due, ctx)

    # -- state --------------------------------------------------------------------------------------------

    def _stored(self, keys: list[Any], key_groups: Any) -> tuple[_Sessions, Integers]:
        """Return the sessions of keys, sorted by key and start, and their number for each key."""
        owners: list[int] = []
        found: list[tuple[Any, ...]] = []
        counts = np.zeros(len(keys), np.int64)
        groups: Any = np.asarray(key_groups)
        some = np.arange(len(keys))
        slot = 0
        while len(some):
            chosen = keys if slot == 0 else [keys[place] for place in some.tolist()]
            self._sessions.set_namespace(slot)
            values: list[Any] = self._sessions.get_many(chosen, groups[some])
            if slot == 0:
                found_at = [place for place, value in enumerate(values) if value is not None]
                if len(found_at) < len(values):
                    values = [values[place] for place in found_at]
                counts[found_at] = list(map(itemgetter(_COUNT), values))
                some = some[found_at]
            owners += some.tolist()
            found += values
            slot += 1
            some = some[counts[some] > slot]
        starts, ends, due = (
            np.array(list(map(itemgetter(place), found)), np.int64) for place in (_START, _END, _DUE)
        )
        parts = [list(map(itemgetter(place + len(_BOUNDS)), found)) for place in range(self._parts)]
        sessions = _Sessions(np.array(owners, np.int64), starts, ends, due, parts)
        return sessions if slot < 2 else sessions.take(np.lexsort((starts, sessions.owners))), counts

    def _write(
        self, keys: list[Any], key_groups: Any, sessions: _Sessions, before: Integers, old_slots: Integers
    ) -> None:
        """Write the sessions of keys, sorted by owner and start, and remove their other ones.

        Each key had `before` sessions.  A session is stored already under its old slot; -1 where it is new or
        has changed.
        """
        state = self._sessions
        groups: Any = np.asarray(key_groups)
        counts = np.bincount(sessions.owners, minlength=len(keys))
        slots = _ranks(sessions.owners)
        other_count = (slots == 0) & (counts != before)[sessions.owners]
        written = np.flatnonzero((old_slots != slots) | other_count)
        sessions, slots = sessions.take(written), slots[written]
        columns = [column.tolist() for column in (sessions.starts, sessions.ends, sessions.due)]
        of_first = [
            number if slot == 0 else None
            for number, slot in zip(counts[sessions.owners].tolist(), slots.tolist(), strict=True)
        ]
        values = list(zip(of_first, *columns, *sessions.parts, strict=True))
        for slot in range(int(max(counts.max(), before.max()))):
            state.set_namespace(slot)
            places = np.flatnonzero(slots == slot)
            if len(places):
                owners = sessions.owners[places]
                some = [keys[owner] for owner in owners.tolist()]
                try:
                    state.update_many(some, [values[place] for place in places.tolist()], groups[owners])
                except StateValueError as error:
                    chosen = sessions.take(places)
                    raise self._aggregation.overflow(some, chosen.parts, error) from error
            removed = np.flatnonzero((counts <= slot) & (before > slot))
            if len(removed):
                state.clear_many([keys[place] for place in removed.tolist()], groups[removed])


class _Intervals:
    """The intervals of one key; what touches an interval touches its session."""

    def __init__(self, gap: int) -> None:
        self._gap = gap
        #: Stored sessions, and the starts of rows; these in order.
        self._stored: list[tuple[int, int]] = []
        self._starts: list[int] = []

    def add(self, start: int, end: int) -> None:
        if end - start == self._gap:
            insort(self._starts, start)
        else:
            self._stored.append((start, end))

    def touches(self, start: int, end: int) -> bool:
        """Return whether an interval intersects or touches one of them."""
        place = bisect_left(self._starts, start - self._gap)
        if place < len(self._starts) and self._starts[place] <= end:
            return True
        return any(first <= end and last >= start for first, last in self._stored)


def _sorted(owners: Integers, starts: Integers) -> Integers:
    """Return the order of intervals by owner and start; at least one."""
    first = int(starts.min())
    span = int(starts.max()) - first + 1
    if span * (int(owners.max()) + 1) <= END_OF_TIME:
        # One number for both sorts ten times as fast.
        return np.argsort(owners * span + (starts - first))
    return np.lexsort((starts, owners))


def _ranks(ascending: Integers) -> Integers:
    """Return for each number the count of equal ones before it."""
    return np.arange(len(ascending)) - np.searchsorted(ascending, ascending)


def _least_by_owner(sessions: _Sessions, keys: int) -> Integers:
    """Return when the first session of each key is due; the end of time where it has none."""
    least = np.full(keys, END_OF_TIME, np.int64)
    np.minimum.at(least, sessions.owners, sessions.due)
    return least
