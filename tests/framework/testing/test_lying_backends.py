"""The contract kit against backends that claim or do what they do not: every lie is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

#: nested-map under another name, up to what a lie changes.
HONEST = """
from dataclasses import replace

from keyedstate.backend import Capability, EntryBatch, ExpiryCleanup, Level
from keyedstate.tables import FullRestoreOperation
from keyedstate.errors import CheckpointError
from keyedstate.hooks import hookimpl
from keyedstate_nested_map import plugin as honest
from keyedstate_nested_map.table import NestedMapTable

CLAIMS = {}


@hookimpl
def keyedstate_describe_backend():
    description = honest.keyedstate_describe_backend()
    return replace(description, name="liar", capabilities={**description.capabilities, **CLAIMS})


Table = NestedMapTable


@hookimpl
def keyedstate_create_state_table(meta, context):
    return Table(meta, context.key_groups)


keyedstate_create_snapshot_strategy = honest.keyedstate_create_snapshot_strategy


@hookimpl
def keyedstate_create_restore_operation(handles, context):
    return FullRestoreOperation(handles, context, keyedstate_create_state_table)
"""
DROPPING = """
class Table(NestedMapTable, ExpiryCleanup):
    def drop_expired(self):
        visitor, seen = self.visitor(100), []
        while entries := visitor.next_entries():
            seen += entries
        for entry in seen:
            address = entry.key_group, entry.key, entry.namespace
            expiry, value = self.meta.expiry, entry.value
            {body}
"""
#: What a backend is made of, and a part of the names of the tests that must find it out.
LIES = {
    "has a clean-up that does nothing": (
        HONEST + DROPPING.format(body="pass"),
        "drops_what_is_expired",
    ),
    "cleans up what lives": (
        HONEST + DROPPING.format(body="self.remove(*address)"),
        "drops_what_is_expired",
    ),
    "wraps around where a time is not known": (
        HONEST
        + DROPPING.format(
            body="expires = value[0] + expiry.ttl_ms\n"
            "            if (expires + 2**63) % 2**64 - 2**63 <= expiry.now():\n"
            "                self.remove(*address)"
        ),
        "drops_nothing_that_has_no_time",
    ),
    "keeps a state in memory that it claims may be larger": (
        HONEST + "CLAIMS = {Capability.LARGER_THAN_MEMORY: Level.FULL}\n",
        "five_times_the_memory",
    ),
    "hides what it cannot read": (
        HONEST
        + """
class Forgiving(FullRestoreOperation):
    def restore(self):
        try:
            return super().restore()
        except CheckpointError:
            return {}


@hookimpl
def keyedstate_create_restore_operation(handles, context):
    return Forgiving(handles, context, keyedstate_create_state_table)
""",
        "damaged_file_is_found",
    ),
    "loses a key group when it is restored": (
        HONEST
        + """
class Table(NestedMapTable):
    def restore_entries(self, key_group, batch):
        if key_group != 5:
            super().restore_entries(key_group, batch)
""",
        "another_process_reads",
    ),
}
TEST_FILE = """
from keyedstate.testing import BackendContract


class TestLiar(BackendContract):
    backend = "liar"
    options = {"plugins.modules": "liar"}
"""


def run_kit(folder: Path, source: str, chosen: str) -> subprocess.CompletedProcess[str]:
    (folder / "liar.py").write_text(source)
    (folder / "test_liar.py").write_text(TEST_FILE)
    path = [str(folder), *filter(None, sys.path)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_liar.py", "-k", chosen],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.slow
def test_a_lie_is_found(tmp_path: Path, lie: str) -> None:
    source, tests = LIES[lie]
    ran = run_kit(tmp_path, source, tests)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert " failed" in ran.stdout


def test_the_same_backend_without_a_lie_passes_those_tests(tmp_path: Path) -> None:
    """So it is the lies that fail."""
    honest = HONEST + DROPPING.format(
        body="living = expiry.live(value)\n"
        "            if living is None:\n"
        "                self.remove(*address)\n"
        "            else:\n"
        "                self.put(*address, living)"
    )
    ran = run_kit(tmp_path, honest, " or ".join(dict.fromkeys(tests for _, tests in LIES.values())))
    assert ran.returncode == 0, ran.stdout + ran.stderr
