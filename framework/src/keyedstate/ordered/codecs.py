"""The rows of an entry of each kind of state: one for a value, one per chunk of a list, one per key of a map.

The value None is an empty row, since every serializer writes at least a byte.  With a time to live the bytes
of each value, element and value of a map begin with its timestamp (`keyedstate.backend.Expiry`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from struct import Struct
from typing import Any, TypeAlias

from keyedstate.backend import StateKind, StateMeta
from keyedstate.memory import DataInputView, DataOutputView
from keyedstate.ordered.row_keys import RowLayout, layout_of
from keyedstate.ordered.store import RowReader, end_of
from keyedstate.types import TimedDict, TimedList, TtlListSerializer, TtlMapSerializer, TypeSerializer
from keyedstate.types.contract.transposing import transposed

#: A row of elements that are appended together ends at so many bytes.
_CHUNK_BYTES = 64 << 10
_SEQUENCE_BYTES = 8
#: The timestamp of a value.
_STAMP = Struct(">q")
#: Entries of a map from which on bulk calls make their bytes faster than single ones.
_MANY_ENTRIES = 4
#: Rows that are decoded at once, from the first ones to the last.
_FIRST_ROWS, _MOST_ROWS = 16, 1024

Row: TypeAlias = tuple[bytes, bytes]
Rows: TypeAlias = dict[bytes, "bytes | None"]
#: Address, key, namespace and value.
Entry: TypeAlias = tuple[bytes, Any, Any, Any]


class EntryCodec(ABC):
    """The rows of the entries of one state; belongs to one thread."""

    #: The number of the next chunk where rows are numbered, above all existing ones.
    next_number = 1

    def __init__(self, meta: StateMeta, max_parallelism: int) -> None:
        self.layout: RowLayout = layout_of(meta, max_parallelism)

    @abstractmethod
    def rows(self, address: bytes, value: Any) -> Rows:
        """Return the rows of an entry by their keys."""

    @abstractmethod
    def entries(self, rows: Iterable[Row]) -> Iterator[Entry]:
        """Yield the entries of rows in their order; `rows` must contain all rows of an entry."""

    def aged(self, rows: Iterable[Row]) -> Iterator[Entry]:
        """Yield entries with timestamps as `entries`, of a value at least what `Expiry.live` needs."""
        return self.entries(rows)

    def read_many(self, reader: RowReader, addresses: Sequence[bytes]) -> list[Any]:
        """Return the values at several addresses, with None where there is no entry."""
        return [
            next((entry[3] for entry in self.entries(reader.scan(address, end_of(address)))), None)
            for address in addresses
        ]


class ValueCodec(EntryCodec):
    """One row per entry."""

    def __init__(self, meta: StateMeta, max_parallelism: int) -> None:
        super().__init__(meta, max_parallelism)
        self._serializer = meta.value_serializer

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a row."""
        return b"" if value is None else self._serializer.to_bytes(value)

    def decode(self, data: bytes | None) -> Any:
        """Return the value of a row; None without a row."""
        return self._serializer.from_bytes(data) if data else None

    def encode_many(self, values: list[Any]) -> list[bytes]:
        """Return the bytes of several rows."""
        return _encoded(self._serializer, values)

    def decode_many(self, data: Sequence[bytes | None]) -> list[Any]:
        """Return the values of several rows."""
        return _decoded(self._serializer, data)

    def rows(self, address: bytes, value: Any) -> Rows:
        return {address: self.encode(value)}

    def entries(self, rows: Iterable[Row]) -> Iterator[Entry]:
        return self._entries(rows, self.decode_many)

    def aged(self, rows: Iterable[Row]) -> Iterator[Entry]:
        return self._entries(rows, self._ages)

    def _ages(self, data: Sequence[bytes]) -> list[Any]:
        """Return the timestamps of rows, without the values, which live or expire as a whole."""
        if min(map(len, data)) < _STAMP.size:
            return self.decode_many(data)
        return list(map(_STAMP.unpack_from, data))

    def _entries(
        self, rows: Iterable[Row], decode_many: Callable[[Sequence[bytes]], Iterable[Any]]
    ) -> Iterator[Entry]:
        rows, size = iter(rows), _FIRST_ROWS
        # A few at first: a caller often needs no more.
        while found := list(islice(rows, size)):
            addresses, data = transposed(found, 2)
            keys, namespaces = self.layout.parse_many(addresses)
            yield from zip(addresses, keys, namespaces, decode_many(data), strict=True)
            size = min(2 * size, _MOST_ROWS)

    def read_many(self, reader: RowReader, addresses: Sequence[bytes]) -> list[Any]:
        return self.decode_many(reader.get_many(addresses))


