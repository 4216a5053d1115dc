"""The backend ``heap-cow``: copy-on-write hash maps in memory.

Other backends may extend its tables, which are exported here.  Tables of columns exist only where `COLUMNS`
is true: their index is compiled or missing.
"""

from keyedstate_heap_cow.snapshot import MapsSnapshot
from keyedstate_heap_cow.table import CopyOnWriteTable

try:
    from keyedstate_heap_cow.keyindex import copy_bytes, starts_of
except ImportError:
    COLUMNS = False
else:
    from keyedstate_heap_cow.before_images import FrozenArrays
    from keyedstate_heap_cow.column_snapshot import (
        Addresses,
        ColumnsChanges,
        ColumnsSnapshot,
        columns_of,
        struct_of,
    )
    from keyedstate_heap_cow.columntable import CopyOnWriteColumns, fits
    from keyedstate_heap_cow.entry_columns import BEFORE, GONE, NONE, PRESENT, Slots
    from keyedstate_heap_cow.keybytes import KeyBytes, Keys
    from keyedstate_heap_cow.renumbering import Numbering, flags_of

    COLUMNS = True

__all__ = [
    "BEFORE",
    "COLUMNS",
    "GONE",
    "NONE",
    "PRESENT",
    "Addresses",
    "ColumnsChanges",
    "ColumnsSnapshot",
    "CopyOnWriteColumns",
    "CopyOnWriteTable",
    "FrozenArrays",
    "KeyBytes",
    "Keys",
    "MapsSnapshot",
    "Numbering",
    "Slots",
    "columns_of",
    "copy_bytes",
    "fits",
    "flags_of",
    "starts_of",
    "struct_of",
]
