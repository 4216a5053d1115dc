"""List and map state over rows: an append reads nothing, and a map is read and written key by key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Generic, TypeVar

from keyedstate.backend import StateKind, StateMeta
from keyedstate.backend.timers import holds_timers
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered.caching.object_cache import ObjectMemory
from keyedstate.ordered.caching.table import CachedValueTable
from keyedstate.ordered.codecs import EntryCodec, ListCodec, MapCodec, Rows
from keyedstate.ordered.table import OrderedTable, ValueTable
from keyedstate.ordered.timers import OrderedTimerTable
from keyedstate.ordered.write_buffer import WriteBuffer
from keyedstate.types import TimedDict
from keyedstate.types.weights import weight_of

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")
C = TypeVar("C", bound=EntryCodec)


class _GroupedTable(OrderedTable[K, N, Any, C], Generic[K, N, C]):
    """Several rows per entry."""

    def exist(self, addresses: Sequence[bytes]) -> list[bool]:
        return [any(True for _ in self.buffer.scan(address)) for address in addresses]

    def read(self, address: bytes) -> Any:
        if self.tracked.known(address) is False:
            return None
        return next((entry[3] for entry in self.codec.entries(self.buffer.scan(address))), None)

    def delete_rows(self, address: bytes) -> None:
        for row in [row for row, _ in self.buffer.scan(address)]:
            self.buffer.put(row, None, address)

    def write(self, address: bytes, rows: Rows) -> None:
        """Add rows to an address."""
        if rows:
            self.tracked.note(address, True)
            self._put_rows(address, rows)


class ListTable(_GroupedTable[K, N, ListCodec]):
    """List state: a row per chunk of elements."""

    def get_for_update(self, key_group: int, key: K, namespace: N) -> Any:
        """Return what appends to the list, without looking up whether it exists."""
        address = self._address(key_group, key, namespace)
        return TimedAppender(self, address) if self.codec.timed else Appender(self, address)

    def append(self, address: bytes, elements: Iterable[Any], stamps: Iterable[int] | None = None) -> None:
        """Append elements, with their timestamps where the state has a time to live."""
        self.write(address, self.codec.chunks(address, elements, stamps))


class Appender:
    """The end of a stored list: what `get_for_update` returns."""

    __slots__ = ("_address", "_table")

    def __init__(self, table: ListTable[Any, Any], address: bytes) -> None:
        self._table = table
        self._address = address

    def append(self, element: Any) -> None:
        """Append one element."""
        self.extend([element])

    def extend(self, elements: Iterable[Any]) -> None:
        """Append several elements."""
        self._table.append(self._address, elements)


class TimedAppender:
    """The end of a stored list with timestamps: elements are appended first, then their `stamps`."""

    __slots__ = ("_address", "_elements", "_table", "stamps")

    def __init__(self, table: ListTable[Any, Any], address: bytes) -> None:
        self._table = table
        self._address = address
        self._elements: list[Any] = []
        self.stamps = Stamps(self)

    def append(self, element: Any) -> None:
        """Append one element, whose timestamp follows."""
        self._elements.append(element)

    def extend(self, elements: Iterable[Any]) -> None:
        """Append several elements, whose timestamps follow."""
        self._elements.extend(elements)

    def write(self, stamps: Sequence[int]) -> None:
        """Write the appended elements with their timestamps."""
        elements, self._elements = self._elements, []
        if len(elements) != len(stamps):
            raise ValueError(f"{len(elements)} elements and {len(stamps)} times were appended to a list")
        self._table.append(self._address, elements, stamps)


class Stamps:
    """The timestamps of a stored list, to be appended to."""

    __slots__ = ("_appender",)

    def __init__(self, appender: TimedAppender) -> None:
        self._appender = appender

    def append(self, stamp: int) -> None:
        """Append the timestamp of the appended element."""
        self._appender.write([stamp])

    def extend(self, stamps: Iterable[int]) -> None:
        """Append the timestamps of the appended elements."""
        self._appender.write(list(stamps))


class MapTable(_GroupedTable[K, N, MapCodec]):
    """Map state: a row per map key; a value reads and writes these rows."""

    def get(self, key_group: int, key: K, namespace: N) -> Any:
        """Return the stored map, without looking up whether it exists."""
        address = self._address(key_group, key, namespace)
        return TimedStoredMap(self, address) if self.codec.timed else StoredMap(self, address)

    def get_for_update(self, key_group: int, key: K, namespace: N) -> Any:
        return self.get(key_group, key, namespace)


class StoredMap(MutableMapping[Any, Any]):
    """A stored map: an access of a map key reads or writes its row."""

    __slots__ = ("_address", "_codec", "_table")

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, table: MapTable[Any, Any], address: bytes) -> None:
        self._table = table
        self._address = address
        self._codec = table.codec

    def _data(self, key: Any) -> bytes | None:
        return self._table.buffer.get(self._codec.row(self._address, key))

    def _rows(self) -> Iterator[tuple[Any, bytes]]:
        skipped, key_of = len(self._address), self._codec.key_of
        for row, data in self._table.buffer.scan(self._address):
            yield key_of(row[skipped:]), data

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value under a map key."""
        data = self._data(key)
        return default if data is None else self._codec.value_of(data)

    def __getitem__(self, key: Any) -> Any:
        data = self._data(key)
        if data is None:
            raise KeyError(key)
        return self._codec.value_of(data)

    def __contains__(self, key: object) -> bool:
        return self._data(key) is not None

    def __setitem__(self, key: Any, value: Any) -> None:
        row, data = self._codec.row(self._address, key), self._codec.encode(value)
        self._table.tracked.note(self._address, True)
        self._table.buffer.put(row, data, self._address)

    def update(self, entries: Mapping[Any, Any]) -> None:  # type: ignore[override]
        """Write several entries."""
        row, encode = self._codec.row, self._codec.encode
        self._table.write(
            self._address, {row(self._address, key): encode(item) for key, item in entries.items()}
        )

    def __delitem__(self, key: Any) -> None:
        row, buffer = self._codec.row(self._address, key), self._table.buffer
        if buffer.get(row) is None:
            raise KeyError(key)
        tracked = self._table.tracked
        if tracked.running is not None:
            # While the row exists: this may look up whether the map existed when the epoch began.
            tracked.note(self._address, True)
        buffer.put(row, None, self._address)
        tracked.note(self._address, tracked.running is None or self._table.exist([self._address])[0])

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._rows())

    def items(self) -> Any:
        """Return the entries, all read now."""
        return self.copy().items()

    def values(self) -> Any:
        """Return the values, all read now."""
        return self.copy().values()

    def __len__(self) -> int:
        return sum(1 for _ in self._table.buffer.scan(self._address))

    def __bool__(self) -> bool:
        known = self._table.tracked.known(self._address)
        return self._table.exist([self._address])[0] if known is None else known

    def copy(self) -> dict[Any, Any]:
        """Return the entries as a dict."""
        found = self._table.read(self._address)
        return {} if found is None else found


