"""The check of the executors before the first epoch.

A small job imports keyedstate and the backend, writes, reads, snapshots and restores a few entries, and
exchanges files with the driver through the checkpoint folder.  So a fault has one clear error on the driver,
before any row is read.  The job has one task per core; on a busy cluster Spark may leave out an executor.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from keyedstate import types, version
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.epoch.configuration import backend_in_task, configuration_in_task, frozen
from keyedstate.epoch.local_folders import local_folder
from keyedstate.errors import PreflightError, StorageError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.options import CHECKPOINT_COMPRESSION, Configuration
from keyedstate.spark.session import application_id, is_connect, on_executor, setting
from keyedstate.state import ValueState
from keyedstate.state.registry.chosen_backend import ChosenBackend, KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.working_folder import WorkingFolder

_FINDINGS = "host string, check string, reason string, way_out string, file string"
_MAX_TASKS = 256
_PROBE_ENTRIES = 16
_KEY_GROUPS = KeyGroupRange(0, 7)

_IMPORT = "importing keyedstate"
_VERSION = "comparing versions"
_BACKEND = "writing and reading the backend"
_STORAGE = "using the checkpoint folder"
_RUN = "running a Python function"

_INSTALL = (
    "Install the same keyedstate and backend, at the same versions, for the driver and for every executor."
)
_SHARE = (
    "Set the option 'checkpoint.dir' to a folder that the driver and every executor reach under one name: a "
    "shared file system or an object store; a local path will do on one machine only. Where executors run as "
    "another user than the driver, 'checkpoint.permissions' decides what each may read."
)

_PYTHON = (
    "Set PYSPARK_PYTHON, where the job is started, to a Python that has the packages of the driver on every "
    "executor, or install them there."
)

_passed: set[tuple[object, ...]] = set()
_passed_lock = threading.Lock()


@dataclass(frozen=True)
class Probe:
    """The input of the check's tasks."""

    #: The configuration, as `frozen` returns it.
    settings: tuple[tuple[str, Any], ...]
    #: The driver's.
    keyedstate_version: str
    provider: str
    #: URI of a folder of this check alone, below the checkpoint folder.
    folder: str
    #: None where the driver's process does not take part, as on Spark Connect.
    driver_host: str | None


@dataclass(frozen=True)
class Finding:
    """The result of one task: the failed check, or "" and the file that it wrote for the driver."""

    host: str
    check: str = ""
    reason: str = ""
    way_out: str = ""
    file: str = ""


def check_executors(
    spark: SparkSession, config: Configuration, chosen: ChosenBackend, storage: CheckpointStorage
) -> None:
    """Run the check, once per Spark application and configuration; raises `PreflightError`."""
    settings = frozen(config)
    done = (application_id(spark), settings)
    with _passed_lock:
        if done in _passed:
            return
    folder = storage.child(f".preflight-{uuid.uuid4().hex}")
    probe = Probe(settings, version.__version__, str(chosen.backend.provider), folder.uri, None)
    if is_connect(spark):
        _check_among_executors(spark, probe)
    else:
        _check_with_driver(spark, folder, replace(probe, driver_host=socket.gethostname()))
    with _passed_lock:
        _passed.add(done)


def _check_with_driver(spark: SparkSession, folder: CheckpointStorage, probe: Probe) -> None:
    here = probe.driver_host
    try:
        folder.write_atomic("driver", b"driver")
    except StorageError as error:
        raise PreflightError(f"the driver ({here})", _STORAGE, _plain(error), "") from error
    try:
        for file, host in _run(spark, probe).items():
            if not folder.exists(file):
                reason = f"the driver on {here} does not see what was written there to {folder.location()}"
                raise PreflightError(host, _STORAGE, reason, _SHARE)
    finally:
        folder.delete_dir("")


def _check_among_executors(spark: SparkSession, probe: Probe) -> None:
    """Run the check for a client of Spark Connect, which need not reach the checkpoint folder."""
    written = _run(spark, probe)
    here, location, missing = on_executor(spark, partial(_compare, probe, tuple(written)))
    for file in missing:
        reason = f"an executor on {here} does not see what was written there to {location}"
        raise PreflightError(written[file], _STORAGE, reason, _SHARE)


def _compare(probe: Probe, files: Sequence[str]) -> tuple[str, str, list[str]]:
    """Return this host, the folder of the check, and the files that are missing there; delete the folder."""
    folder = CheckpointStorage.open(probe.folder, configuration_in_task(probe.settings))
    missing = [file for file in files if not folder.exists(file)]
    folder.delete_dir("")
    return socket.gethostname(), folder.location(), missing


def examine(probe: Probe) -> Finding:
    """Run all checks in a task."""
    host = socket.gethostname()
    file = f"executor-{uuid.uuid4().hex}"
    checks: list[tuple[str, str, Callable[[], None]]] = [
        (_VERSION, _INSTALL, lambda: _check_versions(probe)),
        (_BACKEND, _INSTALL, lambda: _check_backend(probe)),
        (_STORAGE, _SHARE, lambda: _check_storage(probe, file)),
    ]
    for check, way_out, run in checks:
        try:
            run()
        except Exception as error:  # any fault is a finding
            return Finding(host, check, _plain(error), way_out)
    return Finding(host, file=file)


