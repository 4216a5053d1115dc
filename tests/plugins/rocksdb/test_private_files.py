"""Files of a database outside of checkpoints: no other user may read them, whatever the umask is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from rocksdb_incremental import Job

from keyedstate import types
from keyedstate.state import ValueState
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

TEXTS = ValueState("texts", types.BYTES)


def write(instance: KeyedStateBackend) -> None:
    groups = list(instance.key_groups)
    values = instance.get_state(TEXTS)
    for key_group in groups:
        instance.set_current_key(key_group, key_group)
        values.update(b"state" * 1_000)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_databases_copies_and_bases_are_private(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        job = Job(tmp_path / "job", copies=tmp_path / "job" / "copies")
        # The one instance opens one base in place, and copies rows of the other.
        for parallelism in (2, 1):
            job.restart(parallelism)
            job.run(write)
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "job").rglob("*")}
    databases = list((tmp_path / "job").glob("keyedstate-work-*/db"))
    assert databases and any(path.suffix == ".native" for path in modes)
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    job.close()
