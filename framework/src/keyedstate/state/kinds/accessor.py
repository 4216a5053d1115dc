"""What the kinds of state share: a descriptor declares a state, an accessor reads and writes it.

A descriptor (Flink's ``StateDescriptor``) is a name, a kind and the types.  As a class attribute of a process
function it becomes, on the opened instance, the accessor of its kind; ``open`` may register one, too::

    class PageViews(KeyedProcessFunction):
        views = ValueState("views", types.INT64, default=0)

        def process(self, row, ctx):
            self.views.update(self.views.value() + 1)

An accessor works under the current key and namespace; nothing below it knows a current key.  Its methods have
Flink's names and null rules.  They run per record, so they look nothing up that can be kept.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Generic, TypeVar, cast

from keyedstate.backend import AnyStateTable, StateKind
from keyedstate.errors import InvalidDescriptorError, NullNamespaceError
from keyedstate.state.context import KeyContext
from keyedstate.state.declaration import Declaration, declarations
from keyedstate.state.kinds.checks import check_value, listed
from keyedstate.state.ttl.config import Ttl
from keyedstate.state.ttl.layout import layout_of
from keyedstate.types import VOID_NAMESPACE, TypeSerializer

#: Rows of a bulk call that are looked up, changed and written together.  What they touch fits into the
#: processor's caches, and what is made for them is below the 700 new objects that start CPython's cycle
#: collector: old values are freed before the next rows come.
CHUNK_ROWS = 512

#: Identical to no key.
_NO_KEY = object()

A = TypeVar("A", bound="StateAccessor")


class StateAccessor:
    """The table, the current key and the current namespace of one state.

    A value that is not of the declared type raises `StateValueError`, and the state stays as it was.

    The bulk methods (``..._many``) take keys of the backend's key type; the current key plays no part.  They
    also take the key group of each key where the caller knows it, and raise as `KeyContext.locate` does.

    Between `_begin_write_behind` and `_end_write_behind` an accessor may cache what is stored under the
    current key, which spares the table for further rows of the key.  Where it was used for most keys of the
    sequence before, it reads all keys of a sequence at once and writes them at once.  Whatever else looks at
    the state meanwhile calls `_flush` first.
    """

    __slots__ = (
        "_cached",
        "_cached_key",
        "_cached_turn",
        "_caching",
        "_context",
        "_dirty",
        "_dirty_turns",
        "_lookups",
        "_namespace",
        "_prefetched",
        "_sole",
        "_table",
        "name",
    )

    def __init__(self, descriptor: StateDescriptor[Any], table: AnyStateTable, context: KeyContext) -> None:
        self.name = descriptor.name
        self._table = table
        self._context = context
        self._namespace: Any = VOID_NAMESPACE
        self._caching = False
        #: What is stored under `_cached_key` in `_namespace`, and whether the table has yet to get it.  The
        #: key is `_NO_KEY` where nothing is cached.  It is compared by identity, which costs nothing: another
        #: key may be an equal one, so a change is written before anything is looked up under it.
        self._cached_key: object = _NO_KEY
        self._cached_turn = 0
        self._cached: Any = None
        self._dirty = False
        #: What is stored under each key of `KeyContext.sequence`, where it was read at once, and the
        #: positions of those that have yet to be written.
        self._prefetched: list[Any] | None = None
        self._dirty_turns: list[int] = []
        #: How many of these keys were looked up.
        self._lookups = 0
        #: Whether there is no second accessor of the state, which would not see what this one caches.
        self._sole = True

    # -- write-behind cache -------------------------------------------------------------------------------

    def _begin_write_behind(self) -> None:
        """Begin to cache; all keys of a sequence are read at once where the state has no namespaces."""
        self._caching = self._sole
        keys = self._context.sequence
        ahead = self._caching and self._namespace is VOID_NAMESPACE
        if ahead and 2 * self._lookups > len(keys.keys) and keys.distinct:
            self._prefetched = self._table.get_many(keys.key_groups, keys.keys, self._namespace)
        self._lookups = 0

    def _end_write_behind(self) -> None:
        """Write what is cached, and every later change at once."""
        self._caching = False
        self._flush()

    def _look_up(self) -> Any:
        """Return what is stored under the current key, which is not cached, and cache it."""
        context = self._context
        if self._dirty:
            self._write_cached()
        if self._prefetched is None:
            stored = self._table.get(context.key_group, context.key, self._namespace)
        else:
            stored = self._prefetched[context.turn]
        if self._caching:
            self._lookups += 1
            self._cached_key, self._cached_turn, self._cached = context.key, context.turn, stored
        return stored

    def _write_cached(self) -> None:
        """Write the cached change: into the table, or to those that are written at once."""
        # First, so that an error comes once.
        self._dirty = False
        turn = self._cached_turn
        if self._prefetched is None:
            keys = self._context.sequence
            self._table.put(keys.key_groups[turn], keys.keys[turn], self._namespace, self._cached)
        else:
            self._prefetched[turn] = self._cached
            self._dirty_turns.append(turn)

    def _flush(self) -> None:
        """Write into the table all that it does not have yet, and cache nothing."""
        if self._dirty:
            self._write_cached()
        self._cached_key = _NO_KEY
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is not None and self._dirty_turns:
            keys = self._context.sequence
            turns, self._dirty_turns = self._dirty_turns, []
            self._write_many(
                list(map(keys.key_groups.__getitem__, turns)),
                list(map(keys.keys.__getitem__, turns)),
                list(map(prefetched.__getitem__, turns)),
            )

    # -- namespaces ---------------------------------------------------------------------------------------

    @property
    def namespace(self) -> Any:
        """The namespace that calls work on; `VOID_NAMESPACE` where the state has none."""
        return self._namespace

    def set_namespace(self, namespace: object) -> None:
        """Make every later call work on another namespace; raises `NullNamespaceError`."""
        if namespace is None:
            raise NullNamespaceError(self.name)
        if self._cached_key is not _NO_KEY and namespace != self._namespace:
            # What is cached is of the namespace before.
            self._flush()
        self._namespace = namespace

    def at(self: A, context: KeyContext, namespace: object) -> A:
        """Return another accessor of the same state, with a current key and a namespace of its own."""
        self._end_write_behind()
        self._sole = False
        other = copy.copy(self)
        other._context = context
        other.set_namespace(namespace)
        return other

    # -- what every kind does -----------------------------------------------------------------------------

    def clear(self) -> None:
        """Remove the state of the current key and namespace."""
        context = self._context
        if self._prefetched is not None:
            if context.key is not self._cached_key and self._dirty:
                self._write_cached()
            self._cached_key, self._dirty = _NO_KEY, False
            self._prefetched[context.turn] = None
            self._dirty_turns.append(context.turn)
            return
        self._flush()
        self._table.remove(context.key_group, context.key, self._namespace)

    def clear_many(self, keys: Iterable[Any], key_groups: Sequence[int] | None = None) -> None:
        """Remove the state of several keys in the current namespace."""
        keys, groups = self._context.locate(keys, key_groups)
        self._flush()
        self._table.remove_many(groups, keys, self._namespace)

    def _column(self, values: Iterable[Any], keys: list[Any], name: str = "values") -> list[Any]:
        """Return a column of a bulk call as a list, or refuse it where it is not as long as the keys."""
        column = listed(self.name, values, name)
        if len(column) != len(keys):
            raise ValueError(
                f"{len(keys)} keys and {len(column)} {name} for the state {self.name!r}; "
                "give one of each for every entry"
            )
        return column

    def _check_column(self, serializer: TypeSerializer[Any], column: Collection[Any]) -> None:
        """Refuse a column of a bulk call that has anything but None and values of the type."""
        if serializer.are_values(column):
            return
        present = [value for value in column if value is not None]
        if not serializer.are_values(present):
            for value in present:
                check_value(self.name, serializer, value)

    def _put_new(self, groups: list[int], keys: list[Any], new: dict[Any, Any]) -> None:
        """Write the values of those keys of a bulk call that had none before it."""
        if len(new) == len(keys):
            self._table.put_many(groups, keys, self._namespace, new.values())
        else:
            group_of = dict(zip(keys, groups, strict=True))
            self._table.put_many([group_of[key] for key in new], new, self._namespace, new.values())

    def _write_many(self, groups: list[int], keys: list[Any], values: list[Any]) -> None:
        """Write the values of several keys, remove those that are None; the last of a repeated key counts."""
        self._flush()
        if type(None) not in set(map(type, values)):
            self._table.put_many(groups, keys, self._namespace, values)
            return
        last = dict(zip(keys, zip(groups, values, strict=True), strict=True))
        gone = [key for key, (_, value) in last.items() if value is None]
        kept = [key for key, (_, value) in last.items() if value is not None]
        self._table.remove_many([last[key][0] for key in gone], gone, self._namespace)
        self._table.put_many(
            [last[key][0] for key in kept], kept, self._namespace, [last[key][1] for key in kept]
        )


class StateDescriptor(Declaration[A], Generic[A]):
    """A declared keyed state.

    Attributes
    ----------
    name : str
        Unique within a process function; a checkpoint finds the state by it.
    kind : StateKind
    ttl : Ttl or None
    plain_serializer : TypeSerializer
        Of what users see of one key and namespace.
    serializer : TypeSerializer
        Of what is stored; with a time to live it has timestamps.
    """

    kind: StateKind
    _accessor_class: type[StateAccessor]

    def __init__(self, name: str, serializer: TypeSerializer[Any], ttl: Ttl | None) -> None:
        super().__init__(name)
        if ttl is not None and not isinstance(ttl, Ttl):
            raise InvalidDescriptorError(name, f"its ttl is {ttl!r}; give Ttl.of('7 days') or the like")
        self.ttl = ttl
        self.plain_serializer = self.serializer = serializer
        if ttl is not None:
            self.serializer = layout_of(self.kind).timed_type(serializer, ttl.clock.value)

    def create_accessor(self, table: AnyStateTable, context: KeyContext) -> A:
        """Return the accessor over a table of this state, where it has no time to live."""
        return cast(A, self._accessor_class(self, table, context))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.serializer!r})"


def declared_states(function: object) -> list[StateDescriptor[Any]]:
    """Return the keyed states that are class attributes, those of base classes first.

    Raises `InvalidDescriptorError` where two attributes declare states of one name.
    """
    return [declared for declared in declarations(function) if isinstance(declared, StateDescriptor)]


def chunks(rows: int) -> list[slice]:
    """Cut the rows of a bulk call into slices of at most `CHUNK_ROWS`."""
    return [slice(start, start + CHUNK_ROWS) for start in range(0, rows, CHUNK_ROWS)]
