"""What tests of the local runner share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def config(tmp_path: Path) -> dict[str, object]:
    """Return options of a run that keeps its state, with a checkpoint after each batch."""
    return {"checkpoint.dir": str(tmp_path / "checkpoints"), "checkpoint.interval": 0}
