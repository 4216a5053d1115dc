"""A whole state backend from an ordered byte store, in about a hundred lines.

Implement `OrderedStore`, `RowSpace` and `RowCopy`, and let the hook that creates tables return
`create_ordered_table` over a `WriteBuffer` of the state's space.  `FullSnapshotStrategy` and
`FullRestoreOperation` do the rest.
"""

from keyedstate.ordered.caching.object_cache import ObjectMemory
from keyedstate.ordered.codecs import ValueCodec
from keyedstate.ordered.creation import create_ordered_table
from keyedstate.ordered.row_keys import RowLayout
from keyedstate.ordered.store import OrderedStore, RowCopy, RowReader, RowSpace, end_of, store_of
from keyedstate.ordered.table import SWEEP_ENTRIES, OrderedTable, RewritingTable
from keyedstate.ordered.write_buffer import BATCH_BYTES, BATCH_ROWS, WriteBuffer

__all__ = [
    "BATCH_BYTES",
    "BATCH_ROWS",
    "SWEEP_ENTRIES",
    "ObjectMemory",
    "OrderedStore",
    "OrderedTable",
    "RewritingTable",
    "RowCopy",
    "RowLayout",
    "RowReader",
    "RowSpace",
    "ValueCodec",
    "WriteBuffer",
    "create_ordered_table",
    "end_of",
    "store_of",
]
