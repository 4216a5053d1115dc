"""The operators that this process has built: how a query that runs is matched with its state."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder

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


def tasks_publish() -> bool:
    """Return whether tasks publish the checkpoints of any of these operators."""
    with _lock:
        return any(operator.published_by_tasks for operator in _built.values())


_built: OrderedDict[str, BuiltOperator] = OrderedDict()
_lock = threading.Lock()
