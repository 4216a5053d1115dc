"""One run of chaos: drivers live, are struck in real time, and at last use up the input undisturbed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from faults import answer, processes
from faults.chaos.endings import KILLED, USED_UP, classify, last_error
from faults.chaos.plans import LATE_DRIVER, SECOND_DRIVER
from faults.harness import POLL_S, Harness, Result, end_of_log
from faults.job import begun, planned
from faults.plans import Plan

#: Where no epoch is committed for so long, a driver hangs; times the load of each processor.
_STANDSTILL_S = 200.0
#: Drivers that live at the same time.
_MOST_DRIVERS = 3
#: Files for the undisturbed drivers at the end: who only finds nothing to do shows nothing.
_LAST_FILES = 3
#: Undisturbed starts that may be needed: the first may still meet what a killed driver has left running.
_PLAIN_STARTS = 2
#: Epochs that the first driver has from the one on that a late driver plans, where it is to end.
_OVERTAKEN = 4
#: An event may end two drivers, and a driver that is started right then may meet what they left.
_STARTS_PER_EVENT = 4
#: How long an event looks for what it strikes: an idle driver has perhaps no workers.
_SEARCH_S = 20.0
_DUMP_S = 3.0


class _Trouble(Exception):
    """A failure that the protocol does not allow."""


def execute(plan: Plan, folder: Path, flights: pa.Table) -> Result:
    """Run a plan in a folder of its own, which must be named ``run-`` and four digits, and judge it."""
    run = _Run(plan, folder, flights)
    try:
        return run.execute()
    finally:
        run.end()


@dataclass
class _Driver:
    """A driver that was started.

    Attributes
    ----------
    process : subprocess.Popen
    life : int
    others : bool
        Whether another driver, or a half of one, lived at the same time.
    struck : set of str
        Names of events that struck it or what works for it.
    """

    process: subprocess.Popen[bytes]
    life: int
    others: bool
    struck: set[str] = field(default_factory=set)


class _Run(Harness):
    def __init__(self, plan: Plan, folder: Path, flights: pa.Table) -> None:
        super().__init__(plan, folder, flights)
        self._began = time.monotonic()
        self._drivers: list[_Driver] = []
        self._stopped: list[tuple[float, list[int]]] = []
        self._happened: dict[str, str] = {}
        self._problems: list[str] = []
        self._endings: Counter[str] = Counter()
        self._disturbed = len(self.files) - _LAST_FILES
        self._given = 0
        self._at_rest = folder / "at-rest"
        self._progress = (0, 0, time.monotonic())

    def execute(self) -> Result:
        # What went wrong is judged as it is, before more events hide it.
        with contextlib.suppress(_Trouble):
            self._disturb()
        self._come_to_rest()
        finished = self._finish()
        (self.folder / "consumed").touch()
        self.wait_for_zombies()
        # Whatever is left of the run may not write while it is judged.
        super().end()
        return Result(
            self.plan,
            finished,
            self.judge(),
            self._happened,
            self.lives,
            time.monotonic() - self._began,
            (self.folder / "timeline").read_text() + end_of_log(self.folder),
            self._problems,
            dict(self._endings),
        )

    def _disturb(self) -> None:
        events = self.plan.faults
        for number, event in enumerate(events, 1):
            if event["name"] == LATE_DRIVER:
                self._start_late_driver(event)
                continue
            # An idle driver continues when an event gives it more of the input.
            self._wait_for(event, self._disturbed * number // (len(events) + 1))
            self._strike(event)
        if events:
            # Drivers that were just started have a share in what is left.
            self._until(self._all_run)

    # -- drivers -----------------------------------------------------------------------------------

    def _give(self, files: int) -> None:
        self._given = max(self._given, files)
        self.give(files)

    def _begin(self, **more: Any) -> _Driver:
        # What a killed driver has left running writes for a while, too.
        others = bool(processes.of_sessions(self.sessions))
        driver = _Driver(self.start(**more), self.lives, others)
        for other in self._drivers:
            other.others = True
        self._drivers.append(driver)
        self._note(f"driver {driver.life} starts")
        return driver

    def _tick(self) -> None:
        """Let time pass: stopped processes wake up, ended drivers are looked at, and one always lives."""
        now = time.monotonic()
        for stop in [stop for stop in self._stopped if stop[0] <= now]:
            self._wake(stop)
        for driver in [driver for driver in self._drivers if driver.process.poll() is not None]:
            self._drivers.remove(driver)
            self._look_at_end(driver)
        if not self._at_rest.exists():
            if self.lives > _STARTS_PER_EVENT * (1 + len(self.plan.faults)):
                self._problems.append(f"{self.lives} drivers were started and none stays")
            if self._problems:
                raise _Trouble
            if not self._drivers:
                self._begin(until=str(self._at_rest))
        self._watch()
        time.sleep(POLL_S)

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._tick()

    def _look_at_end(self, driver: _Driver) -> None:
        code = driver.process.returncode
        if code == 0:
            self._end_as(driver, USED_UP)
            return
        if any(name.startswith(("kill driver", "kill machine")) for name in driver.struck):
            self._end_as(driver, KILLED)
            return
        log = self.log_of(driver.life).read_text(errors="replace")
        ending = classify(log)
        allowed = ending is not None and (
            driver.others
            if ending.needs == "another driver"
            else any(name.startswith(ending.needs) for name in driver.struck)
        )
        self._end_as(driver, "an error" if ending is None else ending.name)
        if not allowed:
            self._problems.append(f"driver {driver.life} ended with {code}: {last_error(log)}")

    def _end_as(self, driver: _Driver, ending: str) -> None:
        self._endings[ending] += 1
        self._note(f"driver {driver.life} ends: {ending}")

    def _watch(self) -> None:
        """Kill what makes no progress; a machine with much to do is given more time."""
        now, seen = time.monotonic(), (answer.committed_epochs(self.folder), self._endings.total())
        is_idle = seen[0] >= self._given and self._all_run() and not self._at_rest.exists()
        sleeps = any(due < float("inf") for due, _ in self._stopped)
        if seen != self._progress[:2] or is_idle or sleeps or not self._drivers:
            self._progress = (*seen, now)
            return
        patience = _STANDSTILL_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        if now < self._progress[2] + patience:
            return
        self._problems.append(f"no epoch was committed for {patience:.0f} s")
        self._note("killed: it does not continue")
        # A Java writes the stacks of its threads then.
        everything = processes.of_sessions({driver.process.pid for driver in self._drivers})
        processes.send([found.pid for found in everything if "java" in found.command], signal.SIGQUIT)
        time.sleep(_DUMP_S)
        processes.kill_sessions({driver.process.pid for driver in self._drivers})
        for driver in self._drivers:
            driver.struck.add("kill driver")
            driver.process.wait()
        self._progress = (*seen, now)

    # -- what strikes them -------------------------------------------------------------------------

    def _wait_for(self, event: dict[str, Any], files: int) -> None:
        """Have so many files in the input, and wait for the moment of an event."""
        before = answer.committed_epochs(self.folder)
        if event["since"] == "query":
            self._until(self._all_run)
        self._give(files)
        if event["since"] == "commit" and before < files:
            self._until(lambda: answer.committed_epochs(self.folder) > before)
        due = time.monotonic() + event["delay"]
        self._until(lambda: time.monotonic() >= due)

    def _all_run(self) -> bool:
        return bool(self._drivers) and all(
            begun(self.folder, driver.process.pid).exists() for driver in self._drivers
        )

    def _has_room(self) -> bool:
        """Return whether another driver may start; idle ones get input, over which all but one end."""
        is_idle = answer.committed_epochs(self.folder) >= self._given and self._all_run()
        if is_idle:
            self._give(min(self._given + 1, self._disturbed))
        return 0 < len(self._drivers) < _MOST_DRIVERS or (is_idle and self._given == self._disturbed)

    def _strike(self, event: dict[str, Any]) -> None:
        """Do what an event says, if there is something that it can strike."""
        if event["name"] == SECOND_DRIVER:
            self._until(self._has_room)
            self._mark(event, f"beside {len(self._drivers)}")
            self._begin(until=str(self._at_rest))
            return
        struck: list[tuple[_Driver, list[int]]] = []

        def find() -> bool:
            found = [(driver, self._targets(driver, event)) for driver in self._drivers]
            struck[:] = [(driver, pids) for driver, pids in found if pids]
            return bool(struck)

        due = time.monotonic() + _SEARCH_S
        self._until(lambda: find() or time.monotonic() > due)
        if struck:
            driver, pids = struck[int(event["pick"] * len(struck))]
            self._send(event, driver, pids)

    def _send(self, event: dict[str, Any], driver: _Driver, pids: list[int]) -> None:
        driver.struck.add(event["name"])
        if event["target"] in ("host", "machine"):
            # Which driver's host it is, its session does not tell.
            for other in self._drivers:
                other.struck.add(event["name"])
        self._mark(event, f"driver {driver.life}, processes {', '.join(map(str, pids))}")
        if event["kind"] == "kill":
            processes.send(pids, signal.SIGKILL)
        else:
            processes.send(pids, signal.SIGSTOP)
            self._stopped.append((time.monotonic() + event["span"], pids))

    def _targets(self, driver: _Driver, event: dict[str, Any]) -> list[int]:
        """Return the processes that an event strikes: one of a kind, or all of a driver or a machine."""
        alive = processes.of_sessions({driver.process.pid})
        python = driver.process.pid
        java = [found.pid for found in alive if found.parent == python]
        target = event["target"]
        if target == "machine":
            return [*(found.pid for found in alive), *processes.hosts_of(self.folder)]
        if target == "driver":
            return [*java, python] if java else []
        if target == "driver's Python":
            return [python]
        if target == "driver's Java":
            return java
        if target == "executor":
            of_kind = [found.pid for found in alive if found.kind == "executor"]
        elif target == "worker":
            of_kind = [found.pid for found in alive if found.kind == "daemon"]
        else:
            of_kind = processes.hosts_of(self.folder)
        return [of_kind[int(event["pick"] * 1000) % len(of_kind)]] if of_kind else []

    def _wake(self, stop: tuple[float, list[int]]) -> None:
        self._stopped.remove(stop)
        processes.send(stop[1], signal.SIGCONT)
        self._note(f"awake: {', '.join(map(str, stop[1]))}")

    def _start_late_driver(self, event: dict[str, Any]) -> None:
        """Have a second driver plan the first one's micro-batch, and get its executors when that is over."""
        until, offsets = self.folder / "executors", self.folder / "spark" / "offsets"
        self._give(event["epoch"] + _OVERTAKEN)
        first = self._begin()

        def at_epoch() -> bool:
            done = answer.committed_epochs(self.folder)
            return done >= event["epoch"] and (offsets / str(done)).exists()

        while True:
            self._until(lambda: at_epoch() or first not in self._drivers)
            self._stop_machine(first)
            if at_epoch() or first not in self._drivers:
                break
            # It has committed the micro-batch meanwhile.
            self._wake(self._stopped[-1])
            self._give(answer.committed_epochs(self.folder) + _OVERTAKEN)
        epoch = answer.committed_epochs(self.folder)
        late = self._begin(busy_until=str(until))
        self._until(lambda: planned(until).exists() or late not in self._drivers)
        for stop in list(self._stopped):
            self._wake(stop)
        more = event["after"]["epochs"]
        self._until(
            lambda: (
                first not in self._drivers
                or (more is not None and answer.committed_epochs(self.folder) > epoch + more)
            )
        )
        due = time.monotonic() + event["after"]["seconds"]
        self._until(lambda: time.monotonic() >= due)
        self._mark(event, f"driver {late.life} planned epoch {epoch}, gets executors")
        until.touch()

    def _stop_machine(self, driver: _Driver) -> None:
        pids = self._targets(driver, {"target": "machine"})
        processes.send(pids, signal.SIGSTOP)
        self._stopped.append((float("inf"), pids))

    # -- the end -----------------------------------------------------------------------------------

    def _come_to_rest(self) -> None:
        """Let all drivers that live use up what is left together, and come to their end, whatever it is."""
        self._at_rest.touch()
        for stop in list(self._stopped):
            self._wake(stop)
        self._note("undisturbed from here on")
        self._give(self._disturbed)
        self._until(lambda: not self._drivers)

    def _finish(self) -> bool:
        """Start drivers that nothing disturbs until the input is used up; False where it is not."""
        self._give(len(self.files))
        for number in range(_PLAIN_STARTS):
            if number > 0:
                self.end()
            driver = self._begin()
            self._until(lambda: not self._drivers)
            if driver.process.returncode == 0:
                return True
        return False

    # -- what was noted ------------------------------------------------------------------------------

    def _mark(self, event: dict[str, Any], what: str) -> None:
        span = f" for {event['span']:.1f} s" if "span" in event else ""
        self._happened[event["id"]] = f"{time.monotonic() - self._began:.1f} s: {what}{span}"
        self._note(f"{event['name']}{span}: {what}")

    def _note(self, what: str) -> None:
        done = answer.committed_epochs(self.folder)
        with (self.folder / "timeline").open("a") as file:
            file.write(f"-- {time.monotonic() - self._began:6.1f} s, {done} epochs committed: {what}\n")
