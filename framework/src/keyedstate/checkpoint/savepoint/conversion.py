"""New savepoints from existing state: from a savepoint, or from one operator's checkpoint."""

from __future__ import annotations

from keyedstate.checkpoint.savepoint.canonical import CopyProgress, bytes_of, write_canonical
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.checkpoint.savepoint.savepoint import Progress, SavepointFolder, SavepointWriter
from keyedstate.checkpoint.storage.filesystem import Location


def convert_savepoint(
    source: Location,
    target: Location,
    *,
    compression: str | None = None,
    progress: Progress | None = None,
) -> SavepointFolder:
    """Write a savepoint again, in the newest format; all that describes its query stays, its id does not.

    By default each file keeps its compression.  `progress` receives the bytes done and their total.  Raises
    `NotASavepointError`, `TargetExistsError`, and a `CheckpointError` where a file, which is named, is
    damaged or cannot be read or written; what was written is deleted.
    """
    origin = SavepointFolder.open(source)
    with SavepointWriter(target) as writer:
        for path in origin.spark_files():
            writer.add_spark_file(path, origin.read_spark_file(path))
        copied = CopyProgress(origin.data_bytes(), progress)
        for uid in origin.operators:
            written = write_canonical(
                origin.metadata(uid),
                origin.storage(uid),
                writer.storage(uid),
                compression=compression,
                progress=copied,
            )
            writer.add_operator(written)
        return writer.finish(spark=origin.spark, drained=origin.drained, watermark=origin.watermark)


def savepoint_of_checkpoint(
    snapshot: OperatorSnapshot,
    target: Location,
    *,
    compression: str | None = None,
    progress: Progress | None = None,
) -> SavepointFolder:
    """Write one operator's checkpoint as a savepoint, from which a new query may start.

    Parameters and errors are those of `convert_savepoint`.  The caller has a lease on the checkpoint of a
    running query.
    """
    with SavepointWriter(target) as writer:
        written = write_canonical(
            snapshot.metadata,
            snapshot.storage,
            writer.storage(snapshot.metadata.uid),
            compression=compression,
            progress=CopyProgress(bytes_of(snapshot.metadata), progress),
        )
        writer.add_operator(written)
        return writer.finish()