class _GroupedCodec(EntryCodec):
    """Several rows per entry: consecutive, and their keys begin with its address."""

    #: Whether `decode_many` is faster than `decode` of each.
    together = False

    def entries(self, rows: Iterable[Row]) -> Iterator[Entry]:
        # A few at first: a caller often needs no more.  Those of a codec that gains nothing come one by one.
        addressed: list[tuple[bytes, Any, Any]] = []
        waiting: list[list[Row]] = []
        most = _MOST_ROWS if self.together else 1
        count, size = 0, min(_FIRST_ROWS, most)
        for address, key, namespace, own in self._grouped(rows):
            addressed.append((address, key, namespace))
            waiting.append(own)
            count += len(own)
            if count >= size:
                yield from self._entries(addressed, waiting)
                addressed, waiting = [], []
                count, size = 0, min(2 * size, most)
        yield from self._entries(addressed, waiting)

    def _entries(self, addressed: list[tuple[bytes, Any, Any]], waiting: list[list[Row]]) -> Iterator[Entry]:
        for (address, key, namespace), value in zip(addressed, self.decode_many(waiting), strict=True):
            yield address, key, namespace, value

    def _grouped(self, rows: Iterable[Row]) -> Iterator[tuple[bytes, Any, Any, list[Row]]]:
        """Yield address, key, namespace and rows of each entry, the keys of the rows without the address."""
        address: bytes | None = None
        key = namespace = None
        own: list[Row] = []
        for row, data in rows:
            if address is None or not row.startswith(address):
                if address is not None:
                    yield address, key, namespace, own
                key, namespace, end = self.layout.parse(row)
                address, own = row[:end], []
            own.append((row[len(address) :], data))
        if address is not None:
            yield address, key, namespace, own

    def read_many(self, reader: RowReader, addresses: Sequence[bytes]) -> list[Any]:
        found = [
            [(row[len(address) :], data) for row, data in reader.scan(address, end_of(address))]
            for address in addresses
        ]
        values = iter(self.decode_many([own for own in found if own]))
        return [next(values) if own else None for own in found]

    def decode_many(self, entries: Sequence[Sequence[Row]]) -> list[Any]:
        """Return the values of several entries from their rows, whose keys come without the address."""
        return list(map(self.decode, entries))

    @abstractmethod
    def decode(self, rows: Sequence[Row]) -> Any:
        """Return the value of rows whose keys come without the address."""


class ListCodec(_GroupedCodec):
    """A row per chunk of elements, under an ascending number, so that an append reads nothing."""

    def __init__(self, meta: StateMeta, max_parallelism: int) -> None:
        super().__init__(meta, max_parallelism)
        serializer: Any = meta.value_serializer
        self.timed = isinstance(serializer, TtlListSerializer)
        self._element = serializer.element_serializer
        self._out = DataOutputView()

    def rows(self, address: bytes, value: Any) -> Rows:
        return self.chunks(address, value, value.stamps if self.timed else None)

    def chunks(self, address: bytes, elements: Iterable[Any], stamps: Iterable[int] | None) -> Rows:
        """Return the rows of elements that follow the existing ones."""
        rows: Rows = {}
        out, serialize = self._out, self._element.serialize
        out.clear()
        times = None if stamps is None else iter(stamps)
        for element in elements:
            if times is not None:
                out.write_long(next(times))
            serialize(element, out)
            if out.position >= _CHUNK_BYTES:
                rows[self._row(address)] = out.to_bytes()
                out.clear()
        if out.position:
            rows[self._row(address)] = out.to_bytes()
        return rows

    def _row(self, address: bytes) -> bytes:
        number, self.next_number = self.next_number, self.next_number + 1
        return address + number.to_bytes(_SEQUENCE_BYTES, "big")

    def decode(self, rows: Sequence[Row]) -> Any:
        elements: list[Any] = []
        stamps: list[int] = []
        deserialize = self._element.deserialize
        for _, data in rows:
            source = DataInputView(data)
            while source.remaining:
                if self.timed:
                    stamps.append(source.read_long())
                elements.append(deserialize(source))
        return TimedList.of(elements, stamps) if self.timed else elements


