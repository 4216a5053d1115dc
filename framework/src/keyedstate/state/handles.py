"""State handles: what user code reads and writes, always under the current key and namespace.

Handles are the only place that knows a current key.  Their methods carry Flink's names and null rules
(``ValueState``, ``MapState``); they run per record, so they look nothing up that can be held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

from keyedstate.backend import AnyStateTable
from keyedstate.state.errors import NoCurrentKeyError, NullNamespaceError, StateValueError
from keyedstate.types import VOID_NAMESPACE, TypeSerializer, ValueTypeError
from keyedstate.types.maps import MapSerializer

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class _NoKey:
    """Stands for key and key group before the first key; whatever a table does with it is refused.

    So no access has to ask whether there is a key.
    """

    def _refuse(self, *_: object) -> Any:
        raise NoCurrentKeyError()

    __hash__ = __eq__ = __sub__ = __index__ = _refuse

    def __repr__(self) -> str:
        return "no key"


class KeyContext:
    """The current key of one keyed backend, shared by all of its handles.

    Attributes
    ----------
    key : object
        None is a key.
    key_group : int
        The key group of `key`; whoever sets one sets both.
    """

    __slots__ = ("key", "key_group")

    def __init__(self) -> None:
        self.key: Any = _NoKey()
        self.key_group: Any = self.key


class StateHandle:
    """What all handles share: the table, the current key and the current namespace."""

    __slots__ = ("_context", "_name", "_namespace", "_table")

    def __init__(self, name: str, table: AnyStateTable, context: KeyContext) -> None:
        self._name = name
        self._table = table
        self._context = context
        self._namespace: Any = VOID_NAMESPACE

    @property
    def name(self) -> str:
        """The state's name."""
        return self._name

    def set_namespace(self, namespace: object) -> None:
        """Make every later call work on another namespace.

        Raises
        ------
        NullNamespaceError
        """
        if namespace is None:
            raise NullNamespaceError(self._name)
        self._namespace = namespace

    def clear(self) -> None:
        """Remove the state of the current key and namespace."""
        context = self._context
        self._table.remove(context.key_group, context.key, self._namespace)


class ValueStateHandle(StateHandle, Generic[T]):
    """One value per key and namespace."""

    __slots__ = ("_check", "_default", "_serializer")

    def __init__(
        self,
        name: str,
        table: AnyStateTable,
        context: KeyContext,
        serializer: TypeSerializer[T],
        default: T | None,
    ) -> None:
        super().__init__(name, table, context)
        self._serializer = serializer
        self._check = serializer.check
        self._default = default

    def value(self) -> T:
        """Return the value, or a copy of the default where there is none.

        Notes
        -----
        A backend that keeps objects by reference returns the stored object: changing a mutable one in
        place changes the state.  Write such a change with `update` all the same; other backends need it.
        """
        context = self._context
        value = self._table.get(context.key_group, context.key, self._namespace)
        if value is None:
            default = self._default
            # Copied, so that a change in place of one key's default reaches no other key.
            return cast(T, None if default is None else self._serializer.copy(default))
        return cast(T, value)

    def update(self, value: T | None) -> None:
        """Set the value; None is the same as `clear`.

        Raises
        ------
        StateValueError
            Where the value is not of the declared type; the state stays as it was.
        """
        if value is None:
            self.clear()
            return
        try:
            self._check(value)
        except ValueTypeError as error:
            raise StateValueError(self._name, str(error)) from None
        context = self._context
        self._table.put(context.key_group, context.key, self._namespace, value)


class MapStateHandle(StateHandle, Generic[K, V]):
    """A map per key and namespace; it is there as long as it has an entry.

    Values may be None; keys only where their type is nullable.
    """

    __slots__ = ("_canonical", "_check_key", "_check_value")

    def __init__(
        self, name: str, table: AnyStateTable, context: KeyContext, serializer: MapSerializer[K, V]
    ) -> None:
        super().__init__(name, table, context)
        self._check_key = serializer.key_serializer.check
        self._check_value = serializer.value_serializer.check
        keys = serializer.key_serializer
        #: Makes one NaN of all, and zero of negative zero; None where the key type has no such values.
        self._canonical = keys.canonical if keys.needs_canonical else None

    def get(self, key: K) -> V | None:
        """Return the value under a map key, or None."""
        entries = self._entries()
        if entries is None:
            return None
        return entries.get(key if self._canonical is None else self._canonical(key))

    def contains(self, key: K) -> bool:
        """Return whether a map key is there, also one whose value is None."""
        entries = self._entries()
        if entries is None:
            return False
        return (key if self._canonical is None else self._canonical(key)) in entries

    def put(self, key: K, value: V | None) -> None:
        """Set the value under a map key.

        Raises
        ------
        StateValueError
            Where the key or the value is not of the declared type; the state stays as it was.
        """
        self._check(key, value)
        if self._canonical is not None:
            key = self._canonical(key)
        entries = self._entries()
        if entries is None:
            context = self._context
            self._table.put(context.key_group, context.key, self._namespace, {key: value})
        else:
            entries[key] = value

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        """Set several; either all of them or, where one is refused, none."""
        for key, value in entries.items():
            self._check(key, value)
        if not entries:
            return
        new = dict(entries)
        if self._canonical is not None:
            new = {self._canonical(key): value for key, value in entries.items()}
        stored = self._entries()
        if stored is None:
            context = self._context
            self._table.put(context.key_group, context.key, self._namespace, new)
        else:
            stored.update(new)

    def remove(self, key: K) -> None:
        """Remove a map key if it is there."""
        entries = self._entries()
        if entries is None:
            return
        entries.pop(key if self._canonical is None else self._canonical(key), None)
        if not entries:
            self.clear()

    def items(self) -> Iterator[tuple[K, V | None]]:
        """Iterate over the entries; the map must not be changed meanwhile."""
        return iter((self._entries() or {}).items())

    def keys(self) -> Iterator[K]:
        """Iterate over the map keys; the map must not be changed meanwhile."""
        return iter((self._entries() or {}).keys())

    def values(self) -> Iterator[V | None]:
        """Iterate over the values; the map must not be changed meanwhile."""
        return iter((self._entries() or {}).values())

    def size(self) -> int:
        """Return the number of entries."""
        return len(self._entries() or ())

    def is_empty(self) -> bool:
        """Return whether there is no entry."""
        return self._entries() is None

    def _entries(self) -> dict[K, V | None] | None:
        # Asked for at every access and never held: after a snapshot the table hands out a copy.
        context = self._context
        return cast(
            "dict[K, V | None] | None", self._table.get(context.key_group, context.key, self._namespace)
        )

    def _check(self, key: K, value: V | None) -> None:
        try:
            self._check_key(key)
            if value is not None:
                self._check_value(value)
        except ValueTypeError as error:
            raise StateValueError(self._name, str(error)) from None
