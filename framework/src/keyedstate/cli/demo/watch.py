"""Runs the demo's job, kills it within an epoch, continues it, and shows the verdict."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.cli.demo.answer import answer_in, answer_of_loop, compare
from keyedstate.cli.demo.flights import write_flights
from keyedstate.cli.output import table
from keyedstate.errors import DemoJobError, KeyedStateError, TargetExistsError

POLL_SECONDS = 0.02
#: The demo does not touch a folder without this file.
_MARK = ".keyedstate-demo"
_FOLDERS = ("committed", "expected", "flights", "output", "spark", "state", "warehouse")
_LOG = re.compile(r"(?:job-[0-9]+|verify)\.log")


@dataclass(frozen=True)
class DemoJob:
    """A job of the demo."""

    #: Its program.
    module: str
    #: The uids.
    operators: tuple[str, ...]
    #: What its answer is compared with.
    peer: str


ON_SPARK = DemoJob("keyedstate.cli.demo.job", ("aircraft", "origins"), "Spark's batch answer")
LOCAL = DemoJob("keyedstate.cli.demo.local_job", ("aircraft",), "a loop over the flights")


class Watch:
    """Follows a job of so many epochs by the checkpoints that it publishes."""

    def __init__(self, work: Path, job: DemoJob, epochs: int, console: Console) -> None:
        storage = CheckpointStorage.open(str(work / "state"))
        self._folders = [OperatorFolder(storage, uid) for uid in job.operators]
        self._epochs = epochs
        self._console = console
        self._rows = 0
        #: How many epochs all operators have published, and were printed.
        self.done = 0

    def run(self, command: Sequence[str], log: Path, *, kill_in_epoch: int | None = None) -> bool:
        """Run a job to its end, or kill it within an epoch.

        Returns whether it was killed before it published the epoch: it may be faster than the signal. Raises
        `DemoJobError` where the job fails by itself.
        """
        columns = (BarColumn(30), TextColumn("{task.completed}/{task.total} epochs"), TimeElapsedColumn())
        facts = TextColumn("{task.fields[facts]}")
        with (
            log.open("wb") as output,
            Progress(*columns, facts, console=self._console, transient=True) as progress,
        ):
            bar = progress.add_task("", total=self._epochs, completed=self.done, facts="starting")
            job = subprocess.Popen(
                command, stdout=output, stderr=output, env=_environment(), start_new_session=True
            )
            killed = False
            try:
                while job.poll() is None and not killed:
                    self._show(progress, bar)
                    killed = kill_in_epoch is not None and self._is_inside(kill_in_epoch)
                    time.sleep(0 if killed else POLL_SECONDS)
            finally:
                if job.poll() is None:
                    os.killpg(job.pid, signal.SIGKILL)
                    job.wait()
            self._show(progress, bar)
        if killed:
            return self.done <= (kill_in_epoch or 0)
        if job.returncode != 0:
            raise DemoJobError(command, job.returncode, log)
        return False

    def checkpoints(self) -> list[str]:
        """Return where the operators' newest checkpoints are."""
        return [
            folder.storage.location(f"chk-{folder.checkpoints()[-1]}")
            for folder in self._folders
            if folder.checkpoints()
        ]

    def _is_inside(self, epoch: int) -> bool:
        """Return whether attempts of an epoch have begun and its checkpoint is not published."""
        return self.done <= epoch and any(folder.attempts(epoch) for folder in self._folders)

    def _show(self, progress: Progress, bar: TaskID) -> None:
        while self.done < self._epochs:
            parts = [folder.read_metadata(self.done) for folder in self._folders]
            published = [metadata for metadata in parts if metadata is not None]
            if len(published) < len(parts):
                return
            facts = self._facts(published)
            self.done += 1
            progress.update(bar, completed=self.done, facts=facts)
            progress.console.print(f"  epoch {self.done - 1:>2}  {facts}")

    def _facts(self, published: Sequence[CheckpointMetadata]) -> str:
        # Both operators read the same rows.
        self._rows += sum(part.rows_in for part in published[0].parts)
        parts = [part for metadata in published for part in metadata.parts]
        entries = sum(sum(part.entries.values()) for part in parts)
        written = sum(part.bytes for part in parts)
        slowest = max(part.sync_ms + part.write_ms for part in parts)
        return (
            f"{self._rows:>7,} rows  {entries:>7,} state entries  checkpoint {written / 1024:>7,.0f} KiB "
            f"in {slowest:>4.0f} ms"
        )


