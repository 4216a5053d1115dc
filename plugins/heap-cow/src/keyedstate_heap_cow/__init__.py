"""The backend ``heap-cow``: copy-on-write hash maps in memory.

Other backends may extend its table, which is exported here.
"""

from keyedstate_heap_cow.snapshot import MapsSnapshot
from keyedstate_heap_cow.table import CopyOnWriteTable

__all__ = ["CopyOnWriteTable", "MapsSnapshot"]
