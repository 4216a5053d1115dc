"""Hosts on a machine that lets a process have few open files, or no temporary folder."""

from __future__ import annotations

import os
import resource
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosted import HostedJob, wait_until

import keyedstate
from keyedstate.checkpoint.format.manifest import StateOrigin
from keyedstate.epoch.configuration import backend_in_task, frozen
from keyedstate.epoch.local_folders import sweep_once
from keyedstate.errors import HostedEpochError
from keyedstate.options import Configuration
from keyedstate.spark.hosts.socket_folder import socket_places
from keyedstate.spark.plan.preflight import Probe, examine


def test_a_host_raises_its_own_limit_of_open_files(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with HostedJob(tmp_path) as job:
            job.epoch(0, ["a"])
            assert resource.prlimit(job.host().pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_host_without_file_descriptors_keeps_its_state(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A task that connects is served when there is one again."""
    heard = ""

    def refused() -> bool:
        nonlocal heard
        heard += "".join(capfd.readouterr())
        return "no further task is served for now" in heard

    with HostedJob(tmp_path) as job:
        job.epoch(0, ["a"])
        host = job.host()
        before = resource.prlimit(host.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(host.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        came: list[object] = []
        task = threading.Thread(target=lambda: came.append(job.epoch(1, ["a"])))
        task.start()
        wait_until(refused)
        resource.prlimit(host.pid, resource.RLIMIT_NOFILE, before)
        task.join()
        assert came == [[("a", 2)]]
        assert job.host() == host
        assert job.part().state_origin is StateOrigin.HOST


@pytest.fixture
def databases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostedJob]:
    """A job with eight databases in one host, of which one is open."""
    with HostedJob(tmp_path, parallelism=8, backend="rocksdb") as job:
        connect = job.hosts.connect
        monkeypatch.setattr(job.hosts, "connect", lambda _: connect(0))
        job.attempt(0, ["a"])
        yield job


def limit_open_files(job: HostedJob, limit: int) -> None:
    """Let the host have so many open files and no more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.prlimit(job.host().pid, resource.RLIMIT_NOFILE, (limit, hard))


def test_eight_databases_work_with_256_open_files(databases: HostedJob) -> None:
    limit_open_files(databases, 256)
    for epoch in range(3):
        assert databases.epoch(epoch, ["a"]) == [("a", epoch + 1)]
    assert {databases.part(partition).state_origin for partition in range(8)} == {StateOrigin.HOST}


def test_too_few_open_files_are_one_error_with_the_way_out(databases: HostedJob) -> None:
    limit_open_files(databases, len(os.listdir(f"/proc/{databases.host().pid}/fd")) + 3)
    with pytest.raises(HostedEpochError, match=r"Too many open files\. Raise the limit .*ulimit -Hn"):
        databases.attempt(0, partition=1)
    limit_open_files(databases, 64)
    assert databases.attempt(0, ["a"])[0] == [("a", 1)]


def test_without_a_temporary_folder_sparks_own_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend_name: str
) -> None:
    """As in a container whose root is read-only: the preflight passes, and hosts start."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "missing")])
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        tempfile.gettempdir()
    (tmp_path / "driver").write_bytes(b"driver")
    settings = frozen(Configuration({"backend": backend_name}))
    provider = str(backend_in_task(settings).backend.provider)
    found = examine(Probe(settings, keyedstate.__version__, provider, str(tmp_path), "driver"))
    assert (found.check, found.reason) == ("", "")
    sweep_once.__wrapped__()
    assert socket_places() == [tmp_path]
