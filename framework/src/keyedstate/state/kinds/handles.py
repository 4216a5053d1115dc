"""What the kinds of state share: a declaration holds no state, a handle reads and writes it.

A declaration (Flink's ``StateDescriptor``) is a name, a kind and the types; as a class attribute or
registered in ``open``.  As a class attribute of a process function it becomes, on the opened instance, the
handle of the same kind::

    class PageViews(KeyedProcessFunction):
        views = ValueState("views", types.INT64, default=0)

        def process(self, row, ctx):
            self.views.update(self.views.value() + 1)

A handle works under the current key and namespace; nothing below it knows a current key.  Its methods carry
Flink's names and null rules and run per record, so they look nothing up that can be held.
"""

from __future__ import annotations

import copy
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from keyedstate.backend import AnyStateTable, StateKind
from keyedstate.errors import InvalidDescriptorError, NullNamespaceError, StateValueError, ValueTypeError
from keyedstate.state.context import KeyContext
from keyedstate.state.declaration import Declaration, declarations
from keyedstate.state.ttl.config import Ttl
from keyedstate.state.ttl.layout import layout_of
from keyedstate.types import VOID_NAMESPACE, TypeSerializer

#: Rows of a bulk call that are looked up, changed and written together.  What they touch fits into the
#: processor's caches, and what is made for them is below the 700 new objects that start CPython's cycle
#: collector: old values have gone again before the next rows come.
STRETCH = 512

#: What is no key of anybody.
_NO_KEY = object()

H = TypeVar("H", bound="StateHandle")
T = TypeVar("T", bound="StateHandle")


