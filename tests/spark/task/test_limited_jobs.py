"""Whole jobs of Spark on a machine without shared memory or without a temporary folder of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).resolve().parents[1] / "jobs"


def unshared() -> bool:
    """Return whether this process may give another one mounts of its own."""
    command = ["unshare", "--mount", "true"]
    return shutil.which("unshare") is not None and not subprocess.run(command, capture_output=True).returncode


needs_mounts = pytest.mark.skipif(not unshared(), reason="only root can mount, and not in every container")


#: Makes what is outside of the folder $1 read-only where programs look for a place of their own.
#: Spark's launcher needs a temporary folder, too, and asks Java where it is.
READ_ONLY = """
export JAVA_TOOL_OPTIONS="-Djava.io.tmpdir=$1"
mount --bind "$1" "$1"
for place in /tmp /var/tmp; do
    mount --rbind $place $place
    mount -o remount,bind,ro $place
done
cd "$1"
unset TMPDIR TEMP TMP
export HOME=/nonexistent
"""
SMALL_SHARED_MEMORY = "mount -t tmpfs -o size=16k tmpfs /dev/shm"
#: A folder with spaces for temporary files, in which another user has taken the place of the sockets.
#: The job's own folder is there too: it may be in the shared memory that is hidden.
SPACES = """
mount --bind "$1" /mnt
set -- /mnt "${@:2}"
export TMPDIR="/mnt/temporary files of all"
mkdir -m 1777 "$TMPDIR"
mkdir -m 0700 "$TMPDIR/keyedstate-$(id -u)"
chown nobody "$TMPDIR/keyedstate-$(id -u)"
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("limits", "backend"),
    [
        pytest.param(
            READ_ONLY,
            "rocksdb",
            id="HOME and the temporary folders are read-only",
            marks=pytest.mark.long,
        ),
        pytest.param(SPACES + SMALL_SHARED_MEMORY, "rocksdb", id="spaces, a taken folder, no shared memory"),
    ],
)
@needs_mounts
def test_a_job_keeps_its_state_in_hosts_under_limits(tmp_path: Path, limits: str, backend: str) -> None:
    log = tmp_path / "log"
    script = f'set -e\n{limits}\nexec "$2" "$3" "$1" "$4"'
    job = [sys.executable, str(JOBS / "limited_job.py"), backend]
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", script, "bash", str(tmp_path)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    with log.open("wb") as output:
        ended = subprocess.run(
            [*command, *job], stdout=output, stderr=output, env=environment, check=False, timeout=900
        )
    said = log.read_text()
    assert ended.returncode == 0, said[-6000:]
    assert json.loads((tmp_path / "result.json").read_text()) == {
        "counts": [[f"key {number}", 2] for number in range(8)],
        "origins": ["host"],
    }
    assert f"keyedstate-{os.getuid()}" in said
    assert "the sockets of hosts are in" in said
