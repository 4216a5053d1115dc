"""The ordered byte store: a database per instance, and in it a table per state."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from keyedstate.backend import BackendContext
from keyedstate.ordered import OrderedStore, RowCopy, RowReader, RowSpace

#: Rows that a scan fetches at once, and keys of one statement: SQLite allows at least 999 parameters.
_ROWS_AT_ONCE = 500


class SqliteStore(OrderedStore):
    """A database in the private folder of an instance.

    It is never synchronized to the disk, since it need not survive the process.
    """

    def __init__(self, context: BackendContext) -> None:
        self._path = context.local_dir / "state.sqlite"
        self._connection = _connected(self._path)
        self._connection.execute("PRAGMA synchronous = OFF")
        # In this mode a reader sees the state of its beginning, and blocks no writer.
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._spaces = 0

    def open_space(self, state: str) -> RowSpace:
        """Return a new table; its name is a number, since the name of a state may contain any character."""
        self._spaces += 1
        table = f"state_{self._spaces}"
        self._connection.execute(f"CREATE TABLE {table} (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
        return SqliteSpace(self._connection, table, lambda: _connected(self._path))

    def close(self) -> None:
        self._connection.close()


def _connected(path: Path) -> sqlite3.Connection:
    # One thread makes a copy and another one reads it, never two at a time.
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


class _Reader(RowReader):
    def __init__(self, connection: sqlite3.Connection, table: str) -> None:
        self._connection = connection
        self._table = table

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: dict[bytes, bytes] = {}
        for start in range(0, len(keys), _ROWS_AT_ONCE):
            part = keys[start : start + _ROWS_AT_ONCE]
            marks = ",".join("?" * len(part))
            found.update(
                self._connection.execute(f"SELECT key, value FROM {self._table} WHERE key IN ({marks})", part)
            )
        return list(map(found.get, keys))

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        bound = "" if end is None else " AND key < ?"
        query = f"SELECT key, value FROM {self._table} WHERE key >= ?{bound} ORDER BY key"
        cursor = self._connection.execute(query, (start,) if end is None else (start, end))
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            yield from rows


class SqliteSpace(_Reader, RowSpace):
    """A table of keys and values."""

    def __init__(
        self, connection: sqlite3.Connection, table: str, connect: Callable[[], sqlite3.Connection]
    ) -> None:
        super().__init__(connection, table)
        self._connect = connect
        self._get = f"SELECT value FROM {table} WHERE key = ?"

    def get(self, key: bytes) -> bytes | None:
        row = self._connection.execute(self._get, (key,)).fetchone()
        return None if row is None else row[0]

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        with self._connection:
            self._connection.execute("BEGIN")
            self._connection.executemany(
                f"REPLACE INTO {self._table} VALUES (?, ?)",
                [(key, value) for key, value in rows.items() if value is not None],
            )
            self._connection.executemany(
                f"DELETE FROM {self._table} WHERE key = ?",
                [(key,) for key, value in rows.items() if value is None],
            )

    def copy(self) -> RowCopy:
        """Return a transaction of another connection, which sees the rows that are committed now."""
        return _Copy(self._connect(), self._table)


class _Copy(_Reader, RowCopy):
    def __init__(self, connection: sqlite3.Connection, table: str) -> None:
        super().__init__(connection, table)
        connection.execute("BEGIN")
        # The first read decides what the transaction sees.
        connection.execute(f"SELECT key FROM {table} LIMIT 1").fetchone()

    def release(self) -> None:
        """End the transaction."""
        self._connection.close()
