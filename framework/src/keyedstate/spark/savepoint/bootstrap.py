"""State from a bounded DataFrame: a process function runs over it, and its state goes into a savepoint.

Each task writes files under unique names and returns their manifest as its result.  Of two attempts at one
partition the job's result has one, and the files of the other are deleted.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.taskcontext import TaskContext

from keyedstate.checkpoint.format.json_converter import from_json, to_json
from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.protocol.full_snapshots import FullSnapshotRules, SnapshotKind
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder, is_data_path
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.epoch.configuration import configuration_in_task, storage_in_task
from keyedstate.epoch.epoch_writer import EpochWriter
from keyedstate.epoch.partition_plan import PartitionPlan
from keyedstate.options import CHECKPOINT_COMPRESSION
from keyedstate.runtime.runners import KeyedOperator
from keyedstate.spark.task.task import OperatorPlan, SaveBounded
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

#: The query and run in manifests that no query has written.
BOOTSTRAP = "bootstrap"

ArrowTask: TypeAlias = "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]"


def run_bootstrap(
    plan: OperatorPlan, rows: DataFrame, root: CheckpointStorage, uid: str
) -> CheckpointMetadata:
    """Run a function over bounded rows, routed to its tasks, and write its state into a savepoint.

    The root is that of the savepoint, where the operator gets the uid.
    """
    save = _saving(plan.partitions, root.uri, uid)

    def bootstrap(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        manifest = plan.bootstrap(batches, save)
        if manifest is not None:
            yield as_result(manifest)

    def bootstrap_empty(partition: int) -> AttemptManifest:
        manifest = plan.bootstrap(iter(()), save, partition)
        assert manifest is not None, "the partition is given"
        return manifest

    manifests = written_parts(rows, bootstrap, plan.partitions.parallelism, bootstrap_empty)
    return metadata_of(manifests, root.child(uid))


def _saving(plan: PartitionPlan, root_uri: str, uid: str) -> SaveBounded:
    def save(
        partition: int, backend: KeyedStateBackend, states: OperatorStateBackend, operator: KeyedOperator
    ) -> AttemptManifest:
        identity = bootstrap_identity(uid, partition, plan.parallelism, plan.max_parallelism)
        compression = configuration_in_task(plan.settings)[CHECKPOINT_COMPRESSION]
        folder = OperatorFolder(storage_in_task(root_uri, plan.settings), uid)
        writer = EpochWriter(
            backend,
            states,
            folder,
            FullSnapshotRules.of(configuration_in_task(plan.settings)),
            compression,
            native=False,
        )
        writer.begin(identity, None, SnapshotKind.FULL)
        return plan.manifest(identity, backend, operator, writer.end())

    return save


def bootstrap_identity(uid: str, partition: int, parallelism: int, max_parallelism: int) -> TaskIdentity:
    """Return the identity of an attempt that belongs to no query."""
    context = TaskContext.get()
    return TaskIdentity(
        uid=uid,
        query_id=BOOTSTRAP,
        run_id=BOOTSTRAP,
        epoch=0,
        partition=partition,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        attempt=0 if context is None else context.taskAttemptId(),
        nonce=uuid.uuid4().hex,
    )


def as_result(manifest: AttemptManifest) -> pa.RecordBatch:
    """Return a manifest as the one row of a task's result."""
    return pa.record_batch({"manifest": pa.array([json.dumps(to_json(manifest))], pa.string())})


def written_parts(
    rows: DataFrame, task: ArrowTask, parallelism: int, write_empty: Callable[[int], AttemptManifest]
) -> list[AttemptManifest]:
    """Run a task over each partition of the rows, and write those that got no task; return the manifests."""
    results = rows.mapInArrow(task, "manifest string").collect()
    found = [from_json(AttemptManifest, json.loads(row[0])) for row in results]
    parts = {manifest.identity.partition: manifest for manifest in found}
    return [parts.get(number) or write_empty(number) for number in range(parallelism)]


def metadata_of(manifests: Iterable[AttemptManifest], storage: CheckpointStorage) -> CheckpointMetadata:
    """Return the metadata of an operator's parts, and delete the files of other attempts."""
    metadata = CheckpointMetadata.of(list(manifests))
    used = {path for part in metadata.parts for path in part.data_files}
    written = [path for name in storage.list("data") if is_data_path(path := f"data/{name}")]
    storage.for_each(storage.delete_file, [path for path in written if path not in used])
    return metadata
