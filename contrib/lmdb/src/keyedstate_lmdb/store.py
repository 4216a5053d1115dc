"""The ordered byte store: an LMDB environment per instance, and in it a database per state."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import lmdb

from keyedstate.backend import BackendContext
from keyedstate.config import integer
from keyedstate.errors import KeyedStateError
from keyedstate.ordered import OrderedStore, RowCopy, RowSpace

MAP_SIZE = integer(
    "lmdb.map-size", 64 << 30, "Bytes that the state of one task may take in its LMDB file.", low=1 << 20
)
#: Databases of an environment, and transactions that read it at once.
_STATES, _READERS = 4096, 1024


class MapFullError(KeyedStateError):
    """The state of a task that has outgrown its LMDB file."""

    def __init__(self, state: str, size: int) -> None:
        self.state = state
        self.size = size
        super().__init__(
            f"the state {state!r} does not fit into the LMDB file of its task, which may have {size} bytes. "
            f"Set the option {MAP_SIZE.name!r} to more, or raise the parallelism."
        )


class LmdbStore(OrderedStore):
    """An environment in the private folder of an instance.

    It is never synchronized to the disk, since it need not survive the process.
    """

    def __init__(self, context: BackendContext) -> None:
        self.size = context.options[MAP_SIZE.name]
        self.environment: Any = lmdb.open(
            str(context.local_dir / "lmdb"),
            map_size=self.size,
            max_dbs=_STATES,
            max_readers=_READERS,
            sync=False,
        )
        self._spaces = 0
        self._lock = threading.Lock()
        #: The owner and the copies: the last one closes the environment.
        self._users = 1

    def open_space(self, state: str) -> RowSpace:
        """Return a new database; its name is a number, since the name of a state may be long."""
        self._spaces += 1
        database = self.environment.open_db(f"state_{self._spaces}".encode())
        return LmdbSpace(self, state, database)

    def use(self) -> None:
        """Keep the environment open until another `close`."""
        with self._lock:
            self._users += 1

    def close(self) -> None:
        """Close the environment, once no copy needs it."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.environment.close()


def _scan(transaction: Any, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    with transaction.cursor() as cursor:
        found = cursor.set_range(start) if start else cursor.first()
        while found:
            key, value = cursor.item()
            if end is not None and key >= end:
                return
            yield key, value
            found = cursor.next()


class LmdbSpace(RowSpace):
    """A database of keys and values."""

    max_key_bytes = 511

    def __init__(self, store: LmdbStore, state: str, database: Any) -> None:
        self._store = store
        self._state = state
        self._database = database

    def _reading(self) -> Any:
        return self._store.environment.begin(self._database)

    def get(self, key: bytes) -> bytes | None:
        with self._reading() as transaction:
            found: bytes | None = transaction.get(key)
            return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._reading() as transaction:
            return list(map(transaction.get, keys))

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        with self._reading() as transaction:
            yield from _scan(transaction, start, end)

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        try:
            with self._store.environment.begin(self._database, write=True) as transaction:
                for key, value in rows.items():
                    if value is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, value)
        except lmdb.MapFullError as error:
            raise MapFullError(self._state, self._store.size) from error

    def copy(self) -> RowCopy:
        """Return a read transaction, which sees the rows that are committed now."""
        return _Copy(self._store, self._reading())


class _Copy(RowCopy):
    def __init__(self, store: LmdbStore, transaction: Any) -> None:
        store.use()
        self._store = store
        self._transaction: Any = transaction

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._transaction.get, keys))

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return _scan(self._transaction, start, end)

    def release(self) -> None:
        """End the transaction."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.abort()
            self._store.close()
