"""Storages of several file systems, the reduced operator of `jobs`, and the real one of `counting`."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pyarrow.fs as pafs
import pytest

from keyedstate.checkpoint.storage.filesystem import CheckpointStorage

_HERE = Path(__file__).parent


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"checkpoint_{name}", _HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def jobs() -> ModuleType:
    """The module `jobs`, which the killed processes import as well."""
    return _load("jobs")


@pytest.fixture(scope="session")
def unruly_storage() -> Callable[..., Any]:
    """Makes a storage over a folder that shows half-written files and fails on demand."""
    make: Callable[..., Any] = _load("unruly").UnrulyStorage
    return make


@pytest.fixture(scope="session")
def protocol_model() -> ModuleType:
    """The module `protocol_model`."""
    return _load("protocol_model")


@pytest.fixture(scope="session")
def counting() -> ModuleType:
    """The module `counting`."""
    return _load("counting")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def full_disk_folder(small_disk: Path) -> Path:
    """A folder on a disk that has room for a few folders and for no file."""
    with (small_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(4096)):
            pass
    return small_disk


@pytest.fixture
def local(tmp_path: Path) -> CheckpointStorage:
    """A folder on the local disk that does not exist yet."""
    return CheckpointStorage.open(tmp_path / "state")


@pytest.fixture(params=["local", "memory", "subtree", "unruly", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStorage:
    """One of several file systems, empty.

    A local disk; pyarrow's file system in memory; one of pyarrow that wraps another; one in Python that shows
    files while they are written; an S3-compatible server.
    """
    if request.param == "local":
        return CheckpointStorage.open(tmp_path / "state")
    if request.param == "memory":
        return CheckpointStorage(pafs._MockFileSystem(), "bucket/state", "mock://bucket/state")
    if request.param == "unruly":
        unruly = request.getfixturevalue("unruly_storage")(tmp_path / "unruly")
        return cast(CheckpointStorage, unruly.storage)
    if request.param == "s3":
        store = request.getfixturevalue("object_store")
        return CheckpointStorage.open(store.uri(uuid.uuid4().hex))
    (tmp_path / "wrapped").mkdir()
    wrapped = pafs.SubTreeFileSystem(str(tmp_path / "wrapped"), pafs.LocalFileSystem())
    return CheckpointStorage(wrapped, "state", "wrapped:state")


@pytest.fixture
def job(jobs: ModuleType, local: CheckpointStorage) -> Any:
    """An operator of two partitions and eight key groups on the local disk."""
    return jobs.Job(local)
