"""Plugins that are notified of the checkpoints of a local run, and get its metrics."""

from __future__ import annotations

import importlib
import sys
import time

import pytest
from tests.framework.local.functions import COUNTS, Count, events

from keyedstate.errors import CheckpointTimeoutError
from keyedstate.local import keyed, read_state
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.state import ValueState

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


_TYPES = """
from keyedstate import types
from keyedstate.hooks import hookimpl

class LabelSerializer(type(types.STRING)):
    type_name = "label"

LABEL = LabelSerializer()

@hookimpl
def keyedstate_serializers():
    return {"label": lambda document: LABEL}
"""


def test_subtasks_keep_a_state_whose_type_only_a_plugin_knows(config, tmp_path):
    """Without a backend in that plugin, and with a program that no longer imports the type."""
    (tmp_path / "label_types.py").write_text(_TYPES)
    config |= {"plugins.modules": "label_types"}

    class Labelled(KeyedProcessFunction):
        label = ValueState("label", importlib.import_module("label_types").LABEL)

        def process(self, row, ctx):
            self.label.update(ctx.key.upper())
            yield ctx.key, 0

    keyed(events("ab"), "user", uid="counts", config=config).process(Labelled(), COUNTS).to_table()
    config |= {"parallelism": 2}
    keyed(events("abc"), "user", uid="counts", config=config).process(Count(), COUNTS).to_table()
    labels = read_state(tmp_path / "checkpoints", "label", epoch=1)
    assert sorted(labels["value"].to_pylist()) == ["A", "B"]
