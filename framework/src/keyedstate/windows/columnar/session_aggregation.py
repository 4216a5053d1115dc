"""Declared aggregates of session windows with a fixed gap, by columns.

The rows of a batch and the stored sessions of their keys are intervals; sorted by key and start, one pass
says which of them become one session.  Rows are reduced to one value for each session and merged with what
the sessions held that went into it.  What comes out is what the window operator gives row by row with an
`EventTimeTrigger`, but for late rows: those of one batch make one late firing of the session they end in.
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
from keyedstate.runtime.function import Context
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.runtime.timers import TimerBatch
from keyedstate.runtime.vectorized import KeyedBatch
from keyedstate.state import ValueState
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME
from keyedstate.types import INT64, accumulators_of, nullable
from keyedstate.windows.columnar.late_rows import ColumnarWindows, Times
from keyedstate.windows.declaration.contents import CONTENTS
from keyedstate.windows.declaration.definition import WindowDefinition
from keyedstate.windows.declaration.sessions import Session

#: What is kept of a session before its accumulators; the first session of a key says how many there are.
_COUNT, _START, _END, _DUE = range(4)
_BOUNDS = ("sessions", "start", "end", "due")


@dataclass
class _Sessions:
    """Sessions of some keys, as columns.

    Attributes
    ----------
    owners : ndarray of int64
        For each session the place of its key.
    starts, ends : ndarray of int64
    due : ndarray of int64
        When a timer has to ask for it: at its last millisecond, and once it has fired, at the end of the
        allowed lateness.
    parts : list of Part
        The parts of the accumulators.
    """

    owners: Times
    starts: Times
    ends: Times
    due: Times
    parts: list[Part]

    def taken(self, places: npt.NDArray[Any]) -> _Sessions:
        """Return those at some places, or where a mask is true."""
        if places.dtype == np.bool_:
            if places.all():
                return self
            places = np.flatnonzero(places)
        chosen = places.tolist()
        parts = [[part[place] for place in chosen] for part in self.parts]
        return _Sessions(self.owners[places], self.starts[places], self.ends[places], self.due[places], parts)


class SessionAggregation(ColumnarWindows):
    """Aggregates of sessions in event time with one gap for all rows; made by `DeclaredAggregation`.

    A key's sessions are values of one state, the earliest under the namespace 0, the next one under 1 and so
    on, so that those of many keys are read and written by a few bulk calls.

    A key with sessions always has a timer at the time at which the first of them is due, or before; a session
    that grows leaves its timer behind, which then registers the next one.  So a session costs a timer for
    each gap, and not for each batch.
    """

    def __init__(self, definition: WindowDefinition, *given: Any, **sides: Any) -> None:
        super().__init__(definition, *given, **sides)
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

    def _add(self, batch: KeyedBatch, rows: Times, times: Times, ctx: Context) -> Iterator[pa.RecordBatch]:
        if not len(rows):
            return
        chosen = batch.rows if len(rows) == len(batch) else batch.rows.take(pa.array(rows))
        by_key = GroupedRows([chosen.column(name) for name in self._key_columns], batch.key_groups[rows])
        times = times[rows]
        stored, before = self._stored(by_key.keys, by_key.key_groups)
        late = self._late_rows(by_key.codes, times, stored, ctx.watermark)
        codes = by_key.codes
        if late.any():
            self._too_late(chosen, np.flatnonzero(late), ctx)
            if late.all():
                return
            chosen, codes, times = chosen.take(pa.array(np.flatnonzero(~late))), codes[~late], times[~late]
            touched = np.zeros(len(by_key), np.bool_)
            touched[codes] = True
            stored, before = stored.taken(touched[stored.owners]), np.where(touched, before, 0)
        merged, of_stored, of_rows = self._merged(stored, codes, times, ctx.watermark)
        grown = GroupedRows([pa.array(of_rows)], by_key.key_groups[codes])
        places = np.array(grown.keys, np.int64)
        self._fold(merged, stored, of_stored)
        self._fold_into(merged.parts, places.tolist(), self._aggregation.reduce(chosen, grown))
        # A session that no row has come to lies where it lay; two become one by a row alone.
        held = np.full(len(merged.owners), -1)
        held[of_stored] = _ranks(stored.owners)
        held[places] = -1
        self._write(by_key.keys, by_key.key_groups, merged, before, held)
        self._register_earlier(by_key.keys, by_key.key_groups, stored, merged, ctx)
        ended = np.zeros(len(merged.owners), np.bool_)
        ended[places] = merged.ends[places] - 1 <= ctx.watermark
        if ended.any():
            fired = merged.taken(ended)
            keys = [column.take(pa.array(fired.owners)) for column in by_key.key_columns]
            results = self._aggregation.results(fired.parts)
            yield from self._fired(keys, fired.starts, fired.ends, results)

    def _late_rows(
        self, codes: Times, times: Times, stored: _Sessions, watermark: int
    ) -> npt.NDArray[np.bool_]:
        """Return which rows belong to no session but one that would be over.

        A row whose own window is over still belongs to a session that is there when it comes: a stored one,
        or that of a row before it.
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
        self, stored: _Sessions, codes: Times, times: Times, watermark: int
    ) -> tuple[_Sessions, Times, Times]:
        """Return the sessions that stored ones and rows become, and which one each of both is in.

        Sessions are in the order of owners and starts, and have no accumulators yet.
        """
        row_ends = np.where(times > END_OF_TIME - self._gap, END_OF_TIME, times + self._gap)
        owners = np.concatenate([stored.owners, codes])
        starts = np.concatenate([stored.starts, times])
        ends = np.concatenate([stored.ends, row_ends])
        order = _sorted(owners, starts)
        owners, starts, ends = owners[order], starts[order], ends[order]
        is_stored = order < len(stored.owners)
        # How far the session goes up to each interval.  Stored sessions of a key follow each other, and so do
        # rows: it is the end of the last one of either kind, where that is of the same key.
        places = np.arange(len(order))
        of_next_key = np.diff(owners, prepend=-1) != 0
        first_of_key = np.maximum.accumulate(np.where(of_next_key, places, 0))
        reach = ends.copy()
        for kind in (is_stored, ~is_stored):
            last = np.maximum.accumulate(np.where(kind, places, -1))
            there = last >= first_of_key
            reach[there] = np.maximum(reach[there], ends[last[there]])
        begins = of_next_key
        begins[1:] |= starts[1:] > reach[:-1]
        numbers = np.cumsum(begins) - 1
        of_either = np.empty(len(order), np.int64)
        of_either[order] = numbers
        of_stored, of_rows = of_either[: len(stored.owners)], of_either[len(stored.owners) :]
        lasts = np.append(np.flatnonzero(begins)[1:], len(order)) - 1
        ends = reach[lasts]
        # One that fires in this batch has no more to do than to wait for the end of the lateness.
        due = self._due(ends, ends - 1 <= watermark)
        parts: list[Part] = [[None] * len(lasts) for _ in range(self._parts)]
        return _Sessions(owners[begins], starts[begins], ends, due, parts), of_stored, of_rows

    def _due(self, ends: Times, fired: npt.NDArray[np.bool_]) -> Times:
        """Return when sessions are due; the end of time for those that stay for good."""
        lasts = ends - 1
        if self._lateness > END_OF_TIME:
            return np.where(fired, END_OF_TIME, lasts)
        most = END_OF_TIME - self._lateness
        over = np.where(lasts > most, END_OF_TIME, np.minimum(lasts, most) + self._lateness)
        return np.where(fired, over, lasts)

    def _fold(self, merged: _Sessions, stored: _Sessions, of_stored: Times) -> None:
        """Bring the accumulators of stored sessions into those that these have become, in their order."""
        turn = _ranks(of_stored)
        for now in range(int(turn.max()) + 1 if len(turn) else 0):
            some = turn == now
            self._fold_into(merged.parts, of_stored[some].tolist(), stored.taken(some).parts, alone=now == 0)

    def _fold_into(
        self, parts: list[Part], places: list[int], new: list[Part], *, alone: bool = False
    ) -> None:
        """Merge accumulators into those at some places; `alone` where nothing is there yet."""
        if not alone:
            new = self._aggregation.merged([[part[place] for place in places] for part in parts], new)
        for part, values in zip(parts, new, strict=True):
            for place, value in zip(places, values, strict=True):
                part[place] = value

    def _register_earlier(
        self, keys: list[Any], key_groups: Any, stored: _Sessions, merged: _Sessions, ctx: Context
    ) -> None:
        """Register timers of keys whose first session is due before the one that was."""
        before = _least_by_owner(stored, len(keys))
        now = _least_by_owner(merged, len(keys))
        self._register(keys, key_groups, np.flatnonzero(now < before), now, ctx)

    def _register(self, keys: list[Any], key_groups: Any, places: Times, due: Times, ctx: Context) -> None:
        if len(places):
            some = [keys[place] for place in places.tolist()]
            groups = np.asarray(key_groups)[places]
            ctx.timer_service.register_event_time_timers(some, due[places], groups)

    # -- timers -------------------------------------------------------------------------------------------

    def on_timers(self, timers: TimerBatch, ctx: Context) -> Iterator[pa.RecordBatch]:
        # A key has several timers where an earlier session came later.
        groups_of = dict(zip(timers.keys, timers.key_groups, strict=True))
        keys, groups = list(groups_of), list(groups_of.values())
        sessions, before = self._stored(keys, groups)
        # The final watermark is one for timers alone.
        now = ctx.timer_service.current_watermark
        lasts = sessions.ends - 1
        fires = (sessions.due == lasts) & (lasts <= now)
        sessions.due = np.where(fires, self._due(sessions.ends, fires), sessions.due)
        if fires.any():
            fired = sessions.taken(fires)
            fired = fired.taken(np.argsort(fired.ends, kind="stable"))
            owners = self._as_columns([keys[place] for place in fired.owners.tolist()])
            results = self._aggregation.results(fired.parts)
            yield from self._fired(owners, fired.starts, fired.ends, results)
        # A session that has ended is due at the end of the lateness, and without any at once.
        stays = (sessions.due > now) | (sessions.due == END_OF_TIME)
        left = sessions.taken(stays)
        held = np.where(fires, -1, _ranks(sessions.owners))[stays]
        self._write(keys, groups, left, before, held)
        due = _least_by_owner(left, len(keys))
        self._register(keys, groups, np.flatnonzero(due < END_OF_TIME), due, ctx)

    # -- state --------------------------------------------------------------------------------------------

    def _stored(self, keys: list[Any], key_groups: Any) -> tuple[_Sessions, Times]:
        """Return the sessions of keys, in the order of these and of starts, and how many each key has."""
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
                there = [place for place, value in enumerate(values) if value is not None]
                if len(there) < len(values):
                    values = [values[place] for place in there]
                counts[there] = list(map(itemgetter(_COUNT), values))
                some = some[there]
            owners += some.tolist()
            found += values
            slot += 1
            some = some[counts[some] > slot]
        starts, ends, due = (
            np.array(list(map(itemgetter(place), found)), np.int64) for place in (_START, _END, _DUE)
        )
        parts = [list(map(itemgetter(place + len(_BOUNDS)), found)) for place in range(self._parts)]
        sessions = _Sessions(np.array(owners, np.int64), starts, ends, due, parts)
        return sessions if slot < 2 else sessions.taken(np.lexsort((starts, sessions.owners))), counts

    def _write(
        self, keys: list[Any], key_groups: Any, sessions: _Sessions, before: Times, held: Times
    ) -> None:
        """Make sessions, in the order of owners and starts, those that keys have, and let others go.

        Parameters
        ----------
        keys : list
        key_groups : sequence of int
        sessions : _Sessions
        before : ndarray of int64
            How many sessions each key had.
        held : ndarray of int64
            For each session the number under which it lies as it is; -1 where it has changed.
        """
        state = self._sessions
        groups: Any = np.asarray(key_groups)
        counts = np.bincount(sessions.owners, minlength=len(keys))
        slots = _ranks(sessions.owners)
        other_count = (slots == 0) & (counts != before)[sessions.owners]
        written = np.flatnonzero((held != slots) | other_count)
        sessions, slots = sessions.taken(written), slots[written]
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
                    chosen = sessions.taken(places)
                    raise self._aggregation.overflow(some, chosen.parts, error) from error
            gone = np.flatnonzero((counts <= slot) & (before > slot))
            if len(gone):
                state.clear_many([keys[place] for place in gone.tolist()], groups[gone])


class _Intervals:
    """The sessions of one key while its rows come, merged or not: what touches one touches its session."""

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


def _sorted(owners: Times, starts: Times) -> Times:
    """Return the order of intervals by owner and start; at least one."""
    first = int(starts.min())
    span = int(starts.max()) - first + 1
    if span * (int(owners.max()) + 1) <= END_OF_TIME:
        # In one number, which sorts ten times as fast.
        return np.argsort(owners * span + (starts - first))
    return np.lexsort((starts, owners))


def _ranks(ascending: Times) -> Times:
    """Return for each number how many equal ones are before it."""
    return np.arange(len(ascending)) - np.searchsorted(ascending, ascending)


def _least_by_owner(sessions: _Sessions, keys: int) -> Times:
    """Return for each key when the first of its sessions is due; the end of time where it has none."""
    least = np.full(keys, END_OF_TIME, np.int64)
    np.minimum.at(least, sessions.owners, sessions.due)
    return least
