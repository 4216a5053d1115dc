"""The operators that this process has built: how a query that runs is matched with its state."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.epoch.event_time import EventTimes, FollowedOperator, FollowedOperators
from keyedstate.errors import EventTimeError
from keyedstate.time import EventTime

#: How many are remembered.
_OPERATORS_KEPT = 1000


@dataclass(frozen=True)
class BuiltOperator:
    """An operator with state."""

    folder: OperatorFolder
    #: Whether its query makes micro-batches without input.
    beats: bool
    #: Whether its tasks publish its checkpoints.
    published_by_tasks: bool
    #: How other operators follow its watermark; None without event time.
    followable: FollowedOperator | None = None


def remember(operator: BuiltOperator) -> None:
    """Remember an operator; one that is built again replaces itself."""
    with _lock:
        _built[operator.folder.storage.uri] = operator
        _built.move_to_end(operator.folder.storage.uri)
        if len(_built) > _OPERATORS_KEPT:
            _built.popitem(last=False)


def operators_of(query_id: str) -> list[BuiltOperator]:
    """Return the operators of a query, which are known from its first epoch on."""
    with _lock:
        built = list(_built.values())
    found = []
    for operator in built:
        owner = operator.folder.read_owner()
        if owner is not None and owner.query_id == query_id:
            found.append(operator)
    return found


def followed_operators(event_times: EventTimes, uid: str, directory: str) -> FollowedOperators:
    """Return the operators that the event times of an operator follow; empty where they follow none.

    Of several with one uid, that in the same directory is meant, else the last one.  Raises `EventTimeError`
    where none was built before this operator, and for one without event time.
    """
    if all(each.follows is None for each in event_times):
        return ()
    return tuple(None if each.follows is None else _followed(each, uid, directory) for each in event_times)


def _followed(event_time: EventTime, uid: str, directory: str) -> FollowedOperator:
    name = event_time.follows
    with _lock:
        named = [built for built in _built.values() if built.folder.uid == name != uid]
    if not named:
        raise EventTimeError(
            event_time.column,
            f"it follows the operator {name!r}, and no operator of that uid with state was built before "
            f"{uid!r} in this process; follow the one whose output the rows are, or leave follows= out and "
            "give a delay",
        )
    # The sort keeps the order in which they were built.
    built = sorted(named, key=lambda built: built.folder.directory_uri == directory)[-1]
    if built.followable is None:
        raise EventTimeError(
            event_time.column,
            f"it follows the operator {name!r}, which has no event time and so no watermark; give that one "
            "an event_time=, or leave follows= out and give a delay",
        )
    return built.followable


def tasks_publish() -> bool:
    """Return whether tasks publish the checkpoints of any of these operators."""
    with _lock:
        return any(operator.published_by_tasks for operator in _built.values())


_built: OrderedDict[str, BuiltOperator] = OrderedDict()
_lock = threading.Lock()
