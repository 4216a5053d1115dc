"""One run: its driver is started, harmed and started again until the input is used up, and then judged."""

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
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from faults import answer, plans, processes
from faults.faulty_storage import SCHEME
from faults.flight_log import DISORDER_MS
from faults.plans import EPOCHS, MAX_PARALLELISM, Plan
from keyedstate.cli.demo.flights import read_flights

#: A driver that commits no epoch for so long hangs; on a busy machine it takes a minute to start.
_STANDSTILL_S = 600.0
#: How long a stopped driver waits to be overtaken: it may have stopped with a lock that its successor wants.
_OVERTAKING_S = 90.0
_POLL_S = 0.03
_TESTS = Path(__file__).parent.parent
#: Starts of the driver that a run may need beyond one for each of its faults.
_SPARE_LIVES = 3
_COLUMNS = ("id", "tailnum", "origin", "dest", "arr_delay", "ts")


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
    """

    plan: Plan
    finished: bool
    verdict: answer.Verdict
    happened: dict[str, str]
    lives: int
    seconds: float
    log: str = ""

    @property
    def survived(self) -> bool:
        """Whether output and state are exactly those of the batch answer."""
        return self.finished and self.verdict.exact


def load_flights() -> pa.Table:
    """Return the flights of the year, numbered."""
    flights = read_flights().rename_columns({"time_hour": "ts"})
    return flights.append_column("id", pa.array(range(flights.num_rows))).select(_COLUMNS)


def execute(plan: Plan, folder: Path, flights: pa.Table) -> Result:
    """Run a plan in a folder of its own, which must be named ``run-`` and four digits, and judge it."""
    run = _Run(plan, folder, flights)
    try:
        return run.execute()
    finally:
        run.end()


class _Run:
    def __init__(self, plan: Plan, folder: Path, flights: pa.Table) -> None:
        self._plan = plan
        self._folder = folder
        self._stack = ExitStack()
        self._sessions: set[int] = set()
        self._lives = 0
        self._deadline = 0.0
        (folder / "faults").mkdir(parents=True)
        (folder / "input").mkdir()
        self._files = self._cut(flights.slice(plan.first_flight, plan.flights))
        self._watched = [fault for fault in plan.faults if fault["by"] not in ("injection", "campaign")]
        self._injected = [fault for fault in plan.faults if "action" in fault]
        self._disk = self._small_disk()
        (folder / "faults.json").write_text(json.dumps(self._injected))

    def execute(self) -> Result:
        began = time.monotonic()
        pause = self._plan.pause_after
        finished = True
        whole = len(self._files)
        for files in [whole] if pause is None else [pause, whole]:
            self._give(files)
            finished = finished and self._consume()
        (self._folder / "consumed").touch()
        self._wait_for_zombies()
        # Whatever is left of the run may not write while it is judged.
        self._kill_all()
        backend = random.Random(self._plan.number).choice(self._plan.backends)
        settings = {name: value for name, value in self._storage().items() if name != "checkpoint.dir"}
        where = self._storage()["checkpoint.dir"]
        verdict = answer.judge(self._folder, where, self._plan.operators, {"backend": backend, **settings})
        if any(fault["by"] == "savepoint" and self._has_happened(fault) for fault in self._watched):
            answer.judge_savepoint(verdict, self._folder, self._plan.operators)
        log = self._folder / "log"
        seconds = time.monotonic() - began
        text = log.read_text(errors="replace")[-6000:] if log.exists() else ""
        return Result(self._plan, finished, verdict, self._happened(), self._lives, seconds, text)

    def end(self) -> None:
        """Leave no process and no mount behind."""
        self._kill_all()
        self._stack.close()

    def _kill_all(self) -> None:
        processes.kill_sessions(self._sessions)
        processes.send(processes.hosts_of(self._folder), signal.SIGKILL)

    # -- input -------------------------------------------------------------------------------------

    def _cut(self, flights: pa.Table) -> list[pa.Table]:
        if self._plan.is_windowed:
            order = random.Random(self._plan.number)
            late = pa.array([order.randrange(DISORDER_MS) for _ in range(flights.num_rows)])
            comes = pc.add(pc.cast(flights["ts"], pa.timestamp("ms", "UTC")), late.cast(pa.duration("ms")))
            flights = flights.take(pc.sort_indices(comes))
        first = int(flights.num_rows * self._plan.ahead)
        rest = flights.num_rows - first
        ends = [0, *(first + rest * number // (EPOCHS - 1) for number in range(EPOCHS))]
        files = [flights.slice(first, end - first) for first, end in itertools.pairwise(ends)]
        return [*files, *_end_of_time(flights.schema)] if self._plan.is_windowed else files

    def _give(self, files: int) -> None:
        """Have so many files in the input."""
        for number in range(files):
            path = self._folder / "input" / f"flights-{number:04}.parquet"
            if not path.exists():
                hidden = path.with_name(f".{path.name}")
                pyarrow.parquet.write_table(self._files[number], hidden)
                # Spark's file source goes by modification time.
                os.utime(hidden, (1_000_000_000 + number, 1_000_000_000 + number))
                hidden.rename(path)

    # -- the lives of the driver -------------------------------------------------------------------

    def _consume(self) -> bool:
        """Start the driver until it has used up the input; False where it does not get there."""
        for _ in range(len(self._plan.faults) + _SPARE_LIVES):
            if self._live(self._start()) == 0:
                return True
            if self._disk is not None and not self._room() and "No space left" in self._log():
                self._note(next(fault for fault in self._watched if fault["by"] == "disk full"), "full")
                self._make_room()
        return False

    def _storage(self) -> dict[str, str]:
        """Return the options that say where the state is."""
        if self._plan.storage == "local":
            return {"checkpoint.dir": str(self._folder / "state")}
        uri = f"{SCHEME}{self._folder}/state"
        return {"checkpoint.dir": uri, "plugins.modules": "faults.faulty_storage"}

    def _start(self) -> subprocess.Popen[bytes]:
        parallelism, backend = self._plan.lives[min(self._lives, len(self._plan.lives) - 1)]
        self._lives += 1
        settings = {
            "spark.master": self._plan.master,
            "spark.keyedstate.backend": backend,
            "spark.keyedstate.parallelism": str(parallelism),
            "spark.keyedstate.max-parallelism": str(MAX_PARALLELISM),
            **{f"spark.keyedstate.{name}": value for name, value in self._storage().items()},
            "spark.keyedstate.checkpoint.delta-min-bytes": "0",
            **self._plan.settings,
        }
        job = {"operators": self._plan.operators, "sink": self._plan.sink, "settings": settings}
        (self._folder / "job.json").write_text(json.dumps(job))
        self._write_log(f"-- start {self._lives}: {parallelism} tasks, {backend}\n")
        return self._process("faults.job")

    def _process(self, module: str) -> subprocess.Popen[bytes]:
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
            # Half of the time that a Java needs to start; there is nothing here that a better compiler gains.
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(self._folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._sessions.add(process.pid)
        return process

    def _live(self, driver: subprocess.Popen[bytes]) -> int:
        """Watch a driver until it ends, do to it what is planned, and return its exit code."""
        committed, since = -1, time.monotonic()
        waiting = [fault for fault in self._watched if not self._has_happened(fault)]
        actions: dict[str, Callable[[subprocess.Popen[bytes], dict[str, Any]], bool]] = {
            "commit": self._kill_at_commit,
            "random": self._kill_at_random,
            "second driver": self._start_second,
            "savepoint": self._take_savepoint,
        }
        while (code := driver.poll()) is None:
            for fault in [fault for fault in waiting if fault["by"] in actions]:
                if actions[fault["by"]](driver, fault):
                    waiting.remove(fault)
            if self._is_stopped(driver):
                self._outlive(driver)
            if answer.committed_epochs(self._folder) != committed:
                committed, since = answer.committed_epochs(self._folder), time.monotonic()
            if time.monotonic() > since + _STANDSTILL_S:
                self._write_log("-- killed: it did not go on\n")
                processes.kill_sessions({driver.pid})
            time.sleep(_POLL_S)
        if code != 0 and self._plan.master == plans.LOCAL:
            # With a dead driver its Python workers end by themselves; on a cluster executors live on longer.
            self._kill_jvm(driver)
        return code

    def _kill_jvm(self, driver: subprocess.Popen[bytes]) -> None:
        """A driver is Python and Java; where one is dead the other must not go on."""
        ours = [found for found in processes.of_sessions({driver.pid}) if found.kind == "other"]
        processes.send([found.pid for found in ours], signal.SIGKILL)

    # -- faults that come from here ------------------------------------------------------------------

    def _kill_at_commit(self, driver: subprocess.Popen[bytes], fault: dict[str, Any]) -> bool:
        if answer.committed_epochs(self._folder) <= fault["epoch"]:
            return False
        self._note(fault, f"epoch {fault['epoch']} is committed")
        self._kill_driver(driver)
        return True

    def _kill_at_random(self, driver: subprocess.Popen[bytes], fault: dict[str, Any]) -> bool:
        if answer.committed_epochs(self._folder) <= fault["epoch"]:
            return False
        if "since" not in fault:
            fault["since"] = time.monotonic()
        if time.monotonic() < fault["since"] + fault["delay"]:
            return False
        alive = processes.of_sessions({driver.pid})
        if fault["target"] == "driver":
            self._kill_driver(driver)
        else:
            targets = [found.pid for found in processes.workers(alive)]
            if fault["target"] == "executor":
                targets = [found.pid for found in alive if found.kind == "executor"]
            elif fault["target"] == "host":
                targets = processes.hosts_of(self._folder)
            if not targets:
                return False
            processes.send([targets[self._plan.number % len(targets)]], signal.SIGKILL)
        self._note(fault, f"{answer.committed_epochs(self._folder)} epochs are committed")
        return True

    def _kill_driver(self, driver: subprocess.Popen[bytes]) -> None:
        children = [found for found in processes.of_sessions({driver.pid}) if found.parent == driver.pid]
        processes.send([*(child.pid for child in children), driver.pid], signal.SIGKILL)

    def _start_second(self, driver: subprocess.Popen[bytes], fault: dict[str, Any]) -> bool:
        """Start another driver beside a living one; the older one is to stop."""
        if answer.committed_epochs(self._folder) <= fault["epoch"]:
            return False
        self._note(fault, f"{answer.committed_epochs(self._folder)} epochs are committed")
        self._live(self._start())
        return True

    def _take_savepoint(self, driver: subprocess.Popen[bytes], fault: dict[str, Any]) -> bool:
        """Have a savepoint taken that is killed, and another one in its place."""
        if answer.committed_epochs(self._folder) <= fault["epoch"]:
            return False
        for _ in range(2):
            self._process("faults.savepoint").wait(_OVERTAKING_S)
        return True

    def _is_stopped(self, driver: subprocess.Popen[bytes]) -> bool:
        return any(
            found.pid == driver.pid and found.state == "T" for found in processes.of_sessions({driver.pid})
        )

    def _outlive(self, driver: subprocess.Popen[bytes]) -> None:
        """Let a successor of a stopped driver get further, and then wake the driver up."""
        before = answer.committed_epochs(self._folder)
        successor = self._start()
        deadline = time.monotonic() + _OVERTAKING_S
        while successor.poll() is None and time.monotonic() < deadline:
            if answer.committed_epochs(self._folder) > before:
                break
            time.sleep(_POLL_S)
        os.killpg(driver.pid, signal.SIGCONT)
        self._live(successor)

    def _wait_for_zombies(self) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            alive = processes.of_sessions(self._sessions)
            pids = {found.pid for found in alive}
            if not any(found.kind == "daemon" and found.parent not in pids for found in alive):
                return
            time.sleep(_POLL_S)

    def _small_disk(self) -> processes.SmallDisk | None:
        fault = next((fault for fault in self._watched if fault["by"] == "disk full"), None)
        if fault is None:
            return None
        kilobytes = 40 + int(200 * fault["delay"])
        disk = self._stack.enter_context(processes.small_disk(self._folder / "state", kilobytes))
        if not disk.mounted:
            # Mounting is not allowed here: the processes are told that there is no room.
            roles = (("worker", plans.DATA), ("host", plans.DATA), ("driver", plans.PUBLICATION))
            for role, step in roles:
                full = {"step": step.step, "path": step.path, "nth": 2, "times": 1000, "until": "room"}
                self._injected.append({"id": f"{fault['id']}-{role}", "role": role, "action": "full", **full})
        return disk

    def _room(self) -> bool:
        return (self._folder / "room").exists()

    def _make_room(self) -> None:
        (self._folder / "room").touch()
        if self._disk is not None and self._disk.mounted:
            self._disk.make_room()

    # -- what was noted ------------------------------------------------------------------------------

    def _note(self, fault: dict[str, Any], what: str) -> None:
        (self._folder / "faults" / f"{fault['id']}.happened").write_text(f"campaign: {what}\n")

    def _has_happened(self, fault: dict[str, Any]) -> bool:
        return (self._folder / "faults" / f"{fault['id']}.happened").exists()

    def _happened(self) -> dict[str, str]:
        for fault in self._plan.faults:
            if fault["by"] == "campaign" and self._lives > 1:
                self._note(fault, "restarted")
        noted = {path.stem: path.read_text() for path in (self._folder / "faults").glob("*.happened")}
        return {fault["id"]: noted[fault["id"]] for fault in self._plan.faults if fault["id"] in noted}

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def _write_log(self, text: str) -> None:
        with (self._folder / "log").open("a") as log:
            log.write(text)


def _end_of_time(schema: pa.Schema) -> list[pa.Table]:
    """Return two rows, a file each, after which every window is over: its watermark comes an epoch later."""
    rows = [
        {
            "id": -year,
            "tailnum": answer.END,
            "origin": answer.END,
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
