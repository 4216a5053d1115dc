"""Upserts into a table of a database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from keyedstate.errors import UpsertError
from keyedstate.runtime.row_kinds import DELETE, ROW_KINDS, UPDATE_BEFORE, wrong_kind
from keyedstate.sinks.rows import arrow_table, check_keys, in_utc


class UpsertSink:
    """Writes the rows of each epoch into a table of a database, in one transaction.

    It is a function for ``foreachBatch`` and for `keyedstate.local.streams.result.ResultStream.for_each`.  A
    row replaces the one with the same key.  So an epoch that is written again, after a failure, changes
    nothing.

    Parameters
    ----------
    connect : callable
        Returns a new connection to SQLite or PostgreSQL by Python's DB-API (PEP 249), which does not commit
        by itself.  It is called in the driver once for each epoch, and the connection is closed.
    table : str
        The table, as SQL names it; it exists, and has the columns of the rows.  An index of the key columns
        makes it fast; no constraint is needed.
    keys : sequence of str
        The columns that identify a row, those of the operator's key; null is a value like any other, and NaN
        is refused.
    row_kind : str, optional
        The column of row kinds: ``-D`` and ``-U`` delete the row of a key, unless a later row of the epoch
        replaces it.  The column itself is not written.  Without it every row is written.
    placeholder : str, default "?"
        How the module's SQL writes a parameter, by its ``paramstyle``: ``"?"`` or ``"%s"``.

    Notes
    -----
    All rows of an epoch are in the driver's memory.  Of several rows with the same key the last one counts.
    Times with a zone are datetimes in UTC, which the database's module has to take.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        table: str,
        keys: Sequence[str],
        *,
        row_kind: str | None = None,
        placeholder: str = "?",
    ) -> None:
        if placeholder not in ("?", "%s"):
            raise UpsertError(table, f"placeholder={placeholder!r} is no choice", "Give '?' or '%s'.")
        self._connect = connect
        self._table = table
        self._keys = check_keys(table, keys)
        self._row_kind = row_kind
        self._placeholder = placeholder

    def __call__(self, rows: Any, epoch: int) -> None:
        """Write the rows of an epoch, a DataFrame or an Arrow table; raises `UpsertError` and `RowKindError`.

        What the database raises is raised too, and nothing is written then.
        """
        content = arrow_table(self._table, rows, self._keys, self._row_kind)
        names = content.column_names
        newest = self._newest(names, _rows_of(content))
        if not newest:
            return
        columns = [name for name in names if name != self._row_kind]
        inserted = [row for row in newest.values() if row is not None]
        with closing(self._connect()) as connection:
            if getattr(connection, "autocommit", False) is True:
                way_out = "Leave autocommit out: the rows of an epoch are one transaction."
                raise UpsertError(self._table, "the connection commits by itself", way_out)
            try:
                with closing(connection.cursor()) as cursor:
                    if getattr(connection, "in_transaction", None) is False:
                        # SQLite begins none by itself where its isolation level is None.
                        cursor.execute("BEGIN")
                    for statement, parameters in self._deletions(newest):
                        cursor.executemany(statement, parameters)
                    if inserted:
                        cursor.executemany(self._insertion(columns), inserted)
                connection.commit()
            except BaseException:
                connection.rollback()
                raise

    def _newest(
        self, names: Sequence[str], rows: Iterable[tuple[Any, ...]]
    ) -> dict[tuple[Any, ...], tuple[Any, ...] | None]:
        """Return the last row of each key without its row kind, None where it deletes the one before."""
        key_places = [names.index(name) for name in self._keys]
        kind_place = None if self._row_kind is None else names.index(self._row_kind)
        newest: dict[tuple[Any, ...], tuple[Any, ...] | None] = {}
        for row in rows:
            key = tuple(row[place] for place in key_places)
            self._check_key(key)
            if kind_place is None:
                newest[key] = row
                continue
            kind = row[kind_place]
            if kind not in ROW_KINDS:
                assert self._row_kind is not None
                raise wrong_kind(self._row_kind, kind)
            if kind in (DELETE, UPDATE_BEFORE):
                newest[key] = None
            else:
                newest[key] = row[:kind_place] + row[kind_place + 1 :]
        return newest

    def _check_key(self, key: tuple[Any, ...]) -> None:
        for name, part in zip(self._keys, key, strict=True):
            if part != part or isinstance(part, (dict, list)):
                reason = f"the key column {name!r} has {part!r}, which a database does not find again"
                raise UpsertError(self._table, reason, "Leave such rows out, or key by other columns.")

    def _deletions(self, keys: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
        """Yield statements that delete the rows of keys, one for each set of parts that are null."""
        by_nulls: dict[tuple[bool, ...], list[tuple[Any, ...]]] = defaultdict(list)
        for key in keys:
            by_nulls[tuple(part is None for part in key)].append(
                tuple(part for part in key if part is not None)
            )
        for nulls, parameters in by_nulls.items():
            conditions = [
                # With its table: SQLite takes the quoted name of a column that is not there for a text.
                f"{self._table}.{self._quoted(name)} " + ("IS NULL" if null else f"= {self._placeholder}")
                for name, null in zip(self._keys, nulls, strict=True)
            ]
            yield f"DELETE FROM {self._table} WHERE {' AND '.join(conditions)}", parameters

    def _insertion(self, columns: Sequence[str]) -> str:
        names = ", ".join(map(self._quoted, columns))
        values = ", ".join([self._placeholder] * len(columns))
        return f"INSERT INTO {self._table} ({names}) VALUES ({values})"

    def _quoted(self, name: str) -> str:
        quoted = '"' + name.replace('"', '""') + '"'
        return quoted.replace("%", "%%") if self._placeholder == "%s" else quoted


def _rows_of(content: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in in_utc(content).columns), strict=True)
