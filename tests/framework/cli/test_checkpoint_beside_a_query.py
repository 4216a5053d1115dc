"""The checkpoint commands beside a query that publishes and cleans up as fast as it can."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from keyedstate.checkpoint.savepoint.savepoint import SavepointFolder

#: How often each command meets the query: each time it is at another step.
ROUNDS = 4


class RunningQuery:
    """A query in a thread of its own; every epoch it counts for every key, and retains two checkpoints."""

    def __init__(self, query: Any) -> None:
        self.query = query
        self.error: BaseException | None = None
        self.epochs = 0
        self._stop = threading.Event()
        self._published = threading.Condition()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> RunningQuery:
        self._thread.start()
        self.wait_for_epochs(3)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_epochs(self, count: int) -> None:
        """Return when so many more were published."""
        with self._published:
            wanted = self.epochs + count
            self._published.wait_for(lambda: self.epochs >= wanted or self.error is not None)

    def _run(self) -> None:
        epoch = 2
        try:
            while not self._stop.is_set():
                flights = self.query.state["flights"]
                for key in flights:
                    flights[key] = epoch
                self.query.epoch(epoch, delta=epoch % 4 != 0)
                epoch += 1
                with self._published:
                    self.epochs += 1
                    self._published.notify_all()
        except BaseException as error:
            self.error = error
            with self._published:
                self._published.notify_all()


@pytest.fixture
def running(query: Any) -> Iterator[RunningQuery]:
    with RunningQuery(query) as running:
        yield running
        running.wait_for_epochs(2)
    assert running.error is None
    # Nothing holds what it was reading, and the clean-up of the last epochs has found that.
    assert query.folder.leases() == []
    assert len(query.folder.checkpoints()) == 2
    named = set().union(
        *(
            part.kept_files
            for epoch in query.folder.checkpoints()
            for part in query.folder.read_metadata(epoch).parts
        )
    )
    assert set(query.folder.data_files()) == named


def test_verify_finds_whole_checkpoints_and_calls_nothing_an_orphan_that_is_needed(running, invoke, tmp_path):
    for _ in range(ROUNDS):
        before = running.epochs
        ran = invoke("checkpoint", "verify", str(tmp_path / "state"), "--format", "json")
        (operator,) = json.loads(ran.stdout)["operators"]
        assert (ran.returncode, operator["problems"]) == (0, [])
        # What a reader let go a moment ago is one until the next clean-up, which comes with the next epoch.
        orphans = {one["path"] for one in operator["orphans"]}
        running.wait_for_epochs(2)
        assert orphans.isdisjoint(running.query.folder.data_files())
        assert {one["status"] for one in operator["checkpoints"]} == {"whole"}
        assert operator["newest_whole_epoch"] > before


def test_an_export_is_the_state_after_one_epoch(running, invoke, tmp_path):
    for number in range(ROUNDS):
        out = tmp_path / f"{number}.jsonl"
        ran = invoke(
            "checkpoint",
            "export",
            str(tmp_path / "state"),
            str(out),
            "--state",
            "flights",
            "--format",
            "json",
        )
        values = {json.loads(line)["value"] for line in out.read_text().splitlines()}
        assert values == {json.loads(ran.stdout)["epoch"]}


def test_diff_compares_the_epochs_that_it_began_with(running, invoke, tmp_path):
    for _ in range(ROUNDS):
        ran = invoke(
            "checkpoint", "diff", *[str(tmp_path / "state")] * 2, "--state", "flights", "--format", "json"
        )
        (operator,) = json.loads(ran.stdout)["operators"]
        (state,) = operator["states"]
        # The query may have come further between the two looks.
        is_same_epoch = operator["a"]["epoch"] == operator["b"]["epoch"]
        assert state["changed"] == (0 if is_same_epoch else 41)
        assert (state["added"], state["removed"]) == (0, 0)


def test_list_show_and_savepoints_work_while_the_query_runs(running, invoke, tmp_path):
    for number in range(ROUNDS):
        assert invoke("checkpoint", "list", str(tmp_path / "state")).returncode == 0
        assert invoke("checkpoint", "show", str(tmp_path / "state")).returncode == 0
        out = tmp_path / f"savepoint-{number}"
        assert invoke("savepoint", "create", str(tmp_path / "state"), str(out)).returncode == 0
        assert invoke("checkpoint", "verify", str(out)).returncode == 0
        assert SavepointFolder.open(out).metadata("aircraft").epoch > 1
