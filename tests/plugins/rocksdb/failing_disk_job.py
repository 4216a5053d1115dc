"""Epochs of an operator on a disk that fails; run with ``failing_disk.c`` preloaded.

python failing_disk_job.py PARAMETERS, which are JSON; prints what has happened, as JSON too.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from pathlib import Path
from typing import Any

from incremental import Job

from keyedstate import types
from keyedstate.checkpoint.protocol.full_snapshots import SnapshotKind
from keyedstate.errors import KeyedStateError
from keyedstate.state import ListState, ValueState

MODES = {"random": 1, "full": 2, "read-only": 3}
COUNTS = ValueState("counts", types.INT64)
SEEN = ListState("seen", types.BYTES)
EPOCHS, KEYS = 6, range(40)
#: As often as an epoch is tried before the disk is repaired.
TRIES = 8

disk: Any = ctypes.CDLL(None)


def change(epoch: int) -> Any:
    def run(instance: Any) -> None:
        for key in KEYS:
            with contextlib.suppress(ValueError):  # of the other instance
                instance.set_current_key(key)
                if key % 7 == epoch:
                    instance.get_state(COUNTS).clear()
                    instance.get_state(SEEN).clear()
                    continue
                counts = instance.get_state(COUNTS)
                counts.update((counts.value() or 0) + 10**epoch)
                instance.get_state(SEEN).add(bytes([epoch, key]) * 500)

    return run


def expected() -> dict[int, Any]:
    found: dict[int, Any] = {}
    for key in KEYS:
        count, seen = 0, []
        for epoch in range(EPOCHS):
            if key % 7 == epoch:
                count, seen = 0, []
            else:
                count, seen = count + 10**epoch, [*seen, bytes([epoch, key]) * 500]
        if seen:
            found[key] = count, seen
    return found


def state_of(job: Job) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for instance in job.instances:
        for key in list(instance.get_keys("counts")):
            instance.set_current_key(key)
            found[key] = instance.get_state(COUNTS).value(), list(instance.get_state(SEEN).get())
    return found


def main(folder: str, mode: str, rate: int, seed: int, **layout: Any) -> dict[str, Any]:
    job = Job(Path(folder), **layout)
    job.restart(2)
    errors, others = [], []
    for epoch in range(EPOCHS):
        writing = (SnapshotKind.FULL, SnapshotKind.DELTA, SnapshotKind.DELTA)[epoch % 3]
        # The first epoch succeeds, so that each of the others has something to lose.
        if epoch:
            disk.ks_fault(folder.encode(), MODES[mode], rate, 1000 * seed + epoch)
        for attempt in range(TRIES + 1):
            if attempt == TRIES:
                disk.ks_fault(folder.encode(), 0, 1, 1)
            try:
                if not job.instances:
                    job.restart(2)
                job.run(change(epoch), writing=writing)
                break
            except KeyedStateError as error:
                errors.append(str(error))
                if job.point is not None and job.point.epoch == epoch:
                    # It is published; clean-up alone has failed, for which no driver fails an epoch.
                    job.epoch = epoch + 1
                    break
            except Exception as error:
                others.append(f"{type(error).__name__}: {error}")
            try:
                job.close()
            except Exception as error:
                others.append(f"closing: {type(error).__name__}: {error}")
            job._writers, job.instances = [], []
        disk.ks_fault(folder.encode(), 0, 1, 1)
    job.restart(2)
    right = state_of(job) == expected()
    job.close()
    failed = disk.ks_failed()
    return {"epochs": job.epoch, "right": right, "failed": failed, "errors": errors, "others": others}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(**json.loads(sys.argv[1]))))
