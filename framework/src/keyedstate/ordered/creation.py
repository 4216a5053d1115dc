"""Which table a state has."""

from __future__ import annotations

from typing import Any

from keyedstate.backend import StateKind, StateMeta
from keyedstate.backend.timers import holds_timers
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered.caching.object_cache import ObjectMemory
from keyedstate.ordered.caching.table import CachedValueTable
from keyedstate.ordered.list_tables import ListTable
from keyedstate.ordered.map_tables import MapTable
from keyedstate.ordered.table import OrderedTable, ValueTable
from keyedstate.ordered.timers import OrderedTimerTable
from keyedstate.ordered.write_buffer import WriteBuffer
from keyedstate.types.weights import weight_of


def create_ordered_table(
    meta: StateMeta,
    key_groups: KeyGroupRange,
    max_parallelism: int,
    buffer: WriteBuffer,
    memory: ObjectMemory | None = None,
) -> OrderedTable[Any, Any, Any, Any]:
    """Return the table for a state's kind over the buffer of its space.

    With a `memory`, entries are cached in it where their types allow that.
    """
    match meta.kind:
        case _ if holds_timers(meta):
            return OrderedTimerTable(meta, key_groups, max_parallelism, buffer)
        case StateKind.LIST:
            return ListTable(meta, key_groups, max_parallelism, buffer, memory)
        case StateKind.MAP:
            return MapTable(meta, key_groups, max_parallelism, buffer, memory)
        case _ if memory is not None and weight_of(meta.value_serializer) is not None:
            return CachedValueTable(meta, key_groups, max_parallelism, buffer, memory)
        case _:
            return ValueTable(meta, key_groups, max_parallelism, buffer)
