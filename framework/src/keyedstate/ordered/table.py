"""The table over an ordered byte store that all kinds of state share, and the table of single values.

Restored entries are rewritten where the program registers other types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from keyedstate.backend.changes import ChangeTracking, TableChanges
from keyedstate.backend.expiry import ExpiryCleanup
from keyedstate.backend.meta import StateMeta
from keyedstate.backend.table import AnyStateTable, EntryBatch, IncrementalVisitor, StateTable, TableSnapshot
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered.codecs import Entry, EntryCodec, Rows, ValueCodec, codec_of
from keyedstate.ordered.snapshots import CopiedChanges, CopiedEntries, OrderedVisitor
from keyedstate.ordered.store import end_of
from keyedstate.ordered.tracked_addresses import TrackedRows
from keyedstate.ordered.write_buffer import ABSENT, WriteBuffer
from keyedstate.tables import converted_entries

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")
U = TypeVar("U")
C = TypeVar("C", bound=EntryCodec)

#: Entries that `OrderedTable.drop_expired` looks at in one call: a few milliseconds of an epoch.
SWEEP_ENTRIES = 2_000
#: Entries that are rewritten together.
_REWRITE_ENTRIES = 4096


class RewritingTable(ABC):
    """A `StateTable` that stores bytes and can rewrite them.

    For a table of objects the framework moves the converted objects into a new table instead.
    """

    #: Whether some entries are objects, which are converted also where the types write the same bytes.
    keeps_objects: bool = False

    @abstractmethod
    def rewrite(
        self,
        meta: StateMeta,
        of_keys: Callable[[Any], Any] | None,
        of_namespaces: Callable[[Any], Any] | None,
        of_values: Callable[[Any], Any] | None,
    ) -> None:
        """Rewrite every entry of a restored state with the serializers of `meta`.

        Each entry is read with the old serializers and converted by the functions; without one, objects stay
        as they are, and None stays None.  Where a conversion raises, the table is unchanged.  Rewriting is no
        change for an incremental checkpoint.
        """

    def successor(self) -> AnyStateTable:
        """Return the table that replaces this one after its types have changed.

        By default the table itself.  A table made for a narrower group of types returns another one over the
        same rows.  The framework begins the running epoch in that one: it has begun none.
        """
        assert isinstance(self, StateTable), "a rewriting table is a state table too"
        return self


class OrderedTable(
    StateTable[K, N, V], ChangeTracking[K, N, V], RewritingTable, ExpiryCleanup, Generic[K, N, V, C]
):
    """A table over a space of an ordered byte store, through a buffer over the space of the state."""

    codec: C
    sweep_entries = SWEEP_ENTRIES

    def __init__(
        self, meta: StateMeta, key_groups: KeyGroupRange, max_parallelism: int, buffer: WriteBuffer
    ) -> None:
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism
        self.buffer = buffer
        self.tracked = TrackedRows(self.exist)
        #: Where the next `drop_expired` begins.
        self._swept = b""
        self.adopt(meta)

    def adopt(self, meta: StateMeta) -> None:
        """Use other serializers from now on."""
        before: EntryCodec | None = getattr(self, "codec", None)
        self._meta = meta
        self.codec = codec_of(meta, self._max_parallelism)  # type: ignore[assignment]
        if before is not None:
            self.codec.next_number = before.next_number
        self._address = self.codec.layout.address

    # -- a kind of state ------------------------------------------------------------------------------------

    @abstractmethod
    def exist(self, addresses: Sequence[bytes]) -> list[bool]:
        """Look up which addresses have an entry."""

    @abstractmethod
    def read(self, address: bytes) -> V | None:
        """Return the value at an address as an object of the caller's own, or None."""

    @abstractmethod
    def delete_rows(self, address: bytes) -> None:
        """Remove the rows of an address."""

    # -- one entry ------------------------------------------------------------------------------------------

    def get(self, key_group: int, key: K, namespace: N) -> V | None:
        return self.read(self._address(key_group, key, namespace))

    def contains(self, key_group: int, key: K, namespace: N) -> bool:
        address = self._address(key_group, key, namespace)
        known = self.tracked.known(address)
        return self.exist([address])[0] if known is None else known

    def put(self, key_group: int, key: K, namespace: N, value: V) -> None:
        self._replace(self._address(key_group, key, namespace), value)

    def put_and_get_old(self, key_group: int, key: K, namespace: N, value: V) -> V | None:
        address = self._address(key_group, key, namespace)
        old = self.read(address)
        self._replace(address, value)
        return old

    def remove(self, key_group: int, key: K, namespace: N) -> None:
        self._delete(self._address(key_group, key, namespace))

    def remove_and_get_old(self, key_group: int, key: K, namespace: N) -> V | None:
        address = self._address(key_group, key, namespace)
        old = self.read(address)
        self._delete(address)
        return old

    def transform(
        self, key_group: int, key: K, namespace: N, value: U, function: Callable[[V | None, U], V]
    ) -> None:
        address = self._address(key_group, key, namespace)
        self._replace(address, function(self.read(address), value))

    def _replace(self, address: bytes, value: V) -> None:
        rows = self.codec.rows(address, value)
        if self.tracked.note(address, True) is not False:
            self.delete_rows(address)
        self._put_rows(address, rows)

    def _put_rows(self, address: bytes, rows: Rows) -> None:
        put = self.buffer.put
        for row, data in rows.items():
            put(row, data, address)

    def _delete(self, address: bytes) -> None:
        if self.tracked.note(address, False) is not False:
            self.delete_rows(address)

    # -- all entries ----------------------------------------------------------------------------------------

    @property
    def meta(self) -> StateMeta:
        return self._meta

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._key_groups

    def set_count(self, entries: int | None) -> None:
        """Set the number of entries after rows were added past the table; None where it is not known."""
        self.tracked.count = entries

    def __len__(self) -> int:
        # While epochs are tracked, this counts at most once; else again after each change.
        if self.tracked.count is None:
            self.tracked.count = self._counted()
        return self.tracked.count

    def _counted(self) -> int:
        """Count the entries by a pass over all rows."""
        return sum(1 for _ in self._addresses())

    def keys(self, namespace: N) -> Iterator[K]:
        return (key for key, other in self._addresses() if other == namespace)

    def keys_and_namespaces(self) -> Iterator[tuple[K, N]]:
        return self._addresses()

    def _addresses(self) -> Iterator[tuple[K, N]]:
        """Yield each address once: its rows are consecutive, and no other address begins with it."""
        parse = self.codec.layout.parse
        address: bytes | None = None
        for row, _ in self.buffer.scan_all():
            if address is None or not row.startswith(address):
                key, namespace, end = parse(row)
                address = row[:end]
                yield key, namespace

    def visitor(self, batch_size: int) -> IncrementalVisitor[K, N, V]:
        return OrderedVisitor(self, self._entries_from, self.codec.layout.group_of, batch_size)

    def _entries_from(self, row: bytes) -> Iterator[Entry]:
        return self.codec.entries(self.buffer.scan_all(row))

    # -- snapshots, restores, changes --------------------------------------------------------------

    def write_back(self) -> None:
        """Write all cached and pending rows to the space."""
        self.buffer.flush()

    def _reading_codec(self) -> C:
        return codec_of(self._meta.duplicate(), self._max_parallelism)  # type: ignore[return-value]

    def snapshot(self) -> TableSnapshot[K, N, V]:
        return CopiedEntries(self._reading_codec(), self.buffer.copy())

    def restore_entries(self, key_group: int, batch: EntryBatch[K, N, V]) -> None:
        if self.tracked.running is not None:
            addresses = [
                self._address(key_group, key, namespace)
                for namespace, key in zip(batch.namespaces, batch.keys, strict=True)
            ]
            self.tracked.note_many(addresses, True)
        elif self.tracked.count is not None:
            self.tracked.count += len(batch)
        self._insert(key_group, batch)

    def _insert(self, key_group: int, batch: EntryBatch[K, N, V]) -> None:
        rows: Rows = {}
        rows_of, address_of = self.codec.rows, self._address
        for namespace, key, value in zip(batch.namespaces, batch.keys, batch.values, strict=True):
            rows.update(rows_of(address_of(key_group, key, namespace), value))
        self.buffer.put_many(rows)

    def trim(self, since: float) -> None:
        self.buffer.trim()

    def begin_epoch(self, epoch: int) -> None:
        self.tracked.begin(epoch)

    def changes_since(self, epoch: int) -> TableChanges[K, N, V]:
        return CopiedChanges(self._reading_codec(), self.buffer.copy(), *self.tracked.changed_since(epoch))

    def forget_changes(self, epoch: int) -> None:
        self.tracked.forget(epoch)

    def drop_expired(self) -> None:
        """Drop what is expired of the next `sweep_entries` entries in the order of rows.

        After the last entry, the next call begins with the first one again.
        """
        expiry = self._meta.expiry
        if expiry is None:
            return
        changed: list[tuple[int, K, N, Any]] = []
        seen, last = 0, b""
        for last, key, namespace, stored in islice(self._swept_from(self._swept), self.sweep_entries):
            seen += 1
            living = None if stored is None else expiry.live(stored)
            if living is not stored:
                changed.append((self.codec.layout.group_of(last), key, namespace, living))
        following = end_of(last) if seen == self.sweep_entries else None
        self._swept = following or b""
        # Only now: rows must not be written while they are scanned.
        for key_group, key, namespace, living in changed:
            if living is None:
                self.remove(key_group, key, namespace)
            else:
                self.put(key_group, key, namespace, living)

    def _swept_from(self, row: bytes) -> Iterator[Entry]:
        """Yield the entries of a pass from a row on, as `EntryCodec.aged`; an empty row begins the pass."""
        return self.codec.aged(self.buffer.scan_all(row))

    # -- other serializers -------------------------------------------------------------------------

    def replace_meta(self, meta: StateMeta) -> None:
        self.adopt(meta)

    def rewrite(
        self,
        meta: StateMeta,
        of_keys: Callable[[Any], Any] | None,
        of_namespaces: Callable[[Any], Any] | None,
        of_values: Callable[[Any], Any] | None,
    ) -> None:
        old, snapshot = self._meta, self.snapshot()
        try:
            for writes in (False, True):
                for key_group in snapshot.occupied(self._key_groups):
                    for batch in snapshot.batches(key_group, _REWRITE_ENTRIES):
                        new = converted_entries(batch, of_keys, of_namespaces, of_values)
                        if writes:
                            self.adopt(old)
                            for namespace, key in zip(batch.namespaces, batch.keys, strict=True):
                                self.delete_rows(self._address(key_group, key, namespace))
                            self.adopt(meta)
                            self._insert(key_group, new)
        finally:
            snapshot.release()
        self.adopt(meta)


