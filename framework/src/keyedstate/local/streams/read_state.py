"""Stored state as an Arrow table, without Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from keyedstate.checkpoint.reading.state_reader import reader_of
from keyedstate.checkpoint.savepoint.operator_snapshot import open_with_lease
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.options import Configuration

#: How long clean-up leaves the checkpoint to its reader.
_LEASE_SECONDS = 3600.0


def read_state(path: str | Path, state: str, *, uid: str | None = None, epoch: int | None = None) -> pa.Table:
    """Return one state of a checkpoint or savepoint, which a local run or a query on Spark has written.

    Parameters
    ----------
    path : str or Path
        A folder or URI: that of ``checkpoint.dir``, of one operator in it, of one ``chk-<epoch>``, or of a
        savepoint.
    state : str
        The name of a keyed state or an operator state.
    uid : str, optional
        The operator, needed where there are several.
    epoch : int, optional
        A retained checkpoint; the newest by default.

    Returns
    -------
    pyarrow.Table
        A row for each key and namespace: the columns of the key, then ``namespace``, ``value``,
        ``written_at``, ``expires_at``, ``key_group`` and ``state``, as of the format ``keyedstate`` on Spark.

    Raises
    ------
    CheckpointError
        Where there is no such state, or a file cannot be read.
    GenericStateRefusedError
        For pickled values.
    """
    storage = CheckpointStorage.open(os.fspath(path), Configuration(environ=os.environ))
    snapshot, _ = open_with_lease(storage, uid, epoch, _LEASE_SECONDS)
    reader = reader_of(snapshot, state)
    batches = (batch for piece in reader.slices() for batch in reader.read(piece))
    return pa.Table.from_batches(batches, reader.schema)
