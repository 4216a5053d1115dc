"""Plugins that are notified of the checkpoints of a local run, and get its metrics."""

from __future__ import annotations

import sys

from tests.framework.local.functions import COUNTS, Count, events

from keyedstate.local import keyed

_PLUGIN = """
from keyedstate.hooks import hookimpl

completed, reported = [], []

@hookimpl
def keyedstate_checkpoint_completed(uid, epoch, location, data_files):
    completed.append((uid, epoch))

@hookimpl
def keyedstate_metric_reporter(options):
    return reported.append
"""


def test_plugins_are_notified_of_checkpoints_and_get_metrics(tmp_path, monkeypatch):
    (tmp_path / "noting_plugin.py").write_text(_PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {"checkpoint.dir": str(tmp_path / "checkpoints"), "plugins.modules": "noting_plugin"}
    keyed(events("aab"), "user", uid="counts", config=config).process(Count(), COUNTS).to_table()
    plugin = sys.modules["noting_plugin"]
    assert plugin.completed == [("counts", 0)]
    (metrics,) = plugin.reported
    assert (metrics.uid, metrics.epoch, metrics.rows_in, metrics.rows_out) == ("counts", 0, 3, 3)