class ValueTable(OrderedTable[K, N, V, ValueCodec]):
    """Value, reducing and aggregating state: a row per entry."""

    def adopt(self, meta: StateMeta) -> None:
        super().adopt(meta)
        self._encode, self._decode = self.codec.encode, self.codec.decode
        self._from_bytes = meta.value_serializer.from_bytes

    def get(self, key_group: int, key: K, namespace: N) -> V | None:
        # All in one place, since it is called for each row of an input.
        address = self._address(key_group, key, namespace)
        data: Any = self.buffer.pending.get(address, ABSENT)
        if data is ABSENT:
            data = self.buffer.stored(address)
        return self._from_bytes(data) if data else None

    def _counted(self) -> int:
        return sum(1 for _ in self.buffer.scan_all())

    def exist(self, addresses: Sequence[bytes]) -> list[bool]:
        return [data is not None for data in self.buffer.get_many(addresses)]

    def read(self, address: bytes) -> V | None:
        return self._decode(self.buffer.get(address))  # type: ignore[no-any-return]

    def delete_rows(self, address: bytes) -> None:
        self.buffer.put(address, None)

    def _replace(self, address: bytes, value: V) -> None:
        data = self._encode(value)
        self.tracked.note(address, True)
        self.buffer.put(address, data)

    def _insert(self, key_group: int, batch: EntryBatch[K, N, V]) -> None:
        rows = self.codec.layout.each_address([key_group] * len(batch), batch.keys, batch.namespaces)
        self.buffer.put_columns(rows, self.codec.encode_many(list(batch.values)))

    def get_many(self, key_groups: Iterable[int], keys: Iterable[K], namespace: N) -> list[V | None]:
        rows = self.codec.layout.addresses(list(key_groups), list(keys), namespace)
        return self.codec.decode_many(self.buffer.get_many(rows))

    def put_many(
        self, key_groups: Iterable[int], keys: Iterable[K], namespace: N, values: Iterable[V]
    ) -> None:
        rows = self.codec.layout.addresses(list(key_groups), list(keys), namespace)
        data = self.codec.encode_many(list(values))
        if len(data) != len(rows):
            raise ValueError(f"{len(rows)} keys and {len(data)} values; give one of each for every entry")
        self.tracked.note_many(rows, True)
        self.buffer.put_columns(rows, data)

    def remove_many(self, key_groups: Iterable[int], keys: Iterable[K], namespace: N) -> None:
        rows = self.codec.layout.addresses(list(key_groups), list(keys), namespace)
        self.tracked.note_many(rows, False)
        self.buffer.put_many(dict.fromkeys(rows))
