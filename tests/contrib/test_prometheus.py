"""The reporter for Prometheus: its file after each epoch, and what it does without one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keyedstate.epoch.notification.reporters import reporters_of
from keyedstate.errors import InvalidOptionError, InvalidPluginError
from keyedstate.metrics import EpochMetrics, LatencyMetrics, PhaseTimes, StateMetrics
from keyedstate.options import Configuration

SOURCE = Path(__file__).resolve().parents[2] / "contrib" / "prometheus" / "src"
EPOCH = EpochMetrics(
    uid='odd "uid"\n',
    query_id="q1",
    run_id="r1",
    epoch=4,
    partitions=2,
    time_ms=1_700_000_000_500,
    rows_in=10,
    rows_out=7,
    watermark=None,
    states={"views": StateMetrics(3, 120), "back\\slash": StateMetrics(1, None)},
    host_hits=2,
    host_catch_ups=0,
    restores=0,
    files=4,
    checkpoint_bytes=999,
    written_bytes=99,
    longest_chain=1,
    full_snapshots=0,
    full_snapshot_write_ms=PhaseTimes(0.0, 0.0),
    failed_full_snapshots=0,
    phases={"process": PhaseTimes(20.5, 30.0)},
    latencies={"views": {"update": LatencyMetrics(128, 1.5, 2.0, 4.0, 9.0)}},
    rows_dropped={"late": 3},
    native={"views.estimate-num-keys": 3, "block-cache-hit": 12},
)


@pytest.fixture
def reporter_to(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the reporter that the plugin gives for a file, through the registry of plugins."""
    monkeypatch.syspath_prepend(str(SOURCE))

    def reporter(path: Path | None) -> Any:
        options = {} if path is None else {"metrics.options": {"prometheus.file": str(path)}}
        config = Configuration({"plugins.modules": "keyedstate_prometheus.plugin", **options})
        return reporters_of(config)

    return reporter


def samples(path: Path) -> dict[str, float]:
    """Read the file as Prometheus does; each metric must have its help and type before."""
    found: dict[str, float] = {}
    declared: set[str] = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# TYPE"):
            declared.add(line.split()[2])
        elif not line.startswith("#"):
            line_of = re.fullmatch(r'(\w+)\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\} (\S+)', line)
            assert line_of is not None, line
            name, labels, value = line_of.groups()
            assert name in declared
            found[f"{name} {labels}"] = float(value)
    return found


OPERATOR = 'uid="odd \\"uid\\"\\n",query_id="q1"'


def test_the_file_has_the_last_metrics_and_the_sums_of_all_epochs(reporter_to: Any, tmp_path: Path) -> None:
    path = tmp_path / "keyedstate.prom"
    (reporter,) = reporter_to(path)
    reporter.report(EPOCH)
    reporter.report(replace(EPOCH, epoch=5, rows_in=5, rows_out=1, watermark=2500, files=6))
    found = samples(path)
    assert found[f"keyedstate_rows_in_total {OPERATOR}"] == 15
    assert found[f"keyedstate_epochs_total {OPERATOR}"] == 2
    assert found[f'keyedstate_rows_dropped_total {OPERATOR},why="late"'] == 6
    assert found[f"keyedstate_epoch {OPERATOR}"] == 5
    assert found[f"keyedstate_files {OPERATOR}"] == 6
    assert found[f"keyedstate_watermark_seconds {OPERATOR}"] == 2.5
    assert found[f"keyedstate_completed_time_seconds {OPERATOR}"] == 1_700_000_000.5
    assert found[f'keyedstate_state_entries {OPERATOR},state="back\\\\slash"'] == 1
    assert found[f'keyedstate_state_bytes {OPERATOR},state="views"'] == 120
    assert f'keyedstate_state_bytes {OPERATOR},state="back\\\\slash"' not in found
    assert found[f'keyedstate_phase_seconds {OPERATOR},phase="process"'] == 0.0205
    sampled = f'keyedstate_state_latency_seconds {OPERATOR},state="views",operation="update",quantile="0.95"'
    assert found[sampled] == 2e-6
    assert found[f'keyedstate_native {OPERATOR},metric="views.estimate-num-keys"'] == 3
    assert found[f'keyedstate_native {OPERATOR},metric="block-cache-hit"'] == 12
    assert [file.name for file in tmp_path.iterdir()] == ["keyedstate.prom"]


def test_an_epoch_that_ran_again_counts_once_and_operators_lie_side_by_side(
    reporter_to: Any, tmp_path: Path
) -> None:
    (reporter,) = reporter_to(tmp_path / "keyedstate.prom")
    for metrics in (EPOCH, replace(EPOCH, uid="other"), replace(EPOCH, run_id="r2", files=5)):
        reporter.report(metrics)
    found = samples(tmp_path / "keyedstate.prom")
    assert found[f"keyedstate_rows_in_total {OPERATOR}"] == 10
    assert found[f"keyedstate_files {OPERATOR}"] == 5
    assert found['keyedstate_rows_in_total uid="other",query_id="q1"'] == 10


def test_a_file_that_cannot_be_written_leaves_nothing_behind(reporter_to: Any, tmp_path: Path) -> None:
    path = tmp_path / "keyedstate.prom"
    (reporter,) = reporter_to(path)
    path.mkdir()
    reporter.report(EPOCH)
    assert [file.name for file in tmp_path.iterdir()] == ["keyedstate.prom"]


def test_without_a_file_there_is_no_reporter(reporter_to: Any) -> None:
    assert reporter_to(None) == ()


def test_a_folder_that_is_not_there_is_refused_when_the_operator_is_built(
    reporter_to: Any, tmp_path: Path
) -> None:
    with pytest.raises(InvalidPluginError, match="a file in a folder that exists") as caught:
        reporter_to(tmp_path / "no" / "keyedstate.prom")
    assert isinstance(caught.value.__cause__, InvalidOptionError)
