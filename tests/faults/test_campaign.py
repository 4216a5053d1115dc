"""The campaign of faults can be believed: it plans everything, strikes where it says, and sees each loss."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from faults import answer, campaign, harness, plans
from faults.operators.table import TABLE

TESTS = Path(__file__).parent.parent
FLIGHTS = pa.table(
    {
        "id": [1, 2, 3, 4],
        "tailnum": ["N1", None, "N1", "N2"],
        "origin": ["JFK"] * 4,
        "dest": ["BOS", "BOS", "LAX", "BOS"],
        "arr_delay": [5, None, 7, -1],
    }
)
HOUR = 3_600_000
ROWS = [(1, "N1", 1, 5), (2, None, 1, 0), (3, "N1", 2, 12), (4, "N2", 1, -1)]


def test_a_plan_follows_from_seed_and_number_and_all_faults_are_planned() -> None:
    names = [entry.name for entry in plans.catalogue()]
    planned = [plans.plan_of(7, number) for number in range(len(names))]
    assert sorted(plan.faults[0]["name"] for plan in planned) == sorted(names)
    assert plans.plan_of(7, 23) == planned[23]
    assert plans.plan_of(8, 23) != planned[23]


def test_each_declared_operator_is_planned_and_has_the_steps_of_a_row_by_row_one() -> None:
    planned = [plans.plan_of(7, number).operators for number in range(4 * len(TABLE))]
    assert {name for names in planned for name in names if name in TABLE} == set(TABLE)
    assert all("aircraft" in names for names in planned if not TABLE.keys().isdisjoint(names))
    fault, chosen = ["restart: another backend"], ["join", "chain"]
    only = [plans.plan_of(7, number, fault, operators=chosen).operators for number in range(2)]
    assert sorted(only) == [["aircraft", "chain"], ["aircraft", "join"]]


def strike(folder: Path, fault: dict[str, object], code: str) -> int:
    """Run code in a process that is watched; returns its exit code."""
    run = folder / "run-0001"
    (run / "faults").mkdir(parents=True, exist_ok=True)
    (run / "state" / "aircraft" / "data").mkdir(parents=True, exist_ok=True)
    (run / "faults.json").write_text(json.dumps([{"id": "0", "role": "worker", **fault}]))
    head = f"import os; from faults import injection; injection.install('worker'); os.chdir({str(run)!r}); "
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", head + code]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


@pytest.mark.parametrize(
    ("nth", "codes"), [(0, [-signal.SIGKILL, 0, 0]), (2, [0, 0, -signal.SIGKILL])], ids=["first", "third"]
)
def test_a_fault_strikes_once_and_counts_over_processes(tmp_path: Path, nth: int, codes: list[int]) -> None:
    fault = {"step": "create", "path": "^aircraft/data/", "nth": nth, "action": "kill", "target": "worker"}
    write = "open(os.path.abspath('state/aircraft/data/x.seg'), 'wb').write(b'x')"
    assert [strike(tmp_path, fault, write) for _ in range(3)] == codes


def test_half_of_a_torn_file_is_on_the_disk_when_its_writer_dies(tmp_path: Path) -> None:
    fault = {"step": "create", "path": "^aircraft/data/", "nth": 0, "action": "tear", "bytes": 500}
    write = "open(os.path.abspath('state/aircraft/data/x.seg'), 'wb').write(bytes(1000))"
    assert strike(tmp_path, {**fault, "then": "kill", "target": "worker"}, write) == -signal.SIGXFSZ
    assert (tmp_path / "run-0001" / "state" / "aircraft" / "data" / "x.seg").stat().st_size == 500


def judged(folder: Path, rows: list[tuple[int, str | None, int, int]]) -> answer.Verdict:
    """Judge an output of these rows, of a run that left no state."""
    for name in ("input", "output"):
        (folder / name).mkdir()
    pyarrow.parquet.write_table(FLIGHTS, folder / "input" / "flights-0000.parquet")
    columns = ("id", "key", "flights", "delay")
    output = pa.Table.from_pylist(
        [{"operator": "aircraft", **dict(zip(columns, row, strict=True))} for row in rows]
    )
    pyarrow.parquet.write_table(output, folder / "output" / "epoch-0.parquet")
    return answer.judge(folder, str(folder / "state"), ["aircraft"], {"backend": "heap-cow"})


def test_lost_state_is_seen_though_the_output_is_right(tmp_path: Path) -> None:
    verdict = judged(tmp_path, ROWS)
    assert verdict.keys == 3 and not verdict.duplicated
    (lost,) = verdict.lost
    assert lost.startswith("aircraft: state of") and "N1 (0 of 2)" in lost and "None (0 of 1)" in lost


def test_a_lost_row_is_seen(tmp_path: Path) -> None:
    lost = judged(tmp_path, [*ROWS[:2], ROWS[3]]).lost
    assert lost[:2] == ["aircraft: no output of flight 3", "aircraft: running count of N1 ([1] of 2)"]


def test_a_row_that_is_there_twice_is_seen(tmp_path: Path) -> None:
    assert judged(tmp_path, [*ROWS, ROWS[3]]).duplicated == ["aircraft: output several times of flight 4"]


def test_a_state_that_counted_twice_shows_in_the_running_count(tmp_path: Path) -> None:
    rows = [*ROWS[:2], (3, "N1", 3, 17), ROWS[3]]
    assert judged(tmp_path, rows).duplicated == ["aircraft: running count of N1 ([1, 3] of 2)"]


def flights_at(*hours: float) -> pa.Table:
    """Return flights of one aircraft, each with a delay of one minute."""
    times = pa.array([int(hour * HOUR) for hour in hours]).cast(pa.timestamp("ms", "UTC"))
    same = {name: ["N1"] * len(hours) for name in ("tailnum", "origin", "dest")}
    return pa.table({"id": list(range(len(hours))), **same, "arr_delay": [1] * len(hours), "ts": times})


def test_the_answer_for_windows_leaves_out_late_rows() -> None:
    files = [flights_at(0.5, 10), flights_at(3.5, 5, 4.5), flights_at(11.5, 4.5)]
    hours = answer.expected_windows("hours", files)
    # The watermark is 4 o'clock in the second file and in the third, which begins with the same hours.
    assert hours == {
        ("N1", 0): (1, 1),
        ("N1", 4 * HOUR): (2, 2),
        ("N1", 5 * HOUR): (1, 1),
        ("N1", 10 * HOUR): (1, 1),
        ("N1", 11 * HOUR): (1, 1),
    }


def test_the_answer_for_sessions_joins_those_that_touch() -> None:
    turns = answer.expected_windows("turns", [flights_at(40, 0), flights_at(20, 61)])
    assert turns == {("N1", 0): (3, 3), ("N1", 61 * HOUR): (1, 1)}


@pytest.mark.parametrize(
    ("windows", "lost", "duplicated"),
    [
        ([(0, 1, 1)], [], []),
        ([], ["hours: window ('N1', 0) ([] for (1, 1))"], []),
        ([(0, 1, 1), (0, 1, 1)], [], ["hours: window ('N1', 0) ([(1, 1), (1, 1)] for (1, 1))"]),
        ([(0, 2, 2)], [], ["hours: window ('N1', 0) ([(2, 2)] for (1, 1))"]),
    ],
    ids=["exact", "lost", "twice", "a row twice"],
)
def test_lost_and_doubled_windows_are_seen(
    tmp_path: Path, windows: list[tuple[int, int, int]], lost: list[str], duplicated: list[str]
) -> None:
    for name in ("input", "output"):
        (tmp_path / name).mkdir()
    pyarrow.parquet.write_table(flights_at(0.5), tmp_path / "input" / "flights-0000.parquet")
    rows = [
        {"operator": "hours", "id": start, "key": "N1", "flights": flights, "delay": delay}
        for start, flights, delay in windows
    ]
    columns = ("operator", "id", "key", "flights", "delay")
    output = pa.table({name: [row[name] for row in rows] for name in columns})
    pyarrow.parquet.write_table(output, tmp_path / "output" / "epoch-0.parquet")
    verdict = answer.judge(tmp_path, str(tmp_path / "state"), ["hours"], {"backend": "heap-cow"})
    assert (verdict.lost, verdict.duplicated) == ([*lost, "hours: there is no state"], duplicated)


@pytest.mark.parametrize(
    ("rows", "lost", "duplicated"),
    [
        ([(0, 1, 1), (1, 2, 2)], [], []),
        ([(0, 1, 1)], ["running: row ('JFK', 1, 2, 2)"], []),
        ([(0, 1, 1), (1, 2, 2), (1, 2, 2)], [], ["running: row ('JFK', 1, 2, 2)"]),
    ],
    ids=["exact", "lost", "twice"],
)
def test_lost_and_doubled_rows_of_a_declared_operator_are_seen(
    tmp_path: Path, rows: list[tuple[int, int, int]], lost: list[str], duplicated: list[str]
) -> None:
    for name in ("input", "output"):
        (tmp_path / name).mkdir()
    flights = flights_at(0.5, 1.5).set_column(2, "origin", pa.array(["JFK", "JFK"]))
    pyarrow.parquet.write_table(flights, tmp_path / "input" / "flights-0000.parquet")
    output = pa.Table.from_pylist(
        [
            {"operator": "running", "key": "JFK", "id": id_, "flights": count, "delay": delay}
            for id_, count, delay in rows
        ]
    )
    pyarrow.parquet.write_table(output, tmp_path / "output" / "epoch-0.parquet")
    verdict = answer.judge(tmp_path, str(tmp_path / "state"), ["running"], {"backend": "heap-cow"})
    assert (verdict.lost, verdict.duplicated) == ([*lost, "running: there is no state"], duplicated)


def test_a_savepoint_that_is_not_there_is_a_lost_one(tmp_path: Path) -> None:
    verdict = answer.Verdict()
    answer.judge_savepoint(verdict, tmp_path, ["aircraft"])
    (lost,) = verdict.lost
    assert lost.startswith("the savepoint: ")


def test_results_are_counted_by_fault_and_failed_runs_can_be_repeated() -> None:
    plan = plans.plan_of(1, 0, ["kill driver: manifest"])
    plan.faults = [{"id": "0", "name": "kill driver: manifest"}, {"id": "1", "name": "disk full"}]
    result = harness.Result(plan, True, answer.Verdict(duplicated=["a key"]), {"0": "happened"}, 2, 1.0)
    rows = campaign.tabulate([result], ["kill driver: manifest", "disk full"])
    assert rows["kill driver: manifest"]["duplicated"] == rows["disk full"]["not reached"] == 1
    assert rows["disk full"]["tried"] == rows["kill driver: manifest"]["survived"] == 0
    assert "again: make faults SEED=1 ONLY=0" in campaign.describe(result, "make faults SEED=1 ONLY=0")
