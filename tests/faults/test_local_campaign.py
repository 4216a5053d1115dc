"""The campaign over runs without Spark can be believed: it plans everything and sees each loss."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from faults.local import plans
from faults.local.histories import execute, judge_chain, judge_counts, judge_once, judge_windows
from faults.local.program import BEGIN, WINDOW_SECONDS, rows_of

PLAN = plans.Plan(
    seed=1,
    number=1,
    operator="count",
    channels=(plans.ChannelPlan(50, 5, 0.5, 0, 4), plans.ChannelPlan(70, 1, 0.5, 0, 0)),
    runs=(
        plans.RunPlan((2, 1), "heap-cow", "unaligned", 0, 10, "kill task", 40, 1),
        plans.RunPlan((3, 2), "rocksdb", "exactly-once", 0, 50, "end", 0, 0),
    ),
)
TWICE = replace(PLAN, runs=(replace(PLAN.runs[0], mode="at-least-once"), PLAN.runs[1]))


def test_a_plan_follows_from_seed_and_number_and_everything_is_planned():
    planned = [plans.plan_of(3, number) for number in range(100)]
    assert plans.plan_of(3, 17) == planned[17] != plans.plan_of(4, 17)
    assert plans.Plan.from_json(planned[17].to_json()) == planned[17]
    runs = [run for plan in planned for run in plan.runs]
    assert {run.ending for run in runs} == set(plans.ENDINGS)
    assert {run.mode for run in runs} == set(plans.MODES)
    assert {run.backend for run in runs} == set(plans.BACKENDS)
    assert {plan.operator for plan in planned} == set(plans.OPERATORS)
    assert 30 < sum(plan.exactly_once for plan in planned) < 90


def committed_counts():
    counts: Counter[str] = Counter()
    rows = []
    for place in range(len(PLAN.channels)):
        for row in rows_of(PLAN, place):
            counts[row.key] += 1
            rows.append({**row._asdict(), "n": counts[row.key], "ordered": True})
    return rows


def test_the_model_accepts_counts_that_are_right_and_refuses_lost_doubled_and_disordered_rows():
    rows = committed_counts()
    assert judge_counts(PLAN, rows) == judge_counts(TWICE, rows) == []
    assert any("lost 1 rows" in problem for problem in judge_counts(TWICE, rows[1:]))
    assert any("came 2 times" in problem for problem in judge_counts(PLAN, [*rows, rows[0]]))
    assert judge_counts(TWICE, [*rows, rows[0]]) == []
    disordered = [{**rows[0], "ordered": False}, *rows[1:]]
    assert len(judge_counts(PLAN, disordered)) == 1
    ahead = [{**row, "n": row["n"] + 1} for row in rows]
    assert judge_counts(PLAN, ahead), "a row counted twice in the state, and once in the output"
    assert judge_counts(TWICE, ahead) == []


def test_the_model_refuses_rows_that_count_twice_in_the_second_operator_of_a_chain():
    totals: Counter[str] = Counter()
    rows = []
    for row in committed_counts():
        totals[row["channel"]] += 1
        rows.append({**row, "of_channel": totals[row["channel"]]})
    assert judge_chain(PLAN, rows) == judge_chain(TWICE, rows) == []
    ahead = [{**row, "of_channel": row["of_channel"] + 1} for row in rows]
    assert len(judge_chain(PLAN, ahead)) == 2
    assert judge_chain(TWICE, ahead) == []
    behind = [{**row, "of_channel": row["of_channel"] - 1} for row in rows]
    assert len(judge_chain(TWICE, behind)) == 2


def test_the_model_accepts_windows_that_are_right_and_refuses_others():
    counts = Counter(
        (row.key, int((row.ts - BEGIN).total_seconds()) // WINDOW_SECONDS)
        for place in range(len(PLAN.channels))
        for row in rows_of(PLAN, place)
    )
    windows = [
        {"key": key, "window_start": BEGIN + dt.timedelta(seconds=WINDOW_SECONDS * window), "n": n}
        for (key, window), n in counts.items()
    ]
    assert judge_windows(PLAN, windows) == judge_windows(TWICE, windows) == []
    assert len(judge_windows(TWICE, windows[1:])) == 1
    more = [{**windows[0], "n": windows[0]["n"] + 1}, *windows[1:]]
    assert len(judge_windows(PLAN, more)) == 1
    assert judge_windows(TWICE, more) == []
    assert any("came twice" in problem for problem in judge_windows(TWICE, [*windows, windows[0]]))


def test_the_model_refuses_rows_of_an_operator_that_are_lost_or_come_twice():
    rows = [row._asdict() for place in range(len(PLAN.channels)) for row in rows_of(PLAN, place)]
    assert judge_once(PLAN, rows, "channel", "number") == []
    assert len(judge_once(TWICE, rows[1:], "channel", "number")) == 1
    assert any(
        "came 2 times" in problem for problem in judge_once(PLAN, [*rows, rows[0]], "channel", "number")
    )
    assert judge_once(TWICE, [*rows, rows[0]], "channel", "number") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "operator",
    [plans.OPERATORS[0], *(pytest.param(name, marks=pytest.mark.long) for name in plans.OPERATORS[1:])],
)
def test_a_history_with_a_kill_and_another_number_of_tasks_survives(tmp_path: Path, operator: str):
    assert execute(replace(PLAN, operator=operator), tmp_path) == []
