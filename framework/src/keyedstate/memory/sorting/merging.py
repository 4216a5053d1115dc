"""The merge of sorted runs, many rows at a time.

Of each run one batch is in memory.  The batch whose last row comes first bounds a step: the rows of all runs
up to it are sorted together, as one index.  Flink's heap of cursors compares row by row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from keyedstate.memory.sorting.index_sort import Places, sorted_places
from keyedstate.memory.sorting.run_files import keys_of

#: Returns the whole keys of rows of a run.
RunWholeKeys: TypeAlias = Callable[[pa.RecordBatch], pa.LargeBinaryArray]


def merged(runs: Sequence[Iterator[pa.RecordBatch]], whole_keys: RunWholeKeys) -> Iterator[pa.RecordBatch]:
    """Yield the rows of sorted runs in their order; of equal rows those of earlier runs come first.

    `whole_keys` is called for rows whose normalized keys are equal, and only prefixes.
    """
    cursors = [cursor for cursor in (_Cursor(run, whole_keys) for run in runs) if cursor.advance()]
    while cursors:
        bound = _bound(cursors)
        taken = [
            cursor.take(cursor.up_to(bound, inclusive=place <= bound.place))
            for place, cursor in enumerate(cursors)
        ]
        parts = [part for part in taken if part.num_rows]
        if len(parts) == 1:
            yield parts[0]
        else:
            rows, places = sorted_rows(parts, whole_keys)
            yield rows.take(pa.array(places))
        cursors = [cursor for cursor in cursors if not cursor.is_empty or cursor.advance()]


def sorted_rows(parts: Sequence[pa.RecordBatch], whole_keys: RunWholeKeys) -> tuple[pa.RecordBatch, Places]:
    """Return the rows of several batches as one, and their places in the order of their keys."""
    [rows] = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return rows, sorted_places(keys_of(rows), lambda tied: whole_keys(rows.take(pa.array(tied))))


class _Bound:
    """The last row of a step: its keys, and the place of its cursor."""

    def __init__(self, place: int, key: bytes, whole: bytes | None) -> None:
        self.place = place
        self.key = key
        #: Where the normalized key is only a prefix.
        self.whole = whole


def _bound(cursors: Sequence[_Cursor]) -> _Bound:
    """Return the last row of the batch that ends first, of the first of several cursors."""
    key = min(cursor.last_key for cursor in cursors)
    ending = [(place, cursor) for place, cursor in enumerate(cursors) if cursor.last_key == key]
    if not ending[0][1].ends_with_prefix:
        return _Bound(ending[0][0], key, None)
    whole, place = min((cursor.whole(cursor.last), place) for place, cursor in ending)
    return _Bound(place, key, whole)


class _Cursor:
    """A run, of which one batch is in memory."""

    def __init__(self, run: Iterator[pa.RecordBatch], whole_keys: RunWholeKeys) -> None:
        self._run = run
        self._whole_keys = whole_keys
        self._row = 0
        self._batch: pa.RecordBatch

    def advance(self) -> bool:
        """Read the next batch that has rows; False at the end of the run."""
        for batch in self._run:
            if batch.num_rows:
                self._batch, self._row = batch, 0
                keys = keys_of(batch)
                #: NumPy's bytes drop zeros at the end, which does not change the order of one width.
                self._keys: NDArray[Any] = np.ascontiguousarray(keys.data).view(f"S{keys.length}")[:, 0]
                self.last: int = batch.num_rows - 1
                self.last_key: bytes = keys.data[self.last].tobytes()
                marks = keys.prefix_only
                self.ends_with_prefix = False if marks is None else bool(marks[self.last])
                return True
        return False

    @property
    def is_empty(self) -> bool:
        """Whether all rows of the batch were taken."""
        return self._row > self.last

    def whole(self, row: int) -> bytes:
        """Return the whole key of a row."""
        return self._whole_keys(self._batch.slice(row, 1))[0].as_py()  # type: ignore[no-any-return]

    def up_to(self, bound: _Bound, *, inclusive: bool) -> int:
        """Return the row behind those up to a bound, with those that are equal to it or without."""
        keys = self._keys[self._row :]
        first = self._row + int(np.searchsorted(keys, bound.key, "left"))
        behind = self._row + int(np.searchsorted(keys, bound.key, "right"))
        if bound.whole is None or first == behind:
            return behind if inclusive else first
        search = bisect_right if inclusive else bisect_left
        return search(range(behind), bound.whole, first, key=self.whole)

    def take(self, end: int) -> pa.RecordBatch:
        """Return the rows up to one, and move there."""
        taken = self._batch.slice(self._row, end - self._row)
        self._row = end
        return taken
