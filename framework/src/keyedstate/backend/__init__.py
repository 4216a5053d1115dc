"""The contract: what a state backend implements.

Read `table` first, then `snapshot` and `restore`; the hooks that hand these objects over are in
`keyedstate.hooks`.  Here are abstract classes and data classes only; what can be built on them alone is in
`keyedstate.tables`, and the toolkit for ordered byte stores in `keyedstate.ordered`.
"""

from keyedstate.backend.capabilities import BackendDescription, Capability, Level, StateKind
from keyedstate.backend.changes import AddressBatch, ChangeTracking, EntryChange, TableChanges
from keyedstate.backend.columns import Column, ColumnTable, LocatedEntries
from keyedstate.backend.context import BackendContext
from keyedstate.backend.expiry import Expiry, ExpiryCleanup
from keyedstate.backend.meta import StateMeta
from keyedstate.backend.native import NativeFile, NativeHandle, NativeSnapshot, NativeSnapshotStrategy
from keyedstate.backend.restore import RestoreOperation, StateHandle
from keyedstate.backend.snapshot import Snapshot, SnapshotSink, SnapshotStrategy
from keyedstate.backend.spill import SpillableGroup, SpillableTable, SpillManager
from keyedstate.backend.table import (
    AnyStateTable,
    EntryBatch,
    IncrementalVisitor,
    StateEntry,
    StateTable,
    TableSnapshot,
)
from keyedstate.backend.timers import TIMER_TABLES, TimerTable, holds_timers

__all__ = [
    "TIMER_TABLES",
    "AddressBatch",
    "AnyStateTable",
    "BackendContext",
    "BackendDescription",
    "Capability",
    "ChangeTracking",
    "Column",
    "ColumnTable",
    "EntryBatch",
    "EntryChange",
    "Expiry",
    "ExpiryCleanup",
    "IncrementalVisitor",
    "Level",
    "LocatedEntries",
    "NativeFile",
    "NativeHandle",
    "NativeSnapshot",
    "NativeSnapshotStrategy",
    "RestoreOperation",
    "Snapshot",
    "SnapshotSink",
    "SnapshotStrategy",
    "SpillManager",
    "SpillableGroup",
    "SpillableTable",
    "StateEntry",
    "StateHandle",
    "StateKind",
    "StateMeta",
    "StateTable",
    "TableChanges",
    "TableSnapshot",
    "TimerTable",
    "holds_timers",
]
