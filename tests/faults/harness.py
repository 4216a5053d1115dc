"""What every run has: a folder with its input, drivers that are started in it, and the verdict at the end."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from support.java import fast

from faults import answer, plans, processes
from faults.faulty_storage import SCHEME
from faults.operators.entry import DISORDER_MS, END
from faults.plans import MAX_PARALLELISM, Plan
from keyedstate.cli.demo.flights import read_flights

#: A driver that commits no epoch for so long hangs; on a busy machine it takes a minute to start.
STANDSTILL_S = 600.0
POLL_S = 0.03
_TESTS = Path(__file__).parent.parent
_COLUMNS = ("id", "tailnum", "origin", "dest", "arr_delay", "ts")
_LOG_CHARACTERS = 6000


@dataclass
class Result:
    """What became of a run.

    Attributes
    ----------
    plan : Plan
    finished : bool
        Whether the input was used up.
    verdict : answer.Verdict
        Of what the run left, whether it finished or not.
    happened : dict
        By the id of a fault, what its processes noted; faults that were not reached are missing.
    lives : int
        Starts of the driver.
    seconds : float
    log : str
        The end of the drivers' output.
    problems : list of str
        What else must not have happened: drivers that ended with an error which the protocol does not allow.
    endings : dict
        How drivers ended, and how many did so; empty without a look at them.
    """

    plan: Plan
    finished: bool
    verdict: answer.Verdict
    happened: dict[str, str]
    lives: int
    seconds: float
    log: str = ""
    problems: list[str] = field(default_factory=list)
    endings: dict[str, int] = field(default_factory=dict)

    @property
    def survived(self) -> bool:
        """Whether output and state are exactly those of the batch answer."""
        return self.finished and self.verdict.exact and not self.problems


def load_flights() -> pa.Table:
    """Return the flights of the year, numbered."""
    flights = read_flights().rename_columns({"time_hour": "ts"})
    return flights.append_column("id", pa.array(range(flights.num_rows))).select(_COLUMNS)


class Harness:
    """A run in a folder of its own, which must be named ``run-`` and four digits.

    Parameters
    ----------
    plan : Plan
    folder : Path
    flights : pa.Table
        Those of `load_flights`.
    """

    def __init__(self, plan: Plan, folder: Path, flights: pa.Table) -> None:
        self.plan = plan
        self.folder = folder
        self.sessions: set[int] = set()
        self.lives = 0
        (folder / "faults").mkdir(parents=True)
        (folder / "input").mkdir()
        self.files = self._cut(flights.slice(plan.first_flight, plan.flights))

    def end(self) -> None:
        """Leave no process behind."""
        processes.kill_sessions(self.sessions)
        processes.send(processes.hosts_of(self.folder), signal.SIGKILL)

    # -- input and verdict -------------------------------------------------------------------------

    def _cut(self, flights: pa.Table) -> list[pa.Table]:
        if self.plan.is_out_of_order:
            order = random.Random(self.plan.number)
            late = pa.array([order.randrange(DISORDER_MS) for _ in range(flights.num_rows)])
            comes = pc.add(pc.cast(flights["ts"], pa.timestamp("ms", "UTC")), late.cast(pa.duration("ms")))
            flights = flights.take(pc.sort_indices(comes))
        first = int(flights.num_rows * self.plan.ahead)
        rest = flights.num_rows - first
        others = self.plan.epochs - 1
        ends = [0, *(first + rest * number // others for number in range(others + 1))]
        files = [flights.slice(first, end - first) for first, end in itertools.pairwise(ends)]
        return [*files, *_end_of_time(flights.schema)] if self.plan.is_ended_by_rows else files

    def give(self, files: int) -> None:
        """Have so many files in the input."""
        for number in range(files):
            path = self.folder / "input" / f"flights-{number:04}.parquet"
            if not path.exists():
                hidden = path.with_name(f".{path.name}")
                pyarrow.parquet.write_table(self.files[number], hidden)
                # Spark's file source goes by modification time.
                os.utime(hidden, (1_000_000_000 + number, 1_000_000_000 + number))
                hidden.rename(path)

    def judge(self) -> answer.Verdict:
        """Compare what the run left with the batch answer."""
        backend = random.Random(self.plan.number).choice(self.plan.backends)
        settings = {name: value for name, value in self.storage().items() if name != "checkpoint.dir"}
        where = self.storage()["checkpoint.dir"]
        return answer.judge(
            self.folder,
            where,
            self.plan.operators,
            {"backend": backend, **settings},
            with_output=self.plan.sink != plans.NO_OUTPUT,
            pause_after=self.plan.pause_after,
        )

    # -- drivers -----------------------------------------------------------------------------------

    def storage(self) -> dict[str, str]:
        """Return the options that say where the state is, and where the backend ``restless`` is."""
        scheme = "" if self.plan.storage == "local" else SCHEME
        return {
            "checkpoint.dir": f"{scheme}{self.folder}/state",
            "plugins.modules": "faults.faulty_storage,support.restless",
        }

    def start(self, **more: Any) -> subprocess.Popen[bytes]:
        """Start a driver; `more` goes into the file that describes its job."""
        parallelism, backend = self.plan.lives[min(self.lives, len(self.plan.lives) - 1)]
        self.lives += 1
        settings = {
            "spark.master": self.plan.master,
            "spark.keyedstate.backend": backend,
            "spark.keyedstate.parallelism": str(parallelism),
            "spark.keyedstate.max-parallelism": str(MAX_PARALLELISM),
            **{f"spark.keyedstate.{name}": value for name, value in self.storage().items()},
            "spark.keyedstate.checkpoint.delta-min-bytes": "0",
            **self.plan.settings,
        }
        job = {"operators": self.plan.operators, "sink": self.plan.sink, "settings": settings, **more}
        # Another start may come before this one has read its own.
        self.job = self.folder / f"job-{self.lives}.json"
        self.job.write_text(json.dumps(job))
        self.write_log(f"-- start {self.lives}: {parallelism} tasks, {backend}\n")
        return self.process("faults.job", str(self.folder), str(self.job))

    def process(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process that works for the run."""
        path = [
            str(_TESTS),
            str(_TESTS / "faults" / "in_hosts"),
            *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PYSPARK_PYTHON": sys.executable,
            # As in tests/conftest.py; a campaign may be started without pytest.
            "JDK_JAVA_OPTIONS": fast(),
        }
        with self.log_of(self.lives).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.sessions.add(process.pid)
        return process

    def kill_driver(self, driver: subprocess.Popen[bytes]) -> None:
        """Kill both halves of a driver, Python and Java."""
        children = [found for found in processes.of_sessions({driver.pid}) if found.parent == driver.pid]
        processes.send([*(child.pid for child in children), driver.pid], signal.SIGKILL)

    def kill_jvm(self, driver: subprocess.Popen[bytes]) -> None:
        """A driver is Python and Java; where one is dead the other must not continue."""
        ours = [found for found in processes.of_sessions({driver.pid}) if found.kind == "other"]
        processes.send([found.pid for found in ours], signal.SIGKILL)

    def wait_for_zombies(self) -> None:
        """Wait for Python workers that have lost their executor; a few may be planned to end late."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            alive = processes.of_sessions(self.sessions)
            pids = {found.pid for found in alive}
            if not any(found.kind == "daemon" and found.parent not in pids for found in alive):
                return
            time.sleep(POLL_S)

    # -- logs --------------------------------------------------------------------------------------

    def log_of(self, life: int) -> Path:
        """Return the file with what a driver has written; they are counted from 1."""
        return self.folder / f"log-{life}"

    def log(self) -> str:
        """Return all that the drivers have written."""
        return whole_log(self.folder)

    def write_log(self, text: str) -> None:
        """Write a line of the campaign's own."""
        with self.log_of(self.lives).open("a") as log:
            log.write(text)


def whole_log(folder: Path) -> str:
    """Return all that the drivers of a run have written."""
    lives = sorted(folder.glob("log-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    return "".join(path.read_text(errors="replace") for path in lives)


def end_of_log(folder: Path) -> str:
    """Return the last thousands of characters of that."""
    return whole_log(folder)[-_LOG_CHARACTERS:]


def _end_of_time(schema: pa.Schema) -> Sequence[pa.Table]:
    """Return two rows, a file each, after which every window is over: its watermark comes an epoch later."""
    rows = [
        {
            "id": -year,
            "tailnum": END,
            "origin": END,
            "dest": END,
            "ts": datetime(2100 + year, 1, 1, tzinfo=timezone.utc),
        }
        for year in (1, 2)
    ]
    return [pa.Table.from_pylist([row], schema) for row in rows]


def remove(folder: Path) -> None:
    """Delete a run's folder; a process that is ending may write for a moment."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
