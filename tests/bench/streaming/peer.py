"""An engine in a process of its own, which processes the batches that it is named."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BYTEWAX = "Bytewax stateful_map, in memory"
QUIX = "Quix Streams state, RocksDB"
_PROGRAMS = {BYTEWAX: "bytewax_state.py", QUIX: "quix_state.py"}


@dataclass
class Peer:
    """An engine in a process of its own."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process."""
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def run(self, numbers: Sequence[int], rows: int, keys: int) -> list[float]:
        """Return the seconds that each batch took."""
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        times = []
        for number in numbers:
            print(number, rows, keys, file=self.process.stdin, flush=True)
            times.append(float(self.process.stdout.readline()))
        return times

    def stop(self) -> None:
        """End the process."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait(60)


def peers_of(python: str) -> list[Peer]:
    """Return the engines that an interpreter with their packages runs."""
    folder = Path(__file__).parent / "peers"
    return [Peer(name, [python, str(folder / program)]) for name, program in _PROGRAMS.items()]