class MapCodec(_GroupedCodec):
    """A row per map key."""

    def __init__(self, meta: StateMeta, max_parallelism: int) -> None:
        super().__init__(meta, max_parallelism)
        serializer: Any = meta.value_serializer
        self.timed = isinstance(serializer, TtlMapSerializer)
        self._key = serializer.key_serializer
        self.value_serializer: TypeSerializer[Any] = serializer.value_serializer
        self.together = not self.timed

    def row(self, address: bytes, key: Any) -> bytes:
        """Return the key of a map key's row."""
        return address + bytes(self._key.to_bytes(key))

    def encode(self, value: Any, stamp: int | None = None) -> bytes:
        """Return the value of a row."""
        made = b"" if value is None else self.value_serializer.to_bytes(value)
        return made if stamp is None else _STAMP.pack(stamp) + made

    def value_of(self, data: bytes) -> Any:
        """Return the value of a row."""
        if self.timed:
            return self.value_serializer.from_bytes(data[8:]) if len(data) > 8 else None
        return self.value_serializer.from_bytes(data) if data else None

    @staticmethod
    def stamp_of(data: bytes) -> int:
        """Return the timestamp of a row."""
        return DataInputView(data).read_long()

    def keys_of(self, suffixes: Sequence[bytes]) -> list[Any]:
        """Return the map keys of rows' keys without the address."""
        return list(self._key.from_bytes_many(suffixes))

    def rows(self, address: bytes, value: Any) -> Rows:
        if self.timed:
            stamps = value.stamps
            return {self.row(address, key): self.encode(item, stamps[key]) for key, item in value.items()}
        if len(value) < _MANY_ENTRIES:
            return {self.row(address, key): self.encode(item) for key, item in value.items()}
        rows = map(address.__add__, self._key.to_bytes_many(list(value)))
        return dict(zip(rows, _encoded(self.value_serializer, list(value.values())), strict=True))

    def decode_many(self, entries: Sequence[Sequence[Row]]) -> list[Any]:
        if not self.together or len(entries) < 2:
            return super().decode_many(entries)
        # All rows at once: most maps are small, and a call costs as much as several rows.
        suffixes, data = transposed(list(chain.from_iterable(entries)), 2)
        items = zip(self._key.from_bytes_many(suffixes), _decoded(self.value_serializer, data), strict=True)
        return [dict(islice(items, len(own))) for own in entries]

    def decode(self, rows: Sequence[Row]) -> Any:
        suffixes, data = transposed(rows, 2)
        keys = self._key.from_bytes_many(suffixes)
        if not self.timed:
            return dict(zip(keys, _decoded(self.value_serializer, data), strict=True))
        entries = zip(keys, map(self.value_of, data), strict=True)
        return TimedDict.of(entries, dict(zip(keys, map(self.stamp_of, data), strict=True)))


def _encoded(serializer: TypeSerializer[Any], values: list[Any]) -> list[bytes]:
    """Return the bytes of several values, none of None."""
    if type(None) in set(map(type, values)):
        return [b"" if value is None else serializer.to_bytes(value) for value in values]
    return serializer.to_bytes_many(values)


def _decoded(serializer: TypeSerializer[Any], data: Sequence[bytes | None]) -> list[Any]:
    """Return the values of the bytes of several, None for one without bytes."""
    if all(data):
        return serializer.from_bytes_many(data)  # type: ignore[arg-type] # there is no None
    found = iter(serializer.from_bytes_many([one for one in data if one]))
    return [next(found) if one else None for one in data]


def codec_of(meta: StateMeta, max_parallelism: int) -> EntryCodec:
    """Return the codec for a state's kind."""
    match meta.kind:
        case StateKind.LIST:
            return ListCodec(meta, max_parallelism)
        case StateKind.MAP:
            return MapCodec(meta, max_parallelism)
        case _:
            return ValueCodec(meta, max_parallelism)
