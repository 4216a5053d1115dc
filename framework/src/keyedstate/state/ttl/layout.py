"""Where the timestamps are: before a value, in parallel to the elements of a list and the entries of a map.

What has a timestamp up to a limit is expired.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from operator import itemgetter
from typing import Any

from keyedstate.backend import StateKind
from keyedstate.state.clock import UNKNOWN_TIME
from keyedstate.types import (
    TimedDict,
    TimedList,
    TtlListSerializer,
    TtlMapSerializer,
    TtlSerializer,
    TypeSerializer,
)
from keyedstate.types.collections.ttl import TimedSerializer, plain_type


class TtlLayout:
    """The stored form of a state with a time to live: that of one value; lists and maps have their own."""

    def timed_type(self, plain: Any, clock: str) -> TimedSerializer[Any]:
        """Return the serializer of the stored form."""
        return TtlSerializer(plain, clock)

    def timed(self, plain: Any, stamp: int) -> Any:
        """Return the stored form of a plain value, everything in it written at one time."""
        return stamp, plain

    def plain(self, stored: Any) -> Any:
        """Return the plain form, expired parts included; a new object where it can change in place."""
        return stored[1]

    def live(self, stored: Any, limit: int) -> Any:
        """Return what lives of a stored form: itself where all does, None where nothing does."""
        return stored if stored[0] > limit else None

    #: Returns the earliest timestamp; no method, since the clean-up calls it for every entry that it visits.
    oldest: Callable[[Any], int] = staticmethod(itemgetter(0))

    def dated(self, stored: Any, stamp: int) -> Any:
        """Return the stored form with a time for what was written at an unknown one; itself without such."""
        return (stamp, stored[1]) if stored[0] == UNKNOWN_TIME else stored


class _TimedList(TtlLayout):
    def timed_type(self, plain: Any, clock: str) -> TimedSerializer[Any]:
        return TtlListSerializer(plain.element_serializer, clock)

    def timed(self, plain: Any, stamp: int) -> Any:
        return TimedList.of(plain, (stamp,) * len(plain))

    def plain(self, stored: Any) -> Any:
        return list(stored)

    def live(self, stored: Any, limit: int) -> Any:
        stamps = stored.stamps
        if min(stamps) > limit:
            return stored
        kept = [stamp > limit for stamp in stamps]
        return TimedList.of(compress(stored, kept), compress(stamps, kept)) if any(kept) else None

    def oldest(self, stored: Any) -> int:
        return min(stored.stamps)  # type: ignore[no-any-return]

    def dated(self, stored: Any, stamp: int) -> Any:
        if UNKNOWN_TIME not in stored.stamps:
            return stored
        stamps = [stamp if written == UNKNOWN_TIME else written for written in stored.stamps]
        return TimedList.of(stored, stamps)


class _TimedMap(TtlLayout):
    def timed_type(self, plain: Any, clock: str) -> TimedSerializer[Any]:
        return TtlMapSerializer(plain.key_serializer, plain.value_serializer, clock)

    def timed(self, plain: Any, stamp: int) -> Any:
        return TimedDict.of(plain, dict.fromkeys(plain, stamp))

    def plain(self, stored: Any) -> Any:
        return dict(stored)

    def live(self, stored: Any, limit: int) -> Any:
        stamps = stored.stamps
        if min(stamps.values()) > limit:
            return stored
        kept = {key: stamp for key, stamp in stamps.items() if stamp > limit}
        return TimedDict.of({key: stored[key] for key in kept}, kept) if kept else None

    def oldest(self, stored: Any) -> int:
        return min(stored.stamps.values())  # type: ignore[no-any-return]

    def dated(self, stored: Any, stamp: int) -> Any:
        if UNKNOWN_TIME not in stored.stamps.values():
            return stored
        stamps = {
            key: stamp if written == UNKNOWN_TIME else written for key, written in stored.stamps.items()
        }
        return TimedDict.of(stored, stamps)


_VALUE = TtlLayout()
_LAYOUTS: dict[StateKind, TtlLayout] = {
    StateKind.VALUE: _VALUE,
    StateKind.LIST: _TimedList(),
    StateKind.MAP: _TimedMap(),
    StateKind.REDUCING: _VALUE,
    StateKind.AGGREGATING: _VALUE,
}


def layout_of(kind: StateKind) -> TtlLayout:
    """Return the layout of a kind of state."""
    return _LAYOUTS[kind]


def conversion_between(
    kind: StateKind, old: TypeSerializer[Any], new: TypeSerializer[Any], stamp: int
) -> Callable[[Any], Any] | None:
    """Return the conversion from the restored stored form of a state to the declared one, if it needs one.

    Each form has a time to live or none, and they are compatible otherwise. Everything whose time is unknown
    gets the time `stamp`: state that had no time to live, or one by another clock.
    """
    was_timed, is_timed = isinstance(old, TimedSerializer), isinstance(new, TimedSerializer)
    if isinstance(old, TimedSerializer) and isinstance(new, TimedSerializer) and old.clock == new.clock:
        return new.conversion_from(old)
    of_plain = plain_type(new).conversion_from(plain_type(old))
    if not was_timed and not is_timed:
        return of_plain
    layout = layout_of(kind)

    def convert(stored: Any) -> Any:
        plain = layout.plain(stored) if was_timed else stored
        if of_plain is not None:
            plain = of_plain(plain)
        return layout.timed(plain, stamp) if is_timed else plain

    return convert