def _run(spark: SparkSession, probe: Probe) -> dict[str, str]:
    """Run the check in tasks; return the files that they wrote, with the host of each."""
    # By default Spark makes one partition for each core, of which at most so many have a row.
    frame = spark.range(_MAX_TASKS).mapInArrow(_probing(probe), _FINDINGS)
    try:
        findings = [Finding(*row) for row in frame.collect()]
    except PySparkException as error:
        reason = f"{_last_words(error)}, in the Python of the executor: {_python_of(spark)}"
        raise PreflightError("an executor", _RUN, reason, _PYTHON) from error
    for finding in findings:
        if finding.check:
            raise PreflightError(finding.host, finding.check, finding.reason, finding.way_out)
    return {finding.file: finding.host for finding in findings}


def _python_of(spark: SparkSession) -> str:
    """Return the interpreter of an executor; needs neither pandas nor pyarrow there."""

    # A nested function is pickled by value, because the executor may lack keyedstate.
    def interpreter(_: int) -> str:
        import sys

        return sys.executable

    set_to = os.environ.get("PYSPARK_PYTHON")
    origin = f"PYSPARK_PYTHON is {set_to}" if set_to else "PYSPARK_PYTHON is not set"
    if is_connect(spark):
        # This environment is that of the client.
        origin = "PYSPARK_PYTHON of the server decides"
    try:
        asked = f.udf(interpreter, "string", useArrow=False)
        ((found,),) = spark.range(0, 1, 1, 1).select(asked("id")).collect()
    except PySparkException:
        found = setting(spark, "spark.pyspark.python") or "unknown"
    return f"{found} ({origin})"


def _probing(probe: Probe) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    import_check, way_out = _IMPORT, f"{_INSTALL} {_PYTHON}"
    # Plain values: without keyedstate no instance could be unpickled.
    facts = astuple(probe)

    # A nested function is pickled by value, so that it can report that keyedstate is missing.
    def probing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import socket
        import sys

        import pyarrow

        for batch in batches:
            try:
                from keyedstate.spark.plan.preflight import Probe, examine
            except Exception as error:
                reason = f"{type(error).__name__}: {error}, in {sys.executable}"
                row = {
                    "host": socket.gethostname(),
                    "check": import_check,
                    "reason": reason,
                    "way_out": way_out,
                    "file": "",
                }
            else:
                row = vars(examine(Probe(*facts)))
            yield pyarrow.RecordBatch.from_pylist([row] * min(1, batch.num_rows))

    return probing


def _check_versions(probe: Probe) -> None:
    if version.__version__ != probe.keyedstate_version:
        raise RuntimeError(
            f"keyedstate {version.__version__} is installed here, and {probe.keyedstate_version} on the "
            "driver"
        )
    provider = str(backend_in_task(probe.settings).backend.provider)
    if provider != probe.provider:
        raise RuntimeError(f"the backend is that of {provider} here, and of {probe.provider} on the driver")


def _check_backend(probe: Probe) -> None:
    """Write, read, snapshot and restore a few entries, in a file of the local disk."""
    chosen = backend_in_task(probe.settings)
    state = ValueState("probe", types.INT64)
    expected = {f"key {number}": number for number in range(_PROBE_ENTRIES)}

    with WorkingFolder(local_folder()) as folder:
        local = CheckpointStorage.open(folder)
        with closing(_open(chosen, [])) as keyed:
            handle = keyed.get_state(state)
            for key, number in expected.items():
                keyed.set_current_key(key, number % len(_KEY_GROUPS))
                handle.update(number)
            compression = configuration_in_task(probe.settings)[CHECKPOINT_COMPRESSION]
            writer = SegmentWriter(local, "probe.seg", _KEY_GROUPS, compression)
            keyed.snapshot(0).run(writer)
            segment = writer.finish()
        with closing(SegmentHandle.open(local, segment)) as source, closing(_open(chosen, [source])) as keyed:
            handle = keyed.get_state(state)
            found = {}
            for key, number in expected.items():
                keyed.set_current_key(key, number % len(_KEY_GROUPS))
                found[key] = handle.value()
    if found != expected:
        raise RuntimeError(f"{expected} was written, and {found} restored")


def _open(chosen: ChosenBackend, handles: list[SegmentHandle]) -> KeyedStateBackend:
    return KeyedStateBackend.open(
        chosen, KeySpace(types.STRING, _KEY_GROUPS, len(_KEY_GROUPS)), handles, local_base=local_folder()
    )


def _check_storage(probe: Probe, file: str) -> None:
    folder = CheckpointStorage.open(probe.folder, configuration_in_task(probe.settings))
    try:
        if probe.driver_host is not None:
            folder.read("driver")
    except StorageError as error:
        raise RuntimeError(
            f"what the driver on {probe.driver_host} wrote to {folder.location('driver')} cannot be read: "
            f"{error.reason}"
        ) from error
    folder.write_atomic(file, f"process {os.getpid()}".encode())


def _plain(error: Exception) -> str:
    text = str(error) if isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}"
    return text.rstrip(".")


def _last_words(error: BaseException) -> str:
    """Return the error itself: the last line of a worker's traceback, if the message holds one."""
    lines = [line.strip() for line in str(error).splitlines()]
    named = [line for line in lines if line and not line.startswith(("at ", "File ", "JVM ", "Driver "))]
    errors = [line for line in named if "Error" in line.split(":", 1)[0]]
    return (errors or named or [type(error).__name__])[-1].rstrip(".")
