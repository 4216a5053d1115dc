"""Checkpoints: storage, segment files, manifests, recovery in the task, coordination on the driver.

A task calls `claim` and `find_restore_point`, restores through `handles_for`, and at its end writes a
segment file and a manifest, whose path it acknowledges.  On the driver a `CheckpointCoordinator` publishes a
checkpoint from the acknowledgements of all tasks of an epoch.  Nothing here imports PySpark.
"""

from keyedstate.checkpoint.format.delta import ChainHandle, read_changes, write_delta
from keyedstate.checkpoint.format.json_converter import from_json, to_json
from keyedstate.checkpoint.format.manifest import (
    AttemptManifest,
    CheckpointMetadata,
    HostAddress,
    Owner,
    StateOrigin,
    TaskIdentity,
    latest_inputs,
)
from keyedstate.checkpoint.format.native_files import StoredNativeHandle, delete_native, write_native
from keyedstate.checkpoint.format.native_snapshot import NativeFullSnapshot, StoredNativeFile
from keyedstate.checkpoint.format.operator_state import (
    OperatorStateFile,
    read_operator_state,
    write_operator_state,
)
from keyedstate.checkpoint.format.segment import SegmentFile, SegmentHandle, SegmentWriter
from keyedstate.checkpoint.format.snapshot_report import FailureReason, FullSnapshotReport
from keyedstate.checkpoint.protocol.coordinator import (
    Acknowledgement,
    CheckpointCoordinator,
    CheckpointListener,
)
from keyedstate.checkpoint.protocol.full_snapshots import FullSnapshotRules, SnapshotKind, failed_epochs
from keyedstate.checkpoint.protocol.leases import Lease, lease
from keyedstate.checkpoint.protocol.metrics import metrics_of_checkpoint
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.owner import write_attempt
from keyedstate.checkpoint.protocol.recovery import claim, find_restore_point, handles_for
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.checkpoint.savepoint.restore import SavepointRestore
from keyedstate.checkpoint.savepoint.savepoint import (
    SavepointFolder,
    SavepointWriter,
    SparkPosition,
)
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage

__all__ = [
    "Acknowledgement",
    "AttemptManifest",
    "ChainHandle",
    "CheckpointCoordinator",
    "CheckpointListener",
    "CheckpointMetadata",
    "CheckpointStorage",
    "FailureReason",
    "FullSnapshotReport",
    "FullSnapshotRules",
    "HostAddress",
    "Lease",
    "NativeFullSnapshot",
    "OperatorFolder",
    "OperatorSnapshot",
    "OperatorStateFile",
    "Owner",
    "SavepointFolder",
    "SavepointRestore",
    "SavepointWriter",
    "SegmentFile",
    "SegmentHandle",
    "SegmentWriter",
    "SnapshotKind",
    "SparkPosition",
    "StateOrigin",
    "StoredNativeFile",
    "StoredNativeHandle",
    "TaskIdentity",
    "claim",
    "delete_native",
    "failed_epochs",
    "find_restore_point",
    "from_json",
    "handles_for",
    "latest_inputs",
    "lease",
    "metrics_of_checkpoint",
    "read_changes",
    "read_operator_state",
    "to_json",
    "write_attempt",
    "write_delta",
    "write_native",
    "write_operator_state",
]
