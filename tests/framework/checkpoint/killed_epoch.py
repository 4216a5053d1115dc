"""Run one epoch, driver and tasks in one process, and kill the process at one step of it.

python killed_epoch.py FOLDER RUN EPOCH STEP
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from jobs import EPOCHS, Job

from keyedstate.backend import EntryBatch
from keyedstate.checkpoint.format.segment import SegmentWriter
from keyedstate.checkpoint.protocol import retention
from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.types import VOID_NAMESPACE


def die(*_arguments: Any) -> Any:
    """End as ``kill -9`` does: no clean-up, no buffer flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_instead_of_renaming(name: str) -> None:
    """Die between the temporary file and its new name, where that contains `name`."""
    rename = os.replace

    def replace(source: str, target: str) -> None:
        if name in target:
            die()
        rename(source, target)

    os.replace = replace  # type: ignore[assignment]


def main(folder: str, run: str, epoch: int, step: str) -> None:
    job = Job(CheckpointStorage.open(folder), first_attempt=1000)
    identities = [job.identity(run, epoch, partition) for partition in range(job.parallelism)]
    if step == "claiming":
        die_instead_of_renaming("_owner")
    elif step == "publishing":
        die_instead_of_renaming(f"chk-{epoch}/_metadata")
    elif step == "published":
        retention.prune = die  # type: ignore[assignment]
    elif step == "deleting":
        CheckpointStorage.delete_file = die  # type: ignore[method-assign]
    words = []
    for identity in identities:
        state = job.begin(identity)
        if step == "started" and identity.partition == 1:
            die()
        if step == "writing data" and identity.partition == 1:
            writer = SegmentWriter(
                job.folder.storage, job.folder.data_path(identity), job.key_groups(identity)
            )
            writer.begin_state(EPOCHS)
            huge = list(range(2_000_000))  # more than any buffer holds, so that half a file is on the disk
            writer.write_entries(4, [EntryBatch([VOID_NAMESPACE], ["key-4"], [huge])])
            die()
        segment = job.write_data(identity, state)
        if step == "writing a manifest" and identity.partition == 1:
            die_instead_of_renaming(".json")
        if step == "data written" and identity.partition == 1:
            die()
        words.append(job.write_manifest(identity, segment))
    if step == "manifests written":
        die()
    coordinator = CheckpointCoordinator(job.folder)
    for word in words:
        coordinator.acknowledge(word)
    coordinator.drain()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
