"""Operator states of several tasks, moved through real files."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from keyedstate.checkpoint.format.operator_state import (
    OperatorStateFile,
    read_operator_state,
    write_operator_state,
)
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.running_snapshot import SnapshotTask


class Files:
    """A folder for files of operator state.

    Attributes
    ----------
    storage : CheckpointStorage
    """

    def __init__(self, folder: Path, compression: str = "zstd") -> None:
        self.storage = CheckpointStorage.open(str(folder))
        self._compression = compression
        self._numbers = itertools.count()

    def write(
        self, backend: OperatorStateBackend, task: SnapshotTask | None = None
    ) -> OperatorStateFile | None:
        """Write a snapshot, by default one that is taken now; None where there is no state."""
        number = next(self._numbers)
        task = task or backend.snapshot(number)
        if task is None:
            return None
        path = f"{number}.operator.seg"
        return write_operator_state(self.storage, path, backend.metas(), task.run, self._compression)

    def restore(
        self,
        parts: Sequence[OperatorStateFile | None],
        parallelism: int | None = None,
        *,
        restarted: bool = True,
    ) -> list[OperatorStateBackend]:
        """Return the tasks that begin with what old ones wrote, by default as many as there were."""
        parallelism = len(parts) if parallelism is None else parallelism
        return [
            OperatorStateBackend(
                read_operator_state(self.storage, parts, task, parallelism, restarted=restarted)
            )
            for task in range(parallelism)
        ]

    def again(self, backend: OperatorStateBackend) -> OperatorStateBackend:
        """Return one task after a restart."""
        (restored,) = self.restore([self.write(backend)])
        return restored


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def files_of() -> type[Files]:
    """Makes `Files` of another compression."""
    return Files
