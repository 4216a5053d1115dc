"""A folder of Parquet files: the rows of an epoch appear with its checkpoint, and no row appears twice.

The rows between two checkpoints are written to one file under a name that readers ignore, before the
checkpoint is published. Afterwards the file gets its final name. A run that begins completes the renaming of
the checkpoint that it begins from, and deletes the other files of runs that it superseded.  Files of later
runs and of other operators are not touched.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from keyedstate.errors import TargetExistsError
from keyedstate.local.run.elements import Committed, Element, Prepare, Restored

#: Readers of Parquet folders ignore names with a dot before them.
_PENDING = re.compile(r"\.epoch-([0-9]+)\.([A-Za-z0-9_-]+)\.parquet\.pending")
_WRITING = re.compile(r"\.([A-Za-z0-9_-]+)\.[0-9a-f]{32}\.parquet\.writing")
_FINAL = re.compile(r"epoch-[0-9]+\.[0-9a-f]{32}\.parquet|rows\.[0-9a-f]{32}\.parquet")


def write_parquet(elements: Iterable[Element], folder: Path, schema: pa.Schema, *, keeps_state: bool) -> None:
    """Write the rows of a run; raises `TargetExistsError` or `OSError`.

    Without kept state nothing is committed before the run is over, and the folder must have no rows of
    another run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in os.listdir(folder) if _FINAL.fullmatch(name)]
    if not keeps_state and names:
        raise TargetExistsError(str(folder), names)
    with _Pending(folder, schema) as pending:
        for element in elements:
            if isinstance(element, pa.RecordBatch):
                pending.write(element)
            elif isinstance(element, Restored):
                pending.discard()
                if keeps_state:
                    pending.run_id = element.own_run_id
                    _complete(folder, element)
            elif isinstance(element, Prepare):
                pending.prepare(element)
            elif isinstance(element, Committed):
                pending.commit(f"epoch-{element.epoch}")
        if not keeps_state:
            pending.prepare(Prepare(0, "only"))
            pending.commit("rows")


class _Pending:
    """The file of the rows since the last checkpoint."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema
        self.run_id = "only"
        self._path: Path | None = None
        self._writer: pq.ParquetWriter | None = None
        self._prepared: Path | None = None

    def __enter__(self) -> _Pending:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Delete the rows that are not prepared; `_complete` decides about those that are."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None
        self._prepared = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        if self._writer is None:
            self._path = self._folder / f".{self.run_id}.{uuid.uuid4().hex}.parquet.writing"
            self._writer = pq.ParquetWriter(self._path, self._schema)
        self._writer.write_batch(batch)

    def prepare(self, epoch: Prepare) -> None:
        """Make the rows durable under the name of the epoch."""
        if self._writer is None or self._path is None:
            return
        self._writer.close()
        self._writer = None
        self._prepared = self._folder / f".epoch-{epoch.epoch}.{epoch.run_id}.parquet.pending"
        _sync(self._path)
        os.replace(self._path, self._prepared)
        self._path = None
        _sync(self._folder)

    def commit(self, name: str) -> None:
        """Let readers see the prepared rows."""
        if self._prepared is not None:
            _publish(self._prepared, name)
            self._prepared = None


def _complete(folder: Path, restored: Restored) -> None:
    """Publish the rows of the checkpoint that a run begins from; delete what superseded runs have left."""
    for name in os.listdir(folder):
        pending, writing = _PENDING.fullmatch(name), _WRITING.fullmatch(name)
        if pending is not None and (int(pending[1]), pending[2]) == (restored.epoch, restored.run_id):
            _publish(folder / name, f"epoch-{restored.epoch}")
        elif (pending is not None and pending[2] in restored.superseded) or (
            writing is not None and writing[1] in restored.superseded
        ):
            (folder / name).unlink()


def _publish(pending: Path, name: str) -> None:
    os.replace(pending, pending.parent / f"{name}.{uuid.uuid4().hex}.parquet")
    _sync(pending.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
