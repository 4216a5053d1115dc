"""The contract: what a state backend implements.

Read `table` first, then `snapshot` and `restore`; the hooks that hand these objects over are in
`keyedstate.hooks`.  Only what follows from the contract itself is implemented here (default loops, the
full snapshot and the full restore); no backend lives here.
"""

from keyedstate.backend.capabilities import BackendDescription, Capability, Level
from keyedstate.backend.changes import (
    AddressBatch,
    ChangeTracking,
    EntryChange,
    GatheredChanges,
    GroupChanges,
    TableChanges,
)
from keyedstate.backend.columns import (
    ArrowEntryBatch,
    Column,
    ColumnTable,
    LocatedEntries,
    array_of,
    column_dtype,
    column_of,
    is_numeric,
)
from keyedstate.backend.context import BackendContext
from keyedstate.backend.expiry import Expiry, ExpiryCleanup
from keyedstate.backend.meta import StateKind, StateMeta
from keyedstate.backend.metrics import EpochMetrics, LatencyFigures, PhaseTimes, StateFigures
from keyedstate.backend.native import (
    NativeFile,
    NativeHandle,
    NativeSnapshot,
    NativeSnapshotStrategy,
)
from keyedstate.backend.operator_state import (
    OPERATOR_KEY_GROUP,
    OperatorStateKind,
    OperatorStateMeta,
    RestoredOperatorState,
)
from keyedstate.backend.restore import (
    OVERLAP_THRESHOLD,
    FullRestoreOperation,
    RestoreOperation,
    StateHandle,
    choose_base,
)
from keyedstate.backend.rewriting import RewritingTable
from keyedstate.backend.snapshot import (
    SNAPSHOT_BATCH_ENTRIES,
    FullSnapshotStrategy,
    Snapshot,
    SnapshotSink,
    SnapshotStrategy,
)
from keyedstate.backend.spill import SpillManager
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
    "OPERATOR_KEY_GROUP",
    "OVERLAP_THRESHOLD",
    "SNAPSHOT_BATCH_ENTRIES",
    "TIMER_TABLES",
    "AddressBatch",
    "AnyStateTable",
    "ArrowEntryBatch",
    "BackendContext",
    "BackendDescription",
    "Capability",
    "ChangeTracking",
    "Column",
    "ColumnTable",
    "EntryBatch",
    "EntryChange",
    "EpochMetrics",
    "Expiry",
    "ExpiryCleanup",
    "FullRestoreOperation",
    "FullSnapshotStrategy",
    "GatheredChanges",
    "GroupChanges",
    "IncrementalVisitor",
    "LatencyFigures",
    "Level",
    "LocatedEntries",
    "NativeFile",
    "NativeHandle",
    "NativeSnapshot",
    "NativeSnapshotStrategy",
    "OperatorStateKind",
    "OperatorStateMeta",
    "PhaseTimes",
    "RestoreOperation",
    "RestoredOperatorState",
    "RewritingTable",
    "Snapshot",
    "SnapshotSink",
    "SnapshotStrategy",
    "SpillManager",
    "StateEntry",
    "StateFigures",
    "StateHandle",
    "StateKind",
    "StateMeta",
    "StateTable",
    "TableChanges",
    "TableSnapshot",
    "TimerTable",
    "array_of",
    "choose_base",
    "column_dtype",
    "column_of",
    "holds_timers",
    "is_numeric",
]
