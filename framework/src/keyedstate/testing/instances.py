"""Instances of a backend without a job: tables, and snapshots in real segment files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keyedstate.backend import AnyStateTable, BackendContext, Snapshot, SnapshotStrategy, StateMeta
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import KeyGroupRange
from keyedstate.options import Configuration, managed_memory
from keyedstate.plugins import Backend, PluginRegistry

_numbers = itertools.count()


@dataclass
class Instance:
    """One instance of a backend over one key-group range, as in a task of a job.

    Attributes
    ----------
    backend : Backend
    context : BackendContext
    tables : dict
        The tables by state name: restored ones, and those that `table` created.
    """

    backend: Backend
    context: BackendContext
    tables: dict[str, AnyStateTable]
    _strategy: SnapshotStrategy = field(repr=False)

    def table(self, meta: StateMeta) -> AnyStateTable:
        """Return the table of a state, and create it if it does not exist."""
        if meta.name not in self.tables:
            self.tables[meta.name] = self.backend.create_state_table(meta, self.context)
        return self.tables[meta.name]

    def prepare(self) -> Snapshot:
        """Take the synchronous part of a snapshot."""
        return self._strategy.prepare(next(_numbers), self.tables)

    def write(self, snapshot: Snapshot, folder: Path) -> SegmentHandle:
        """Write a snapshot into a segment file, release it, and return the handle that restores it."""
        storage = CheckpointStorage.open(folder)
        writer = SegmentWriter(storage, f"segment-{next(_numbers)}.seg", self.context.key_groups)
        try:
            snapshot.write(writer)
        except BaseException:
            writer.abort()
            raise
        finally:
            snapshot.release()
        return SegmentHandle.open(storage, writer.finish())

    def close(self) -> None:
        """Let the plugin clean up."""
        self.context.closing.close()


def chosen_backend(name: str, options: Mapping[str, object]) -> tuple[Backend, Mapping[str, Any]]:
    """Return an installed backend by its name, and its own options by their full names.

    The first call divides the managed memory of the process as the options say.

    Raises
    ------
    PluginError
        Where the backend cannot be chosen.
    ConfigError
        Where an option is unknown or has a wrong value.
    """
    settings = Configuration({**options, "backend": name})
    registry = PluginRegistry(settings)
    backend = registry.choose()
    managed_memory(settings)
    return backend, settings.plugin_options(registry.options, name)


def open_instance(
    name: str,
    folder: Path,
    *,
    options: Mapping[str, object] | None = None,
    key_groups: KeyGroupRange,
    max_parallelism: int,
    handles: Iterable[SegmentHandle] = (),
) -> Instance:
    """Open an instance of an installed backend, empty or restored.

    Parameters
    ----------
    name : str
        The backend's name.
    folder : Path
        For the backend's private folder.
    options : mapping, optional
        Options by name, such as the backend's own.
    handles : iterable of SegmentHandle
        Snapshots to restore from, whatever ranges they cover.

    Raises
    ------
    PluginError
        Where the backend cannot be chosen.
    """
    backend, own_options = chosen_backend(name, options or {})
    context = BackendContext(key_groups, max_parallelism, own_options, folder)
    try:
        tables = backend.create_restore_operation(list(handles), context).restore()
        return Instance(backend, context, tables, backend.create_snapshot_strategy(context))
    except BaseException:
        context.closing.close()
        raise
