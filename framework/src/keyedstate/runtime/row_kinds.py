"""Row kinds: what a row does to a result that changes (Flink's ``RowKind``), as strings in a column.

An update is a pair: the row that is taken back, and the one that replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keyedstate.errors import RowKindError, did_you_mean

#: A row of a key that had none.
INSERT: Final = "+I"
#: The row that the next one, of the kind `UPDATE_AFTER`, replaces.
UPDATE_BEFORE: Final = "-U"
#: The row that replaces the one before.
UPDATE_AFTER: Final = "+U"
#: The last row of a key that has none any more.
DELETE: Final = "-D"

ROW_KINDS: Final = (INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE)

_KINDS = pa.array(ROW_KINDS)
_INSERT, _BEFORE, _AFTER, _DELETE = range(4)

Flags = npt.NDArray[np.bool_]


def check_row_kind(name: str, types: Mapping[str, str]) -> None:
    """Raise `RowKindError` where rows, given as the names of their columns' types, have no such strings."""
    if name not in types:
        hint = did_you_mean(name, types).rstrip("?")
        raise RowKindError(name, f"the rows have no such column, but {', '.join(types)}.{hint}")
    if types[name] not in ("string", "large_string"):
        raise RowKindError(name, f"the column has the type {types[name]}, and row kinds are strings")


def taken_back(name: str, kinds: pa.Array) -> Flags:
    """Return which rows take an earlier row back; raises `RowKindError` for what is no row kind."""
    known = pc.index_in(kinds, value_set=_KINDS)
    if known.null_count:
        wrong = kinds[int(np.argmax(known.is_null().to_numpy(zero_copy_only=False)))].as_py()
        raise wrong_kind(name, wrong)
    return np.isin(known.to_numpy(), (_BEFORE, _DELETE))


def takes_back(name: str, kind: object) -> bool:
    """Return whether a row of a kind takes an earlier row back; raises `RowKindError` for no row kind."""
    if kind in (INSERT, UPDATE_AFTER):
        return False
    if kind in (UPDATE_BEFORE, DELETE):
        return True
    raise wrong_kind(name, kind)


def wrong_kind(name: str, value: object) -> RowKindError:
    """Return the error for a row whose row kind is none."""
    return RowKindError(name, f"a row has {value!r}, and the kinds are {', '.join(ROW_KINDS)}")


def changes(
    before: pa.RecordBatch,
    after: pa.RecordBatch,
    existed: Flags,
    exist: Flags,
    row_kind: str,
    *,
    keys: int = 0,
) -> pa.RecordBatch:
    """Return how one set of rows becomes another one, with the row kinds as the last column.

    Parameters
    ----------
    before, after : pyarrow.RecordBatch
        Row i of both has the same key; a row that has not changed is left out.
    existed, exist : ndarray of bool
        Which rows there were, and which there are now.
    row_kind : str
        The name of the column.
    keys : int
        How many columns at the beginning are the key, and the same in both.
    """
    updated = existed & exist & _differ(before, after, keys)
    removed, inserted = existed & ~exist, exist & ~existed
    # Two places for each key, the row that is taken back and the one that is added.
    used = np.stack([updated | removed, updated | inserted], axis=1).ravel()
    count = len(existed)
    rows = np.stack([np.arange(count), np.arange(count, 2 * count)], axis=1).ravel()[used]
    kinds = np.stack([np.where(updated, _BEFORE, _DELETE), np.where(updated, _AFTER, _INSERT)], axis=1)
    columns = [
        pa.concat_arrays([old, new]).take(pa.array(rows))
        for old, new in zip(before.columns, after.columns, strict=True)
    ]
    schema = after.schema.append(pa.field(row_kind, pa.string(), nullable=False))
    return pa.RecordBatch.from_arrays([*columns, _KINDS.take(pa.array(kinds.ravel()[used]))], schema=schema)


def _differ(before: pa.RecordBatch, after: pa.RecordBatch, keys: int) -> Flags:
    """Return which rows differ in a column; nulls are equal, and NaN is equal to NaN."""
    differ = np.zeros(len(before), np.bool_)
    for old, new in zip(before.columns[keys:], after.columns[keys:], strict=True):
        if pa.types.is_nested(old.type):
            alike = np.fromiter(map(_are_alike, old.to_pylist(), new.to_pylist()), np.bool_, len(old))
            differ |= ~alike
            continue
        unlike = pc.not_equal(old, new)
        if pa.types.is_floating(old.type):
            unlike = pc.and_(unlike, pc.invert(pc.and_(pc.is_nan(old), pc.is_nan(new))))
        unlike = pc.or_(unlike.fill_null(False), pc.xor(old.is_null(), new.is_null()))
        differ |= unlike.to_numpy(zero_copy_only=False)
    return differ


def _are_alike(old: Any, new: Any) -> bool:
    if isinstance(old, dict) and isinstance(new, dict):
        return all(_are_alike(old[name], new[name]) for name in old)
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return len(old) == len(new) and all(map(_are_alike, old, new))
    return bool(old == new or (old != old and new != new))
