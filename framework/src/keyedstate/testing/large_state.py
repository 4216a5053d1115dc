"""A state of several times the memory of its process: what the contract kit runs.

``python -m keyedstate.testing.large_state`` runs it in a process of its own, with its parameters as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from keyedstate import types
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import ValueState
from keyedstate.state.registry.chosen_backend import ChosenBackend, KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing.instances import chosen_backend

#: What the process may occupy besides what its backend has loaded and opened before the second chunk.
MEMORY_BYTES = 96 << 20
TIMES = 5
VALUE_CHARACTERS = 5_000
ENTRIES = TIMES * MEMORY_BYTES // VALUE_CHARACTERS
STATE = ValueState("large", types.STRING)
GROUPS = KeyGroupRange(0, 31)
#: Rows between two calls of `KeyedStateBackend.balance_memory`.
CHUNK = 200
#: Leaves room for what is not managed.  An option of the test class counts before it.
_OPTIONS = {"memory.managed-size": 40 << 20}


@dataclass(frozen=True)
class LargeState:
    """A value state of `TIMES` times `MEMORY_BYTES`.

    Attributes
    ----------
    folder : str
        For the private folder of the instance.
    backend : str
    options : mapping
        Options by their full names.
    """

    folder: str
    backend: str
    options: Mapping[str, Any]

    def run(self) -> None:
        """Write all entries and read each one; raises AssertionError for a wrong value or too much memory."""
        # The system does not enforce it, but a backend may look at it; the rest is for what it notices late.
        limit = _resident() + MEMORY_BYTES // 2
        resource.setrlimit(resource.RLIMIT_RSS, (limit, resource.getrlimit(resource.RLIMIT_RSS)[1]))
        plugin, options = chosen_backend(self.backend, {**_OPTIONS, **self.options})
        keyed = KeyedStateBackend.open(
            ChosenBackend(plugin, options),
            KeySpace(types.INT64, GROUPS, len(GROUPS)),
            local_base=Path(self.folder),
        )
        accessor = keyed.get_state(STATE)
        for numbers in _in_chunks(keyed):
            accessor.update_many(numbers, list(map(_value, numbers)))
        assert keyed.num_entries() == ENTRIES
        for numbers in _in_chunks(keyed):
            for number, value in zip(numbers, accessor.get_many(numbers), strict=True):
                assert value == _value(number), f"entry {number} has another value"
        keyed.close()

    def in_another_process(self) -> subprocess.CompletedProcess[str]:
        """Call `run` in a new process."""
        # The same modules are found there, even if the path was changed at run time.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return subprocess.run(
            [sys.executable, "-m", __name__, json.dumps(asdict(self))],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )


def _value(number: int) -> str:
    return f"{number:0{VALUE_CHARACTERS}}"


def _in_chunks(keyed: KeyedStateBackend) -> Iterator[range]:
    """Yield the numbers of all entries, with a call between chunks as an operator makes it."""
    most: int | None = None
    for start in range(0, ENTRIES, CHUNK):
        yield range(start, min(start + CHUNK, ENTRIES))
        keyed.balance_memory()
        occupied = _resident("RssAnon")
        most = occupied + MEMORY_BYTES if most is None else most
        assert occupied <= most, (
            f"with {start + CHUNK} of {ENTRIES} entries the process has {occupied} bytes, more than {most}"
        )


def _resident(part: str = "VmRSS") -> int:
    """Return the resident set of this process, or of it ``RssAnon``, without files, which can be dropped."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(part)) << 10


if __name__ == "__main__":
    LargeState(**json.loads(sys.argv[1])).run()
