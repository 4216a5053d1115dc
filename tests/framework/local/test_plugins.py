"""Plugins that are notified of the checkpoints of a local run, and get its metrics."""

from __future__ import annotations

import sys
import time

import pytest
from tests.framework.local.functions import COUNTS, Count, events

from keyedstate.errors import CheckpointTimeoutError
from keyedstate.local import keyed
from keyedstate.runtime import KeyedProcessFunction

_PLUGIN = """
from keyedstate.hooks import hookimpl

completed, aborted, reported = [], [], []

@hookimpl
def keyedstate_checkpoint_completed(uid, epoch, location, data_files):
    completed.append((uid, epoch))

@hookimpl
def keyedstate_checkpoint_aborted(uid, epoch, reason):
    aborted.append((uid, epoch, reason))

@hookimpl
def keyedstate_metric_reporter(options):
    return reported.append
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    (tmp_path / "noting_plugin.py").write_text(_PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return {"checkpoint.dir": str(tmp_path / "checkpoints"), "plugins.modules": "noting_plugin"}


def test_plugins_are_notified_of_checkpoints_and_get_metrics(config):
    keyed(events("aab"), "user", uid="counts", config=config).process(Count(), COUNTS).to_table()
    plugin = sys.modules["noting_plugin"]
    assert plugin.completed == [("counts", 0)]
    (metrics,) = plugin.reported
    assert (metrics.uid, metrics.epoch, metrics.rows_in, metrics.rows_out) == ("counts", 0, 3, 3)


class Stuck(KeyedProcessFunction):
    """Never ends."""

    def process(self, row, ctx):
        time.sleep(1000)
        yield ctx.key, 1


def test_plugins_are_notified_of_a_checkpoint_that_takes_too_long(config):
    config |= {"parallelism": 2, "checkpoint.timeout": "200 ms"}
    with pytest.raises(CheckpointTimeoutError):
        keyed(events("aab"), "user", uid="stuck", config=config).process(Stuck(), COUNTS).to_table()
    plugin = sys.modules["noting_plugin"]
    assert plugin.aborted == [("stuck", 0, "it was not finished within its time")]
    assert ("stuck", 0) not in plugin.completed
