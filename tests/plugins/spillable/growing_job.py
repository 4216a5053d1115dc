"""A job whose state grows far beyond its memory; run as a process, by test_limits.py.

    python growing_job.py FOLDER ENTRIES VALUE_BYTES BUDGET LIMIT ENTRIES_AN_EPOCH FILE_BYTES

No file may become larger than FILE_BYTES, as on a full disk; 0 for no limit.  The budget and the limit of
the process's data, in bytes, come on top of what it occupies before.  It prints a line of
JSON when it begins, and another one when every entry was read again and was right.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

from keyedstate import types
from keyedstate.keygroups import KeyGroupRange
from keyedstate.options import Configuration
from keyedstate.plugins import PluginRegistry
from keyedstate.state import ValueState
from keyedstate.state.registry.chosen_backend import ChosenBackend, KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

#: As many rows as an operator has between two calls of `balance_memory`.
CHUNK = 1_000
GROUPS = KeyGroupRange(0, 31)


def occupied(name: str) -> int:
    """Return the resident (VmRSS) or the data bytes (VmData) of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name)) * 1024


def opened(folder: str, memory: int) -> KeyedStateBackend:
    """Open spillable for whole numbers as keys, with so many bytes for the process."""
    options = {
        "backend": "spillable",
        "spillable.memory-budget": memory,
        "spillable.disk-memory": 8 << 20,
        "spillable.adaptive.sample-interval": "20 ms",
    }
    config = Configuration(options)
    registry = PluginRegistry(config)
    chosen = ChosenBackend(registry.choose(), config.plugin_options(registry.options, "spillable"))
    return KeyedStateBackend.open(
        chosen, KeySpace(types.INT64, GROUPS, len(GROUPS)), local_base=Path(folder), track_changes=True
    )


def value_of(number: int, size: int) -> str:
    return f"{number:0{size}}"


def tell(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def main() -> None:
    folder = sys.argv[1]
    entries, size, budget, limit, per_epoch, file_bytes = map(int, sys.argv[2:])
    state = ValueState("state", types.STRING)
    before = occupied("VmRSS")
    keyed = opened(folder, before + budget)
    accessor = keyed.get_state(state)
    resource.setrlimit(resource.RLIMIT_DATA, (occupied("VmData") + limit, resource.RLIM_INFINITY))
    if file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, resource.RLIM_INFINITY))
    tell({"most": before + budget})
    epoch = 0
    for number in range(entries):
        if number % per_epoch == 0:
            if epoch:
                keyed.end_epoch()
                keyed.changes_since(epoch - 1)["state"].release()
            epoch += 1
            keyed.begin_epoch(epoch)
            keyed.forget_changes(epoch - 1)
        keyed.set_current_key(number)
        accessor.update(value_of(number, size))
        if number % CHUNK == CHUNK - 1:
            keyed.balance_memory()
    keyed.end_epoch()
    assert keyed.num_entries() == entries
    for number in range(entries):
        keyed.set_current_key(number)
        assert accessor.value() == value_of(number, size), number
        if number % CHUNK == CHUNK - 1:
            keyed.balance_memory()
    tell({"metrics": dict(keyed.metrics())})
    keyed.close()


if __name__ == "__main__":
    main()
