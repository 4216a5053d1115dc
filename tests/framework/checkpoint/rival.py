"""Be one of two drivers over one state folder: run epochs of a query until another one is in the way.

python rival.py FOLDER QUERY RUN EPOCHS [FREEZE]

Prints one line: ``published N`` with the last epoch that counted, and the name of the error that stopped it.
With FREEZE the process stops itself, as ``kill -STOP`` does, right before it publishes its last epoch.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from jobs import Job

from keyedstate.checkpoint.protocol import coordinator
from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import CheckpointError


def freeze_before(function: Callable[..., Any]) -> Callable[..., Any]:
    def frozen(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)
        return function(*arguments)

    return frozen


def main(folder: str, query: str, run: str, epochs: int, freeze: bool) -> None:
    job = Job(CheckpointStorage.open(folder), query=query, first_attempt=os.getpid() * 1000)
    driver = CheckpointCoordinator(job.folder)
    published, stopped = -1, "nothing"
    try:
        for epoch in range(epochs):
            words = job.epoch(run, epoch)
            if freeze and epoch == epochs - 1:
                coordinator.exclusive = freeze_before(coordinator.exclusive)  # type: ignore[attr-defined]
            for word in words:
                driver.acknowledge(word)
            published = epoch
    except CheckpointError as error:
        stopped = type(error).__name__
    driver.drain()
    sys.stdout.write(f"published {published}, stopped by {stopped}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), len(sys.argv) > 5)