class StateHandle:
    """What all handles share: the table, the current key and the current namespace.

    Between `_hold` and `_stop_holding` a handle may keep what one key has at hand, which spares the table for
    further rows of the key.  Where it was asked for most keys before, it reads all that come in one go, and
    writes them so.  Nobody else may look at the state meanwhile, unless the handle has `_let_go`.
    """

    __slots__ = (
        "_ahead",
        "_alone",
        "_asked",
        "_changed",
        "_context",
        "_held",
        "_held_key",
        "_held_turn",
        "_holds",
        "_name",
        "_namespace",
        "_table",
        "_unwritten",
    )

    def __init__(self, name: str, table: AnyStateTable, context: KeyContext) -> None:
        self._name = name
        self._table = table
        self._context = context
        self._namespace: Any = VOID_NAMESPACE
        #: What is stored under `_held_key` in `_namespace`, and whether the table has yet to be told.  The
        #: key is `_NO_KEY` where nothing is held.  It is compared by identity, which costs nothing: another
        #: key may be an equal one, so a change is written before anything is looked up under it.
        self._held_key: object = _NO_KEY
        self._held_turn = 0
        self._held: Any = None
        self._changed = False
        self._holds = False
        #: What is stored under each of `KeyContext.in_turn`, where it was read ahead; and which of these have
        #: yet to be written.
        self._ahead: list[Any] | None = None
        self._unwritten: list[int] = []
        #: How many of these keys were looked up.
        self._asked = 0
        #: Whether there is no second handle of the state, which would not see what this one holds.
        self._alone = True

    # -- holding ------------------------------------------------------------------------------------------

    def _hold(self) -> None:
        """Begin to keep what the last key has at hand; a state that has namespaces never does."""
        self._holds = self._alone and self._namespace is VOID_NAMESPACE
        keys = self._context.in_turn
        if self._holds and 2 * self._asked > len(keys.keys) and keys.distinct:
            self._ahead = self._table.get_many(keys.key_groups, keys.keys, self._namespace)
        self._asked = 0

    def _stop_holding(self) -> None:
        """Let go, and let the table have every change at once again."""
        self._holds = False
        self._let_go()

    def _look_up(self) -> Any:
        """Return what is stored under the current key, which is not held, and hold it."""
        context = self._context
        if self._changed:
            self._put_aside()
        if self._ahead is None:
            stored = self._table.get(context.key_group, context.key, self._namespace)
        else:
            stored = self._ahead[context.turn]
        if self._holds:
            self._asked += 1
            self._held_key, self._held_turn, self._held = context.key, context.turn, stored
        return stored

    def _put_aside(self) -> None:
        """Write what is held and was changed; at once, or together with what other keys have."""
        # First, so that an error comes once.
        self._changed = False
        turn = self._held_turn
        if self._ahead is None:
            keys = self._context.in_turn
            self._table.put(keys.key_groups[turn], keys.keys[turn], self._namespace, self._held)
        else:
            self._ahead[turn] = self._held
            self._unwritten.append(turn)

    def _let_go(self) -> None:
        """Write into the table all that it does not have yet, and hold nothing."""
        if self._changed:
            self._put_aside()
        self._held_key = _NO_KEY
        ahead, self._ahead = self._ahead, None
        if ahead is not None and self._unwritten:
            keys = self._context.in_turn
            unwritten, self._unwritten = self._unwritten, []
            self._write_many(
                list(map(keys.key_groups.__getitem__, unwritten)),
                list(map(keys.keys.__getitem__, unwritten)),
                list(map(ahead.__getitem__, unwritten)),
            )

    @property
    def name(self) -> str:
        """The state's name."""
        return self._name

    @property
    def namespace(self) -> Any:
        """The namespace that calls work on; `VOID_NAMESPACE` where the state has none."""
        return self._namespace

    def set_namespace(self, namespace: object) -> None:
        """Make every later call work on another namespace.

        Raises
        ------
        NullNamespaceError
        """
        if namespace is None:
            raise NullNamespaceError(self._name)
        self._namespace = namespace

    def at(self: T, context: KeyContext, namespace: object) -> T:
        """Return another handle of the same state, with a current key and a namespace of its own."""
        self._stop_holding()
        self._alone = False
        other = copy.copy(self)
        other._context = context
        other.set_namespace(namespace)
        return other

    def clear(self) -> None:
        """Remove the state of the current key and namespace."""
        context = self._context
        if self._ahead is not None:
            if context.key is not self._held_key and self._changed:
                self._put_aside()
            self._held_key, self._changed = _NO_KEY, False
            self._ahead[context.turn] = None
            self._unwritten.append(context.turn)
            return
        self._let_go()
        self._table.remove(context.key_group, context.key, self._namespace)

    def clear_many(self, keys: Iterable[Any], key_groups: Sequence[int] | None = None) -> None:
        """Remove the state of several keys in the current namespace.

        Parameters
        ----------
        keys : iterable
            Of the keyed backend's key type; the current key plays no part.
        key_groups : sequence of int, optional
            The key group of each key where the caller knows it.

        Raises
        ------
        ValueTypeError, ValueError
            As `KeyContext.locate`; no state is changed.
        """
        keys, groups = self._context.locate(keys, key_groups)
        self._let_go()
        self._table.remove_many(groups, keys, self._namespace)

    def _column(self, values: Iterable[Any], keys: list[Any], name: str = "values") -> list[Any]:
        """Return a column of a bulk call as a list, or refuse it where it is not as long as the keys."""
        column = listed(self._name, values, name)
        if len(column) != len(keys):
            raise ValueError(
                f"{len(keys)} keys and {len(column)} {name} for the state {self._name!r}; "
                "give one of each for every entry"
            )
        return column

    def _check_column(self, serializer: TypeSerializer[Any], column: Collection[Any]) -> None:
        """Refuse a column of a bulk call that holds anything but None and values of the type."""
        if serializer.are_values(column):
            return
        present = [value for value in column if value is not None]
        if not serializer.are_values(present):
            for value in present:
                check_value(self._name, serializer, value)

    def _put_new(self, groups: list[int], keys: list[Any], new: dict[Any, Any]) -> None:
        """Write the values of those keys of a bulk call that had none before it."""
        if len(new) == len(keys):
            self._table.put_many(groups, keys, self._namespace, new.values())
        else:
            group_of = dict(zip(keys, groups, strict=True))
            self._table.put_many([group_of[key] for key in new], new, self._namespace, new.values())

    def _write_many(self, groups: list[int], keys: list[Any], values: list[Any]) -> None:
        """Write the values of several keys, remove those that are None; the last of a repeated key counts."""
        self._let_go()
        if type(None) not in set(map(type, values)):
            self._table.put_many(groups, keys, self._namespace, values)
            return
        last = dict(zip(keys, zip(groups, values, strict=True), strict=True))
        for wanted in (True, False):
            chosen = [key for key, (_, value) in last.items() if (value is None) is wanted]
            chosen_groups = [last[key][0] for key in chosen]
            if wanted:
                self._table.remove_many(chosen_groups, chosen, self._namespace)
            else:
                chosen_values = [last[key][1] for key in chosen]
                self._table.put_many(chosen_groups, chosen, self._namespace, chosen_values)


