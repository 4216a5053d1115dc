"""Checkpoints: storage, segment files, manifests, recovery in the task, coordination on the driver.

A task calls `claim` and `find_restore_point`, restores through `handles_for`, and at its end writes a
segment file and a manifest, whose path it acknowledges.  On the driver a `CheckpointCoordinator` makes a
published checkpoint of the acknowledgements of all tasks of an epoch.  Nothing here knows Spark.
"""

from keyedstate.checkpoint.bases import BaseReport, BaseRules, Writing, failures_so_far
from keyedstate.checkpoint.coordinator import Acknowledgement, CheckpointCoordinator, CheckpointListener
from keyedstate.checkpoint.delta import ChainHandle, read_changes, write_delta
from keyedstate.checkpoint.errors import (
    CheckpointError,
    CheckpointGoneError,
    CorruptManifestError,
    CorruptSegmentError,
    DuplicateSchemeError,
    FormatVersionError,
    IncompleteEpochError,
    MaxParallelismChangedError,
    MissedEpochsError,
    MissingCheckpointError,
    MissingFileError,
    MissingStateFolderError,
    OvertakenRunError,
    SnapshotOrderError,
    StateFolderOwnedError,
    StorageError,
    SupersededRunError,
    UnknownSchemeError,
    UnreadableStateError,
    UnsafeNameError,
    UnsafePathError,
    UnwritableEntryError,
)
from keyedstate.checkpoint.failures import FailureManager, FailureReason
from keyedstate.checkpoint.folder import AttemptFile, OperatorFolder
from keyedstate.checkpoint.holds import Hold, hold
from keyedstate.checkpoint.manifest import (
    AttemptManifest,
    CheckpointMetadata,
    HostAddress,
    Owner,
    StateOrigin,
    TaskIdentity,
    latest_inputs,
)
from keyedstate.checkpoint.metrics import metrics_of_checkpoint
from keyedstate.checkpoint.native import StoredNativeHandle, delete_native, write_native
from keyedstate.checkpoint.native_base import NativeBase, StoredNativeFile
from keyedstate.checkpoint.operator_state import (
    OperatorStateFile,
    read_operator_state,
    write_operator_state,
)
from keyedstate.checkpoint.recovery import claim, find_restore_point, handles_for
from keyedstate.checkpoint.restoring import SavepointRestore
from keyedstate.checkpoint.savepoint import (
    Savepoint,
    SavepointWriter,
    SparkPosition,
    delete_savepoint,
    describe_savepoint,
)
from keyedstate.checkpoint.savepoint_errors import (
    NewOperatorError,
    NotASavepointError,
    RestoreChangedError,
    SavepointTakenOverError,
    SavepointTargetError,
    UnclaimedStateError,
)
from keyedstate.checkpoint.segment import SegmentFile, SegmentHandle, SegmentWriter
from keyedstate.checkpoint.storage import CheckpointStorage, InputFile, OutputFile
from keyedstate.checkpoint.stored import (
    NoStoredStateError,
    StoredState,
    UnknownEpochError,
    UnknownOperatorError,
    UnknownStateError,
)
from keyedstate.checkpoint.transfer import CopiedFile, FileCopy, TransferCancelledError, transfer
from keyedstate.checkpoint.writer import write_attempt

__all__ = [
    "Acknowledgement",
    "AttemptFile",
    "AttemptManifest",
    "BaseReport",
    "BaseRules",
    "ChainHandle",
    "CheckpointCoordinator",
    "CheckpointError",
    "CheckpointGoneError",
    "CheckpointListener",
    "CheckpointMetadata",
    "CheckpointStorage",
    "CopiedFile",
    "CorruptManifestError",
    "CorruptSegmentError",
    "DuplicateSchemeError",
    "FailureManager",
    "FailureReason",
    "FileCopy",
    "FormatVersionError",
    "Hold",
    "HostAddress",
    "IncompleteEpochError",
    "InputFile",
    "MaxParallelismChangedError",
    "MissedEpochsError",
    "MissingCheckpointError",
    "MissingFileError",
    "MissingStateFolderError",
    "NativeBase",
    "NewOperatorError",
    "NoStoredStateError",
    "NotASavepointError",
    "OperatorFolder",
    "OperatorStateFile",
    "OutputFile",
    "OvertakenRunError",
    "Owner",
    "RestoreChangedError",
    "Savepoint",
    "SavepointRestore",
    "SavepointTakenOverError",
    "SavepointTargetError",
    "SavepointWriter",
    "SegmentFile",
    "SegmentHandle",
    "SegmentWriter",
    "SnapshotOrderError",
    "SparkPosition",
    "StateFolderOwnedError",
    "StateOrigin",
    "StorageError",
    "StoredNativeFile",
    "StoredNativeHandle",
    "StoredState",
    "SupersededRunError",
    "TaskIdentity",
    "TransferCancelledError",
    "UnclaimedStateError",
    "UnknownEpochError",
    "UnknownOperatorError",
    "UnknownSchemeError",
    "UnknownStateError",
    "UnreadableStateError",
    "UnsafeNameError",
    "UnsafePathError",
    "UnwritableEntryError",
    "Writing",
    "claim",
    "delete_native",
    "delete_savepoint",
    "describe_savepoint",
    "failures_so_far",
    "find_restore_point",
    "handles_for",
    "hold",
    "latest_inputs",
    "metrics_of_checkpoint",
    "read_changes",
    "read_operator_state",
    "transfer",
    "write_attempt",
    "write_delta",
    "write_native",
    "write_operator_state",
]
