"""Takes a savepoint of a run's query while the query runs, to be killed.

``python -m faults.savepoint RUN JOB``, with the two of `faults.job`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from faults import injection
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.options import Configuration
from keyedstate.savepoints import Savepoint

#: Its folder, beside those of the operators.
PLACE = "savepoint"
_PREFIX = "spark.keyedstate."


def main(run: Path, job: Path) -> None:
    """Take it, or finish what one that was killed has begun."""
    injection.install("savepoint")
    settings = json.loads(job.read_text())["settings"]
    ours = {name.removeprefix(_PREFIX): value for name, value in settings.items() if name.startswith(_PREFIX)}
    storage = CheckpointStorage.open(ours["checkpoint.dir"], Configuration(ours))
    Savepoint.create(storage.child(PLACE), storage, run / "spark")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
