"""Upserts into a Delta table, through the package ``deltalake``, which needs no JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyedstate.errors import MissingPackageError, UpsertError
from keyedstate.runtime.row_kinds import taken_back
from keyedstate.sinks.rows import arrow_table, check_keys, in_utc

#: The names that rows have beside those of their columns.
_ROW, _DELETED = "__keyedstate_row", "__keyedstate_deleted"


class DeltaSink:
    """Merges the rows of each epoch into a Delta table, in one version of it.

    It is a function for ``foreachBatch`` and for `keyedstate.local.streams.result.ResultStream.for_each`.  A
    row replaces the one with the same key.  So an epoch that is written again, after a failure, changes
    nothing.

    Parameters
    ----------
    table : str
        The folder or URI of the table.  The first epoch with rows creates it if it does not exist.
    keys : sequence of str
        The columns that identify a row, those of the operator's key; null is a value like any other, and NaN
        is refused.
    row_kind : str, optional
        The column of row kinds: ``-D`` and ``-U`` delete the row of a key, unless a later row of the epoch
        replaces it.  The column itself is not written.  Without it every row is written.
    storage_options : mapping of str to str, optional
        What ``deltalake`` needs for the storage, such as credentials.

    Raises
    ------
    MissingPackageError
        Without the package ``deltalake``, which the extra ``delta`` installs.
    UpsertError
        For keys that are no list of columns.

    Notes
    -----
    All rows of an epoch are in the driver's memory.  Of several rows with the same key the last one counts.
    """

    def __init__(
        self,
        table: str,
        keys: Sequence[str],
        *,
        row_kind: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._table = str(table)
        self._keys = check_keys(self._table, keys)
        self._row_kind = row_kind
        self._storage_options = dict(storage_options or {})
        _library()

    def __call__(self, rows: Any, epoch: int) -> None:
        """Write the rows of an epoch, a DataFrame or an Arrow table; raises `UpsertError` and `RowKindError`.

        What ``deltalake`` raises is raised too, as where another writer has changed the same rows; nothing is
        written then.
        """
        content = arrow_table(self._table, rows, self._keys, self._row_kind)
        if content.num_rows:
            # Delta has instants in no other zone and unit.
            self._merge(in_utc(self._newest(content), "us"))

    def _newest(self, content: pa.Table) -> pa.Table:
        """Return the last row of each key, and in place of its row kind whether it deletes the one before."""
        self._check_values(content)
        deleted = np.zeros(content.num_rows, np.bool_)
        if self._row_kind is not None:
            kinds = content.column(self._row_kind).combine_chunks()
            deleted = taken_back(self._row_kind, kinds)
            content = content.drop_columns([self._row_kind])
        keys = content.select(list(self._keys)).append_column(_ROW, pa.array(np.arange(content.num_rows)))
        last = keys.group_by(list(self._keys), use_threads=False).aggregate([(_ROW, "max")])
        rows = last.column(f"{_ROW}_max")
        return content.append_column(_DELETED, pa.array(deleted)).take(rows)

    def _check_values(self, content: pa.Table) -> None:
        for name in self._keys:
            column = content.column(name)
            if pa.types.is_nested(column.type):
                reason = (
                    f"the key column {name!r} has the type {column.type}, whose values cannot be compared"
                )
                raise UpsertError(self._table, reason, "Key by other columns.")
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
                reason = f"the key column {name!r} has NaN, which a table does not find again"
                raise UpsertError(self._table, reason, "Leave such rows out, or key by other columns.")

    def _merge(self, newest: pa.Table) -> None:
        written = newest.drop_columns([_DELETED]).schema
        table = self._opened(written)
        values = {_quoted(name): f"source.{_quoted(name)}" for name in written.names}
        deleted = f"source.{_quoted(_DELETED)}"
        merge = table.merge(
            newest,
            " AND ".join(map(_same, self._keys)),
            source_alias="source",
            target_alias="target",
        )
        merge = merge.when_matched_delete(deleted).when_matched_update(values)
        merge.when_not_matched_insert(values, f"NOT {deleted}").execute()

    def _opened(self, schema: pa.Schema) -> Any:
        library = _library()
        if not library.DeltaTable.is_deltatable(self._table, self._storage_options):
            library.DeltaTable.create(
                self._table,
                library.Schema.from_arrow(schema),
                mode="ignore",
                storage_options=self._storage_options,
            )
        table = library.DeltaTable(self._table, storage_options=self._storage_options)
        known = [field.name for field in table.schema().fields]
        # A merge leaves other columns out without a word.
        unknown = [name for name in schema.names if name not in known]
        if unknown:
            reason = f"it has no column {unknown[0]!r}, but {', '.join(known)}"
            raise UpsertError(
                self._table, reason, "Add the column to the table, or leave it out of the rows."
            )
        return table


def _library() -> Any:
    try:
        import deltalake
    except ImportError as error:
        raise MissingPackageError("DeltaSink", ["deltalake"], "delta", "on the driver") from error
    return deltalake


def _same(name: str) -> str:
    return f"(target.{_quoted(name)} IS NOT DISTINCT FROM source.{_quoted(name)})"


def _quoted(name: str) -> str:
    # What is in double quotes may be taken for a text.
    return "`" + name.replace("`", "``") + "`"
