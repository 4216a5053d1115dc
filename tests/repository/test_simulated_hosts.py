"""The simulation of hosts on a cluster, on a small one: it has the numbers of docs/explanation/cluster.md."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EPOCHS = 200
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "simulate_hosts.py"


@pytest.fixture(scope="module")
def simulation() -> Any:
    spec = importlib.util.spec_from_file_location("simulate_hosts", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["simulate_hosts"] = module
    spec.loader.exec_module(module)
    return module


def costs(simulation: Any, number: int, way: str, seed: int = 3) -> list[Any]:
    """Return the costs of a scenario on 20 executors with 200 partitions."""
    scenario = simulation.scenarios(20, EPOCHS)[number]
    return list(simulation.simulate(scenario, way, partitions=200, cores=4, epochs=EPOCHS, seed=seed))


def test_with_tcp_nothing_is_restored_where_nothing_happens(simulation: Any) -> None:
    found = costs(simulation, 0, "TCP")
    # A few partitions move, until all executors have about as many.
    assert sum(cost.restored for cost in found) < 0.2
    assert sum(cost.restored for cost in found[-50:]) == 0.0
    assert max(cost.kept for cost in found) < 1.6
    assert all(0.8 < cost.rows < 1.0 for cost in found)


def test_without_tcp_nearly_everything_is_restored_again_and_again(simulation: Any) -> None:
    found = costs(simulation, 0, "no TCP")
    assert min(cost.restored for cost in found[1:]) > 0.5
    assert found[-1].kept > 10


def test_a_lost_executor_costs_its_partitions_and_no_more(simulation: Any) -> None:
    found = costs(simulation, 2, "TCP, none moves")
    lost = [cost.restored for cost in found if cost.restored]
    # An executor that came after a loss may keep nothing yet when it is lost itself.
    assert 0 < len(lost) <= len(range(5, EPOCHS, 10))
    assert max(lost) < 0.2


def test_executors_that_come_later_get_their_share(simulation: Any) -> None:
    grown = costs(simulation, 4, "TCP")
    assert max(cost.restored for cost in grown) < 0.15
    assert grown[-1].kept < 2.5
    stuck = costs(simulation, 4, "TCP, none moves")
    assert stuck[-1].kept > 8


def test_the_script_prints_a_table() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--executors", "6", "--partitions", "24", "--epochs", "20"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 6 * 3
    assert len({row.count("|") for row in rows}) == 1