class StateDescriptor(Declaration[H], ABC, Generic[H]):
    """A declared keyed state.

    Attributes
    ----------
    name : str
        Unique within a process function; the state is found by it in a checkpoint.
    kind : StateKind
    ttl : Ttl or None
    plain_serializer : TypeSerializer
        Of what users see of one key and namespace.
    serializer : TypeSerializer
        Of what is stored; with a time to live there are timestamps in it.
    """

    kind: StateKind

    def __init__(self, name: str, serializer: TypeSerializer[Any], ttl: Ttl | None) -> None:
        super().__init__(name)
        if ttl is not None and not isinstance(ttl, Ttl):
            raise InvalidDescriptorError(name, f"its ttl is {ttl!r}; give Ttl.of('7 days') or the like")
        self.ttl = ttl
        self.plain_serializer = self.serializer = serializer
        if ttl is not None:
            self.serializer = layout_of(self.kind).timed_type(serializer, ttl.clock.value)

    @abstractmethod
    def create_handle(self, table: AnyStateTable, context: KeyContext) -> H:
        """Return the handle over a table of this state, where it has no time to live."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.serializer!r})"


def declared_states(function: object) -> list[StateDescriptor[Any]]:
    """Return the keyed states declared as class attributes, those of base classes first.

    Raises
    ------
    InvalidDescriptorError
        Where two attributes declare states of one name.
    """
    return [declared for declared in declarations(function) if isinstance(declared, StateDescriptor)]


def stretches(rows: int) -> list[slice]:
    """Cut the rows of a bulk call into stretches."""
    return [slice(start, start + STRETCH) for start in range(0, rows, STRETCH)]


def check_type(state: str, parameter: str, given: object) -> None:
    """Refuse what is no type where a declaration needs one."""
    if not isinstance(given, TypeSerializer):
        raise InvalidDescriptorError(
            state, f"its {parameter} is {given!r}; give one of keyedstate.types, for example types.INT64"
        )


def check_value(state: str, serializer: TypeSerializer[Any], value: object, place: str = "") -> None:
    """Raise `StateValueError` with the state's name, and the value's place, unless it is of the type."""
    try:
        serializer.check(value)
    except ValueTypeError as error:
        raise StateValueError(state, str(error.within(place))) from None


def listed(state: str, values: Any, name: str) -> list[Any]:
    """Return several values as a list, or refuse what is none with the state's name."""
    try:
        iterator = iter(values)
    except TypeError:
        raise StateValueError(
            state, f"a list of {name} is needed, got {reprlib.repr(values)}. Give a list, also for one."
        ) from None
    return list(iterator)


def require_mapping(state: str, entries: object) -> None:
    """Refuse what is no dict of entries with the state's name."""
    # The abstract class is slow to ask.
    if entries.__class__ is not dict and not isinstance(entries, Mapping):
        raise StateValueError(
            state,
            f"a dict of entries is needed, got {reprlib.repr(entries)}. Give a dict; put() takes one entry.",
        )
