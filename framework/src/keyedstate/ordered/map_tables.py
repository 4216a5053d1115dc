"""Map state over rows: a map is read and written map key by map key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from itertools import compress
from operator import gt
from typing import Any, TypeVar

from keyedstate.ordered.caching.object_cache import ABSENT_ENTRY
from keyedstate.ordered.codecs import MapCodec, Rows
from keyedstate.ordered.list_tables import GroupedTable
from keyedstate.types import TimedDict

K = TypeVar("K")
N = TypeVar("N")


class MapTable(GroupedTable[K, N, MapCodec]):
    """Map state: a row per map key; a value reads and writes these rows."""

    def get(self, key_group: int, key: K, namespace: N) -> Any:
        """Return the stored map, without looking up whether it exists."""
        address = self._address(key_group, key, namespace)
        return TimedStoredMap(self, address) if self.codec.timed else StoredMap(self, address)

    def get_for_update(self, key_group: int, key: K, namespace: N) -> Any:
        return self.get(key_group, key, namespace)

    def copy_value(self, value: Any) -> Any:
        """Return a value of a cached map as an object of the caller's own."""
        serializer = self.codec.value_serializer
        return value if value is None or serializer.immutable else serializer.copy(value)

    def write_entries(self, address: bytes, entries: dict[Any, Any], rows: Rows) -> None:
        """Write the rows of entries; with a time to live these are a `TimedDict`."""
        found = self.uncached(address)
        self.write(address, rows)
        if found is None:
            return
        before = {} if found is ABSENT_ENTRY else found
        added = [row for row, key in zip(rows, entries, strict=True) if key not in before]
        if before and added:
            added.insert(0, self.codec.row(address, next(reversed(before))))
        if any(map(gt, added, added[1:])):
            # Cached or not, the entries are read in the order of their rows.
            return
        new = self._copy(entries)
        if found is ABSENT_ENTRY:
            found = new
        else:
            found.update(new)
            if self.codec.timed:
                found.stamps.update(new.stamps)
        self.cache_again(address, found if found else ABSENT_ENTRY, new)

    def delete_entries(self, address: bytes, keys: Sequence[Any], *, others: bool | None = None) -> bool:
        """Remove the entries under those of several map keys that exist, and return whether any did.

        `others` is whether the map has other keys, and says that all of these exist; None looks up both.
        """
        tracked, buffer, row_of = self.tracked, self.buffer, self.codec.row
        rows = [row_of(address, key) for key in keys]
        if others is None:
            stored = [buffer.get(rows[0])] if len(rows) == 1 else buffer.get_many(rows)
            if None in stored:
                exist = [data is not None for data in stored]
                rows, keys = list(compress(rows, exist)), list(compress(keys, exist))
                if not rows:
                    return False
        tracked.note_existing(address)
        found = self.uncached(address)
        for row in rows:
            buffer.put(row, None, address)
        if found is not None:
            for key in keys:
                del found[key]
            self.cache_again(address, found if found else ABSENT_ENTRY, ABSENT_ENTRY)
        if others is None:
            others = tracked.running is None or self._exists(address)
        tracked.note(address, others)
        return True


class StoredMap(MutableMapping[Any, Any]):
    """A stored map: an access of a map key reads or writes its row."""

    __slots__ = ("_address", "_codec", "_table")

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, table: MapTable[Any, Any], address: bytes) -> None:
        self._table = table
        self._address = address
        self._codec = table.codec

    def _find(self, key: Any) -> Any:
        """Return the value under a map key, or `ABSENT_ENTRY`."""
        row = self._codec.row(self._address, key)  # raises for a key of another type, which may equal one
        whole = self._table.cached(self._address)
        if whole is None:
            data = self._table.buffer.get(row)
            return ABSENT_ENTRY if data is None else self._codec.value_of(data)
        if whole is ABSENT_ENTRY or key not in whole:
            return ABSENT_ENTRY
        return self._table.copy_value(whole[key])

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value under a map key."""
        found = self._find(key)
        return default if found is ABSENT_ENTRY else found

    def __getitem__(self, key: Any) -> Any:
        found = self._find(key)
        if found is ABSENT_ENTRY:
            raise KeyError(key)
        return found

    def __contains__(self, key: object) -> bool:
        return self._table.buffer.get(self._codec.row(self._address, key)) is not None

    def __setitem__(self, key: Any, value: Any) -> None:
        self.update({key: value})

    def update(self, entries: dict[Any, Any]) -> None:  # type: ignore[override]
        """Write several entries."""
        self._table.write_entries(self._address, entries, self._codec.rows(self._address, entries))

    def __delitem__(self, key: Any) -> None:
        if not self._table.delete_entries(self._address, (key,)):
            raise KeyError(key)

    def remove_all(self, keys: Sequence[Any], *, others: bool | None = None) -> None:
        """Remove those of several map keys that exist; `others` as in `MapTable.delete_entries`."""
        self._table.delete_entries(self._address, list(dict.fromkeys(keys)), others=others)

    def __iter__(self) -> Iterator[Any]:
        whole = self._table.cached(self._address)
        if whole is not None:
            return iter(() if whole is ABSENT_ENTRY else list(whole))
        skipped = len(self._address)
        return iter(self._codec.keys_of([row[skipped:] for row, _ in self._table.buffer.scan(self._address)]))

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
        return self._table.look_up(self._address) if known is None else known

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

    def update(self, entries: dict[Any, Any]) -> None:  # type: ignore[override]
        self._written.update(entries)

    def write_stamps(self, stamps: Mapping[Any, int]) -> None:
        """Write the timestamps of entries, with the values written before them, or the stored ones."""
        codec = self._codec
        rows: Rows = {}
        values = {key: self._written.pop(key) if key in self._written else self[key] for key in stamps}
        for key, stamp in stamps.items():
            rows[codec.row(self._address, key)] = codec.encode(values[key], stamp)
        self._table.write_entries(self._address, TimedDict.of(values, dict(stamps)), rows)

    def read_stamp(self, key: Any, default: Any) -> Any:
        """Return the timestamp of an entry, or a default without the entry."""
        data = self._table.buffer.get(self._codec.row(self._address, key))
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