def run_demo(work: Path, job: DemoJob, backend: str, epochs: int, rows: int | None, console: Console) -> bool:
    """Run the whole demo; return whether the answer of the killed job is right.

    The folder `work` may be missing, empty, or that of an earlier demo. The job is killed in the epoch in the
    middle of at least 2. Raises `TargetExistsError`, `DemoJobError` and `MissingPackageError`.
    """
    _prepare(work)
    flights = write_flights(work / "flights", epochs, rows)
    console.print(f"{flights:,} flights in {epochs} files, one an epoch; backend {backend}")
    watch = Watch(work, job, epochs, console)
    command, batch = (
        [sys.executable, "-m", module, "--work", str(work), "--backend", backend]
        for module in (job.module, "keyedstate.cli.demo.batch_job")
    )
    runs = 1
    kill_in_epoch = epochs // 2
    while not watch.run(command, work / f"job-{runs}.log", kill_in_epoch=kill_in_epoch):
        if watch.done == epochs:
            raise KeyedStateError(
                f"the job finished all {epochs} epochs before it could be killed in one. "
                "Use more rows or epochs."
            )
        runs += 1
        kill_in_epoch = watch.done + 1
    console.print("kill -9", style="red", end="")
    console.print(f" in epoch {kill_in_epoch}, before its checkpoint was published; starting again")
    watch.run(command, work / f"job-{runs + 1}.log")
    console.print(f"comparing with {job.peer}")
    if job is ON_SPARK:
        watch.run(batch, work / "verify.log")
        verdict = compare(answer_in(work / "expected"), work / "committed")
    else:
        verdict = compare(answer_of_loop(work / "flights"), work / "output")
    _report(console, watch, verdict, job.peer)
    return bool(verdict["different"] == 0)


def _prepare(work: Path) -> None:
    if work.exists() and any(work.iterdir()):
        if not (work / _MARK).exists():
            found = sorted(path.name for path in work.iterdir())
            raise TargetExistsError(str(work), found, "demo", "Name another folder with --work.")
        # Nothing else: the user may have put files there since.
        for path in work.iterdir():
            if path.is_dir() and path.name in _FOLDERS:
                shutil.rmtree(path)
            elif _LOG.fullmatch(path.name):
                path.unlink()
    work.mkdir(parents=True, exist_ok=True)
    (work / _MARK).touch()


def _environment() -> dict[str, str]:
    # Spark's workers would otherwise run the first python3 on the PATH.
    return {**os.environ, "PYSPARK_PYTHON": sys.executable}


def _report(console: Console, watch: Watch, verdict: dict[str, Any], peer: str) -> None:
    rows = [
        (key, f"{flights:,}", f"{delay / flights:.1f}", str(len(destinations)))
        for key, (flights, delay, destinations) in verdict["busiest"]
    ]
    console.print()
    console.print("the busiest aircraft", style="bold")
    console.print(table(("aircraft", "flights", "mean delay (min)", "destinations"), rows))
    console.print()
    for location in watch.checkpoints():
        console.print(f"newest checkpoint: {location}")
    for example in verdict["examples"]:
        console.print(f"differs: {example}")
    console.print(f"{verdict['keys']:,} keys compared, {verdict['different']} differ; ", end="")
    console.print(f"equal to {peer}: ", end="")
    equal = verdict["different"] == 0
    console.print("yes" if equal else "no", style="bold green" if equal else "bold red")
