"""One run: its driver is started, harmed and started again until the input is used up, and then judged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from faults import answer, plans, processes
from faults.harness import POLL_S, STANDSTILL_S, Harness, Result, end_of_log
from faults.plans import Plan

#: How long a stopped driver waits to be overtaken: it may have stopped with a lock that its successor wants.
_OVERTAKING_S = 90.0
#: Starts of the driver that a run may need beyond one for each of its faults.
_SPARE_LIVES = 3


def execute(plan: Plan, folder: Path, flights: pa.Table) -> Result:
    """Run a plan in a folder of its own, which must be named ``run-`` and four digits, and judge it."""
    run = _Run(plan, folder, flights)
    try:
        return run.execute()
    finally:
        run.end()


class _Run(Harness):
    def __init__(self, plan: Plan, folder: Path, flights: pa.Table) -> None:
        super().__init__(plan, folder, flights)
        self._stack = ExitStack()
        self._watched = [fault for fault in plan.faults if fault["by"] not in ("injection", "campaign")]
        self._injected = [fault for fault in plan.faults if "action" in fault]
        self._disk = self._small_disk()
        (folder / "faults.json").write_text(json.dumps(self._injected))

    def execute(self) -> Result:
        began = time.monotonic()
        pause = self.plan.pause_after
        finished = True
        whole = len(self.files)
        for files in [whole] if pause is None else [pause, whole]:
            self.give(files)
            finished = finished and self._consume()
        (self.folder / "consumed").touch()
        self.wait_for_zombies()
        # Whatever is left of the run may not write while it is judged.
        super().end()
        verdict = self.judge()
        if any(fault["by"] == "savepoint" and self._has_happened(fault) for fault in self._watched):
            answer.judge_savepoint(verdict, self.folder, self.plan.operators)
        seconds = time.monotonic() - began
        log = end_of_log(self.folder)
        return Result(self.plan, finished, verdict, self._happened(), self.lives, seconds, log)

    def end(self) -> None:
        """Leave no process and no mount behind."""
        super().end()
        self._stack.close()

    # -- the lives of the driver -------------------------------------------------------------------

    def _consume(self) -> bool:
        """Start the driver until it has used up the input; False where it does not get there."""
        for _ in range(len(self.plan.faults) + _SPARE_LIVES):
            if self._live(self.start()) == 0:
                return True
            if self._disk is not None and not self._room() and "No space left" in self.log():
                self._note(next(fault for fault in self._watched if fault["by"] == "disk full"), "full")
                self._make_room()
        return False

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
            if answer.committed_epochs(self.folder) != committed:
                committed, since = answer.committed_epochs(self.folder), time.monotonic()
            if time.monotonic() > since + STANDSTILL_S:
                self.write_log("-- killed: it did not continue\n")
                processes.kill_sessions({driver.pid})
            time.sleep(POLL_S)
        if code != 0 and self.plan.master == plans.LOCAL:
            # With a dead driver its Python workers end by themselves; on a cluster executors live on longer.
            self.kill_jvm(driver)
        return code

    # -- faults that come from here ------------------------------------------------------------------

    def _kill_at_commit(self, driver: subprocess.Popen[bytes], fault: dict[str, Any]) -> bool:
        if answer.committed_epochs(self.folder) <= fault["epoch"]:
            return False
        self._note(fault, f"epoch {fault['epoch']} is committed")
        self.kill_driver(driver)
        return True

    def _kill_at_random(self, driver: subprocess.Popen[bytes], fault: dict[str, Any]) -> bool:
        if answer.committed_epochs(self.folder) <= fault["epoch"]:
            return False
        if "since" not in fault:
            fault["since"] = time.monotonic()
        if time.monotonic() < fault["since"] + fault["delay"]:
            return False
        alive = processes.of_sessions({driver.pid})
        if fault["target"] == "driver":
            self.kill_driver(driver)
        else:
            targets = [found.pid for found in processes.workers(alive)]
            if fault["target"] == "executor":
                targets = [found.pid for found in alive if found.kind == "executor"]
            elif fault["target"] == "host":
                targets = processes.hosts_of(self.folder)
            if not targets:
                return False
            processes.send([targets[self.plan.number % len(targets)]], signal.SIGKILL)
        self._note(fault, f"{answer.committed_epochs(self.folder)} epochs are committed")
        return True

    def _start_second(self, driver: subprocess.Popen[bytes], fault: dict[str, Any]) -> bool:
        """Start another driver beside a living one; the older one is to stop."""
        if answer.committed_epochs(self.folder) <= fault["epoch"]:
            return False
        self._note(fault, f"{answer.committed_epochs(self.folder)} epochs are committed")
        self._live(self.start())
        return True

    def _take_savepoint(self, driver: subprocess.Popen[bytes], fault: dict[str, Any]) -> bool:
        """Have a savepoint taken that is killed, and another one in its place."""
        if answer.committed_epochs(self.folder) <= fault["epoch"]:
            return False
        for _ in range(2):
            self.process("faults.savepoint", str(self.folder), str(self.job)).wait(_OVERTAKING_S)
        return True

    def _is_stopped(self, driver: subprocess.Popen[bytes]) -> bool:
        return any(
            found.pid == driver.pid and found.state == "T" for found in processes.of_sessions({driver.pid})
        )

    def _outlive(self, driver: subprocess.Popen[bytes]) -> None:
        """Let a successor of a stopped driver get further, and then wake the driver up."""
        before = answer.committed_epochs(self.folder)
        successor = self.start()
        deadline = time.monotonic() + _OVERTAKING_S
        while successor.poll() is None and time.monotonic() < deadline:
            if answer.committed_epochs(self.folder) > before:
                break
            time.sleep(POLL_S)
        os.killpg(driver.pid, signal.SIGCONT)
        self._live(successor)

    def _small_disk(self) -> processes.SmallDisk | None:
        fault = next((fault for fault in self._watched if fault["by"] == "disk full"), None)
        if fault is None:
            return None
        kilobytes = 40 + int(200 * fault["delay"])
        disk = self._stack.enter_context(processes.small_disk(self.folder / "state", kilobytes))
        if not disk.mounted:
            # Mounting is not allowed here: the processes get the error that the disk is full.
            roles = (("worker", plans.DATA), ("host", plans.DATA), ("driver", plans.PUBLICATION))
            for role, step in roles:
                full = {"step": step.step, "path": step.path, "nth": 2, "times": 1000, "until": "room"}
                self._injected.append({"id": f"{fault['id']}-{role}", "role": role, "action": "full", **full})
        return disk

    def _room(self) -> bool:
        return (self.folder / "room").exists()

    def _make_room(self) -> None:
        (self.folder / "room").touch()
        if self._disk is not None and self._disk.mounted:
            self._disk.make_room()

    # -- what was noted ------------------------------------------------------------------------------

    def _note(self, fault: dict[str, Any], what: str) -> None:
        (self.folder / "faults" / f"{fault['id']}.happened").write_text(f"campaign: {what}\n")

    def _has_happened(self, fault: dict[str, Any]) -> bool:
        return (self.folder / "faults" / f"{fault['id']}.happened").exists()

    def _happened(self) -> dict[str, str]:
        for fault in self.plan.faults:
            if fault["by"] == "campaign" and self.lives > 1:
                self._note(fault, "restarted")
        noted = {path.stem: path.read_text() for path in (self.folder / "faults").glob("*.happened")}
        return {fault["id"]: noted[fault["id"]] for fault in self.plan.faults if fault["id"] in noted}
