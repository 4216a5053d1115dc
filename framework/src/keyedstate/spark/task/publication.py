"""What a task does after its epoch where no driver receives acknowledgements, as on Spark Connect.

The last task of an epoch publishes the checkpoint, notifies plugins, reports metrics and deletes old files:
what a classic driver does.
"""

from __future__ import annotations

import logging
import time
from functools import lru_cache
from typing import Any

from keyedstate.checkpoint.format.manifest import TaskIdentity
from keyedstate.checkpoint.protocol import retention
from keyedstate.checkpoint.protocol.metrics import metrics_of_checkpoint
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.publication import publish_if_complete
from keyedstate.epoch.configuration import configuration_in_task, storage_in_task
from keyedstate.epoch.notification.plugin_listener import PluginListener
from keyedstate.epoch.notification.reporters import reporters_of
from keyedstate.options import CHECKPOINT_RETAINED

_log = logging.getLogger(__name__)


def publish_after_task(directory: str, settings: tuple[tuple[str, Any], ...], identity: TaskIdentity) -> None:
    """Publish the checkpoint of an epoch, if the task of an attempt was the last one of it to finish.

    Raises as `publish_if_complete`; what happens after the publication raises nothing.
    """
    began = time.perf_counter()
    folder = _folder(directory, settings, identity.uid)
    metadata = publish_if_complete(folder, identity)
    if metadata is None:
        return
    publish_ms = (time.perf_counter() - began) * 1000.0
    config = configuration_in_task(settings)
    listener = _listener(directory, settings, identity.uid)
    try:
        listener.completed(metadata)
        reporters = reporters_of(config)
        if reporters:
            metrics = metrics_of_checkpoint(metadata, time.time_ns() // 1_000_000, publish_ms)
            for reporter in reporters:
                reporter.report(metrics)
    except Exception:  # of a plugin
        _log.exception("a listener to the checkpoints of %r raised", identity.uid)
    try:
        _sweep_once(directory, settings, identity)
        for epoch in retention.prune(folder, metadata, config[CHECKPOINT_RETAINED]):
            listener.subsumed(epoch)
    except Exception:
        # It costs room and nothing else, and the next clean-up finds what this one left.
        _log.warning("cannot clean up the state folder %s", folder.location, exc_info=True)


def _sweep_once(directory: str, settings: tuple[tuple[str, Any], ...], identity: TaskIdentity) -> None:
    """Delete what earlier runs have left, once in a process for each run."""
    swept = (directory, identity.uid, identity.run_id)
    if swept not in _swept:
        retention.sweep(_folder(directory, settings, identity.uid), identity)
        _swept.add(swept)


_swept: set[tuple[str, str, str]] = set()


@lru_cache(maxsize=8)
def _folder(directory: str, settings: tuple[tuple[str, Any], ...], uid: str) -> OperatorFolder:
    return OperatorFolder(storage_in_task(directory, settings), uid)


@lru_cache(maxsize=8)
def _listener(directory: str, settings: tuple[tuple[str, Any], ...], uid: str) -> PluginListener:
    return PluginListener(_folder(directory, settings, uid), configuration_in_task(settings))
