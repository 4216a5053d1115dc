"""Writing snapshots again, full and in the canonical form, without a backend; new savepoints of them.

A full snapshot and its deltas become one file; single files are copied as they are.  Key groups are streamed
one by one: memory has what the deltas of a state changed, and a batch of entries.  Values are never decoded,
so no class of the program is needed.
"""

from __future__ import annotations

import os
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.protocol.operator_folder import data_paths
from keyedstate.checkpoint.protocol.recovery import FilesHandle, opened_handles
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.checkpoint.savepoint.savepoint import Progress, SavepointFolder, SavepointWriter
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage, Location
from keyedstate.checkpoint.storage.transfer import FileCopy, transfer
from keyedstate.errors import CorruptFileError


class CopyProgress:
    """Adds up the bytes that several threads have copied, for one callback."""

    def __init__(self, total: int, report: Progress | None) -> None:
        self._total = total
        self._report = report
        self._done = 0
        self._lock = threading.Lock()

    def add(self, done: int) -> None:
        """Count bytes that are done."""
        with self._lock:
            self._done += done
            if self._report is not None:
                self._report(self._done, self._total)


def bytes_of(metadata: CheckpointMetadata) -> int:
    """Return the size of all data files of a checkpoint."""
    return sum(map(_bytes_of_part, metadata.parts))


def _bytes_of_part(part: AttemptManifest) -> int:
    return sum(file.bytes for file in part.all_files)


def write_canonical(
    metadata: CheckpointMetadata,
    source: CheckpointStorage,
    target: CheckpointStorage,
    *,
    compression: str | None = None,
    progress: CopyProgress | None = None,
) -> CheckpointMetadata:
    """Write a checkpoint's data into another folder, each part as a full snapshot, several parts at once.

    Both storages are folders of the operator.  A `compression` rewrites every file; by default files without
    deltas keep theirs.  Returns the same checkpoint in the target's files, whose names are new and unique.

    Raises `UnreadableStateError` where a chain has types that are not known here, and a `CheckpointError`
    where a file, which is named, cannot be read or written.  The target may have files then.
    """

    def write(part: AttemptManifest) -> AttemptManifest:
        written = _write_part(metadata, part, source, target, compression)
        if progress is not None:
            progress.add(_bytes_of_part(part))
        return written

    # Decompressing and compressing leave Python's lock free.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1, len(metadata.parts)), "keyedstate-copy") as pool:
        futures = [pool.submit(write, part) for part in metadata.parts]
        try:
            parts = tuple(future.result() for future in futures)
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    return replace(metadata, parts=parts)


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


def copy_segment(
    source: CheckpointStorage, segment: SegmentFile, target: CheckpointStorage, path: str
) -> SegmentFile:
    """Copy a segment file as it is, and verify the copy; raises `CheckpointError`, which names the file."""
    copied = replace(segment, path=path)
    # Without the size: a truncated file is reported as a damaged segment.
    transfer(source, target, [FileCopy(segment.path, path)], threads=1)
    try:
        _verify(target, copied)
    except CorruptFileError:
        # Mostly the original is damaged; then the error names it.
        _verify(source, segment)
        raise
    return copied


def _verify(storage: CheckpointStorage, segment: SegmentFile) -> None:
    with closing(SegmentHandle.open(storage, segment)) as handle:
        handle.verify()


def _write_part(
    metadata: CheckpointMetadata,
    part: AttemptManifest,
    source: CheckpointStorage,
    target: CheckpointStorage,
    compression: str | None,
) -> AttemptManifest:
    nonce = uuid.uuid4().hex
    if part.deltas or part.native is not None or compression is not None:
        with opened_handles(metadata, source, part.key_groups) as handles:
            segments = tuple(_rewritten(handle, target, compression or "zstd") for handle in handles)
    else:
        segments = tuple(
            copy_segment(source, segment, target, data_paths(f"{nonce}-{number}" if number else nonce)[0])
            for number, segment in enumerate(part.segments)
        )
    operator_state = part.operator_state
    if operator_state is not None:
        copied = copy_segment(source, operator_state.segment, target, data_paths(nonce)[1])
        operator_state = replace(operator_state, segment=copied)
    states = {state for segment in segments for state in segment.entries}
    written = replace(
        part,
        identity=replace(part.identity, nonce=nonce),
        segments=segments,
        deltas=(),
        operator_state=operator_state,
        entries={state: sum(one.entries.get(state, 0) for one in segments) for state in sorted(states)},
        full_snapshots=(),
        unfinished=None,
        native=None,
    )
    return replace(written, bytes=sum(file.bytes for file in written.files))


def _rewritten(handle: FilesHandle, target: CheckpointStorage, compression: str) -> SegmentFile:
    path = data_paths(uuid.uuid4().hex)[0]
    with SegmentWriter(target, path, handle.key_groups, compression) as writer:
        for meta in handle.states:
            writer.begin_state(meta)
            for key_group in handle.key_groups:
                writer.write_columns(key_group, handle.columns(meta.name, key_group))
        return writer.finish()
