"""A toolkit for backends: what works with any table of the contract."""

from keyedstate.tables.address_visitor import AddressVisitor
from keyedstate.tables.base_choice import OVERLAP_THRESHOLD, choose_base
from keyedstate.tables.columns import ArrowEntryBatch, array_of, column_dtype, column_of, is_numeric
from keyedstate.tables.conversion import converted, converted_entries
from keyedstate.tables.epoch_notes import EpochNotes, check_ascending
from keyedstate.tables.full import SNAPSHOT_BATCH_ENTRIES, FullRestoreOperation, FullSnapshotStrategy
from keyedstate.tables.gathered_changes import GatheredChanges, GroupChanges

__all__ = [
    "OVERLAP_THRESHOLD",
    "SNAPSHOT_BATCH_ENTRIES",
    "AddressVisitor",
    "ArrowEntryBatch",
    "EpochNotes",
    "FullRestoreOperation",
    "FullSnapshotStrategy",
    "GatheredChanges",
    "GroupChanges",
    "array_of",
    "check_ascending",
    "choose_base",
    "column_dtype",
    "column_of",
    "converted",
    "converted_entries",
    "is_numeric",
]
