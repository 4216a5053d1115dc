"""Timers as process functions see them: without namespaces, and with a context of their own."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from keyedstate.time import TimerService
from keyedstate.time.service import KeyGroupColumn, TimeColumn
from keyedstate.types import VOID_NAMESPACE

#: The name of the service of a process function (Flink's ``KeyedProcessOperator``).
USER_TIMERS = "user-timers"


class TimeDomain(enum.Enum):
    """The time by which a timer fires (Flink's ``TimeDomain``)."""

    EVENT_TIME = "event-time"
    PROCESSING_TIME = "processing-time"


class AtEnd(enum.Enum):
    """Which timers fire after the last row that an operator is given."""

    #: An epoch is over: those that are due.
    EPOCH = "epoch"
    #: The input is over: all.
    INPUT = "input"
    #: The query is drained: all of event time, and those of processing time that are due.
    DRAINED = "drained"
    #: Only the state is wanted: none.
    NOTHING = "nothing"


class KeyTimers:
    """The timers of the current key (Flink's ``TimerService``); times are milliseconds since 1970 UTC.

    A timer is a time in one of two domains. It fires once, with ``on_timer``, however often it is registered;
    one whose time has passed fires at the end of the epoch.
    """

    __slots__ = ("_service",)

    def __init__(self, service: TimerService) -> None:
        self._service = service

    @property
    def current_watermark(self) -> int:
        """The event time up to which all rows have come; -2**63 while it is unknown."""
        return self._service.current_watermark

    @property
    def current_processing_time(self) -> int:
        """The processing time by which timers fire; fixed for an epoch."""
        return self._service.current_processing_time

    def register_event_time_timer(self, time: int | dt.datetime) -> None:
        """Register a timer that fires when the watermark has reached a time.

        It is in milliseconds since 1970 UTC, or a datetime, which is rounded down to them.

        Raises
        ------
        InvalidTimerTimeError
        NoEventTimeError
            Where the operator does not know the event time of its rows.
        """
        self._service.register_event_time_timer(VOID_NAMESPACE, time)

    def delete_event_time_timer(self, time: int | dt.datetime) -> None:
        """Delete a timer, if it exists."""
        self._service.delete_event_time_timer(VOID_NAMESPACE, time)

    def register_processing_time_timer(self, time: int | dt.datetime) -> None:
        """Register a timer that fires when processing time has reached a time.

        It fires in the first epoch that begins then or later; where no rows may come, give ``keyed`` a
        heartbeat.
        """
        self._service.register_processing_time_timer(VOID_NAMESPACE, time)

    def delete_processing_time_timer(self, time: int | dt.datetime) -> None:
        """Delete a timer, if it exists."""
        self._service.delete_processing_time_timer(VOID_NAMESPACE, time)

    # -- the timers of many keys --------------------------------------------------------------------------

    def register_event_time_timers(
        self, keys: Iterable[Any], times: TimeColumn, key_groups: KeyGroupColumn = None
    ) -> None:
        """Register a timer of each of several keys, whatever the current key is.

        Parameters
        ----------
        keys : iterable
        times : int, sequence or ndarray of int
            One for all, which costs little more than the update of a set, or one of each.
        key_groups : sequence of int, optional
            The key group of each key where the caller knows it.

        Raises
        ------
        InvalidTimerTimeError, NoEventTimeError, ValueTypeError, ValueError
            No timer is registered then.
        """
        self._service.register_event_time_timers(keys, key_groups, VOID_NAMESPACE, times)

    def delete_event_time_timers(
        self, keys: Iterable[Any], times: TimeColumn, key_groups: KeyGroupColumn = None
    ) -> None:
        """Delete a timer of each of several keys, where it exists."""
        self._service.delete_event_time_timers(keys, key_groups, VOID_NAMESPACE, times)

    def register_processing_time_timers(
        self, keys: Iterable[Any], times: TimeColumn, key_groups: KeyGroupColumn = None
    ) -> None:
        """Register a timer of each of several keys, as `register_event_time_timers` does."""
        self._service.register_processing_time_timers(keys, key_groups, VOID_NAMESPACE, times)

    def delete_processing_time_timers(
        self, keys: Iterable[Any], times: TimeColumn, key_groups: KeyGroupColumn = None
    ) -> None:
        """Delete a timer of each of several keys, where it exists."""
        self._service.delete_processing_time_timers(keys, key_groups, VOID_NAMESPACE, times)


@dataclass(frozen=True, eq=False, slots=True)
class TimerBatch:
    """The timers that a vectorised function handles at once, in the order of time.

    Attributes
    ----------
    keys : list
        The key of each timer; one that has several timers comes several times.
    key_groups : list of int
        The key group of each, for the bulk methods of states.
    times : ndarray of int64
        In milliseconds since 1970 UTC.
    domain : TimeDomain
    """

    keys: list[Any]
    key_groups: list[int]
    times: npt.NDArray[np.int64]
    domain: TimeDomain

    def __len__(self) -> int:
        return len(self.keys)
