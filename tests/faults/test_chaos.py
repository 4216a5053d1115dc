"""The campaign of chaos can be believed: it plans everything, and sees hangs and errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from faults import harness, processes
from faults.chaos import endings, plans, run
from faults.plans import CLUSTER, INSIDE, LOCAL, TWO_HOSTS, Plan

NO_FLIGHTS = pa.table(
    {
        "id": pa.array([], pa.int64()),
        "tailnum": pa.array([], pa.string()),
        "origin": pa.array([], pa.string()),
        "dest": pa.array([], pa.string()),
        "arr_delay": pa.array([], pa.int64()),
        "ts": pa.array([], pa.timestamp("us")),
    }
)


def test_a_plan_follows_from_seed_and_number() -> None:
    assert plans.plan_of(7, 23) == plans.plan_of(7, 23)
    assert plans.plan_of(8, 23) != plans.plan_of(7, 23)


def test_a_campaign_plans_every_event_and_every_trait() -> None:
    planned = [plans.plan_of(1, number) for number in range(100)]
    assert {fault["name"] for plan in planned for fault in plan.faults} == set(plans.NAMES)
    traits = {trait for plan in planned for trait in plans.traits(plan)}
    assert traits >= {
        LOCAL,
        CLUSTER,
        TWO_HOSTS,
        "embedded",
        "resident",
        "speculation",
        "windows",
        *plans.SINKS,
    }
    assert traits >= {f"starts with {backend}" for backend in plans.BACKENDS}


@pytest.mark.parametrize(
    ("log", "name"),
    [
        ("keyedstate.errors.SupersededRunError: run 1", "superseded by a newer run"),
        ("keyedstate.errors.OvertakenRunError: run 1", "overtaken by another run"),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update", "Spark found another writer"),
        ("keyedstate.errors.IncompleteEpochError: epoch 3", None),
        ("", None),
    ],
)
def test_only_errors_that_the_protocol_allows_are_allowed(log: str, name: str | None) -> None:
    ending = endings.classify(log)
    assert (ending and ending.name) == name


def test_the_error_of_a_driver_is_found_in_its_log() -> None:
    log = "a\nkeyedstate.errors.IncompleteEpochError: epoch 3 of 'a'\n  at b\n"
    assert endings.last_error(log) == "keyedstate.errors.IncompleteEpochError: epoch 3 of 'a'"
    assert endings.last_error("") == "it wrote nothing"


def test_a_java_whose_settings_name_the_daemon_is_no_daemon() -> None:
    settings = "--conf spark.python.daemon.module=faults.worker_daemon"
    command = f"java -cp x org.apache.spark.deploy.SparkSubmit {settings}"
    assert processes.Process(1, 2, 3, "S", command).kind == "other"


def run_with(driver: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> harness.Result:
    """Execute a run without events whose drivers are this code."""

    def start(self: harness.Harness, *_: Any) -> subprocess.Popen[bytes]:
        with self.log_of(self.lives).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", driver], stdout=log, stderr=log, start_new_session=True
            )
        self.sessions.add(process.pid)
        return process

    monkeypatch.setattr(harness.Harness, "process", start)
    plan = plans.plan_of(1, 1)
    plan.faults, plan.operators, plan.storage = [], ["aircraft"], "local"
    return run.execute(plan, folder / "run-0001", NO_FLIGHTS)


def test_an_error_that_restarts_do_not_clear_fails_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run_with("exit('keyedstate.errors.KeyedStateError: no')", tmp_path, monkeypatch)
    assert not result.finished and not result.survived
    problem = "ended with 1: keyedstate.errors.KeyedStateError: no"
    assert result.problems == [f"driver 1 {problem}", f"driver 2 {problem}"]
    assert result.endings == {"an error": 2}


def test_a_driver_that_commits_nothing_fails_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_STANDSTILL_S", 0.0)
    monkeypatch.setattr(run, "_DUMP_S", 0.0)
    result = run_with("import signal; signal.pause()", tmp_path, monkeypatch)
    assert not result.finished and result.endings == {"killed": 2}
    assert result.problems == ["no epoch was committed for 0 s"] * 2


def test_a_driver_that_uses_up_the_input_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_with("pass", tmp_path, monkeypatch)
    assert result.survived and result.lives == 1 and result.endings == {"used up the input": 1}


@pytest.mark.long
@pytest.mark.spark
def test_a_late_second_driver_rolls_no_state_back(tmp_path: Path) -> None:
    plan = Plan(
        seed=1,
        number=1,
        master=LOCAL,
        storage="local",
        sink=INSIDE,
        operators=["aircraft"],
        first_flight=0,
        flights=2_000,
        ahead=0.1,
        lives=[(2, "heap-cow")],
        settings={"spark.keyedstate.host": "embedded"},
        backends=plans.BACKENDS,
        epochs=8,
        faults=[
            {"id": "0", "name": plans.LATE_DRIVER, "epoch": 0, "after": {"epochs": None, "seconds": 0.0}}
        ],
    )
    result = run.execute(plan, tmp_path / "run-0001", harness.load_flights())
    assert result.survived, (result.verdict, result.problems, result.log)
    assert result.endings == {"used up the input": 2, "overtaken by another run": 1}
