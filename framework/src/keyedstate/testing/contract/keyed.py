"""Keyed backends over one plugin, as in the tasks of a job, and their snapshots in segment files."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keyedstate import types
from keyedstate.backend import Capability, StateHandle, StateKind
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import KeyGroupRange, key_group_ranges
from keyedstate.state.clock import Clock, system_clock
from keyedstate.state.registry.chosen_backend import ChosenBackend, KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.state.registry.running_snapshot import SnapshotTask
from keyedstate.testing.contract.parts import TablePart
from keyedstate.testing.instances import chosen_backend


class KeyedInstances:
    """Opens keyed backends of one plugin and moves their state through segment files.

    Parameters
    ----------
    name : str
        The backend.
    folder : Path
        Where segment files and the private folders of the instances go.
    options : mapping
        Options by their full names.

    Attributes
    ----------
    plugin : Backend
    plugin_options : mapping
        The plugin's own options, parsed.
    storage : CheckpointStorage
        Where the segment files are.
    """

    def __init__(self, name: str, folder: Path, options: Mapping[str, object]) -> None:
        self.plugin, self.plugin_options = chosen_backend(name, options)
        self._options, self._folder = options, folder
        self._parts: dict[TablePart, bool] = {}
        self.storage = CheckpointStorage.open(folder / "segments")
        self._numbers = itertools.count()
        self._opened: list[KeyedStateBackend] = []

    def claims(self, capability: Capability) -> bool:
        """Return whether the plugin has a capability."""
        return self.plugin.description.level(capability).usable

    def supports(self, kind: StateKind) -> bool:
        """Return whether the plugin has states of a kind."""
        return self.plugin.description.supports(kind)

    def implements(self, part: TablePart) -> bool:
        """Return whether the plugin's tables implement an interface."""
        if part not in self._parts:
            self._parts[part] = part.is_in(self.plugin.name, self._options, self._folder)
        return self._parts[part]

    def open(
        self,
        handles: Sequence[StateHandle] = (),
        *,
        key: types.TypeSerializer[Any] = types.INT64,
        key_groups: KeyGroupRange | None = None,
        max_parallelism: int = 16,
        track_changes: bool = False,
        clock: Clock = system_clock,
    ) -> KeyedStateBackend:
        """Open an instance, by default over all key groups, empty or restored."""
        backend = KeyedStateBackend.open(
            ChosenBackend(self.plugin, self.plugin_options),
            KeySpace(key, key_groups or KeyGroupRange(0, max_parallelism - 1), max_parallelism),
            handles,
            local_base=self._folder,
            track_changes=track_changes,
            clock=clock,
        )
        self._opened.append(backend)
        return backend

    def open_all(
        self,
        parallelism: int,
        handles: Sequence[StateHandle] = (),
        *,
        key: types.TypeSerializer[Any] = types.INT64,
        max_parallelism: int = 16,
        track_changes: bool = False,
        clock: Clock = system_clock,
    ) -> list[KeyedStateBackend]:
        """Open the instances of a whole operator, in the order of their key groups."""
        return [
            self.open(
                handles,
                key=key,
                key_groups=key_groups,
                max_parallelism=max_parallelism,
                track_changes=track_changes,
                clock=clock,
            )
            for key_groups in key_group_ranges(parallelism, max_parallelism)
        ]

    def snapshot(self, backend: KeyedStateBackend) -> SegmentHandle:
        """Take a snapshot and write it at once."""
        return self.write(backend, backend.snapshot(next(self._numbers)))

    def write(self, backend: KeyedStateBackend, task: SnapshotTask) -> SegmentHandle:
        """Write a snapshot into a segment file; return the handle that restores it."""
        return SegmentHandle.open(self.storage, self.write_file(backend, task))

    def new_path(self) -> str:
        """Return the path of a new file."""
        return f"{next(self._numbers)}.seg"

    def write_file(self, backend: KeyedStateBackend, task: SnapshotTask) -> SegmentFile:
        """Write a snapshot into a segment file; return its description."""
        with SegmentWriter(self.storage, self.new_path(), backend.key_groups) as writer:
            task.run(writer)
            return writer.finish()

    def close(self) -> None:
        """Close every instance."""
        for backend in self._opened:
            backend.close()