class TimedStoredMap(StoredMap):
    """A stored map with timestamps: an entry is written first, then its timestamp in `stamps`."""

    __slots__ = ("_written", "stamps")

    def __init__(self, table: MapTable[Any, Any], address: bytes) -> None:
        super().__init__(table, address)
        self._written: dict[Any, Any] = {}
        self.stamps = StoredStamps(self)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.update({key: value})

    def update(self, entries: Mapping[Any, Any]) -> None:  # type: ignore[override]
        self._written.update(entries)

    def write_stamps(self, stamps: Mapping[Any, int]) -> None:
        """Write the timestamps of entries, with the values written before them, or the stored ones."""
        codec = self._codec
        rows: Rows = {}
        for key, stamp in stamps.items():
            value = self._written.pop(key) if key in self._written else self[key]
            rows[codec.row(self._address, key)] = codec.encode(value, stamp)
        self._table.write(self._address, rows)

    def read_stamp(self, key: Any, default: Any) -> Any:
        """Return the timestamp of an entry, or a default without the entry."""
        data = self._data(key)
        return default if data is None else self._codec.stamp_of(data)

    def read_stamps(self) -> dict[Any, int]:
        """Return all timestamps."""
        found: TimedDict[Any, Any] | None = self._table.read(self._address)
        return {} if found is None else found.stamps


class StoredStamps(MutableMapping[Any, int]):
    """The timestamps of a stored map."""

    __slots__ = ("_map",)

    def __init__(self, stored: TimedStoredMap) -> None:
        self._map = stored

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the timestamp of an entry."""
        return self._map.read_stamp(key, default)

    def __getitem__(self, key: Any) -> int:
        found: int | None = self._map.read_stamp(key, None)
        if found is None:
            raise KeyError(key)
        return found

    def __setitem__(self, key: Any, stamp: int) -> None:
        self._map.write_stamps({key: stamp})

    def update(self, stamps: Mapping[Any, int]) -> None:  # type: ignore[override]
        """Write several timestamps."""
        self._map.write_stamps(stamps)

    def __delitem__(self, key: Any) -> None:
        del self._map[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._map.read_stamps())

    def values(self) -> Any:
        """Return the timestamps, all read now."""
        return self._map.read_stamps().values()

    def items(self) -> Any:
        """Return the timestamps by map key, all read now."""
        return self._map.read_stamps().items()

    def __len__(self) -> int:
        return len(self._map)


def create_ordered_table(
    meta: StateMeta,
    key_groups: KeyGroupRange,
    max_parallelism: int,
    buffer: WriteBuffer,
    memory: ObjectMemory | None = None,
) -> OrderedTable[Any, Any, Any, Any]:
    """Return the table for a state's kind over the buffer of its space.

    With a `memory`, entries of single values are cached in it where their type allows that.
    """
    match meta.kind:
        case _ if holds_timers(meta):
            return OrderedTimerTable(meta, key_groups, max_parallelism, buffer)
        case StateKind.LIST:
            return ListTable(meta, key_groups, max_parallelism, buffer)
        case StateKind.MAP:
            return MapTable(meta, key_groups, max_parallelism, buffer)
        case _ if memory is not None and weight_of(meta.value_serializer) is not None:
            return CachedValueTable(meta, key_groups, max_parallelism, buffer, memory)
        case _:
            return ValueTable(meta, key_groups, max_parallelism, buffer)
